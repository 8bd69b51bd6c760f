"""The folders of a run's checkpoints: whole or not at all, checked when read, the old ones dropped.

RUN/checkpoints/step-00000500/ with checksums.json, the SHA-256 of its files.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from allformer.checkpoint.hashes import sha256
from allformer.disk import sync, sync_folder
from allformer.errors import TrainingError

CHECKSUMS = "checksums.json"


def checkpoints(run: Path) -> list[Path]:
    """The run's checkpoints, oldest first."""
    return sorted((run / "checkpoints").glob("step-????????"))


def set_asides(run: Path) -> list[Path]:
    """Those that were damaged: they no longer count, and are somebody's all the same."""
    return sorted((run / "checkpoints").glob("step-????????.damaged*"))


def clear(run: Path) -> None:
    """Leave nothing of a run that ended here before its first checkpoint: its figures and its best
    weights would be taken for those of the one that begins."""
    for name in ("best", "best.part", "best.old", "tensorboard"):
        shutil.rmtree(run / name, ignore_errors=True)
    for name in ("metrics.jsonl", "statistics.jsonl", "generation_config.json"):
        (run / name).unlink(missing_ok=True)


def step_of(checkpoint: Path) -> int:
    """The step at which a checkpoint was saved."""
    return int(checkpoint.name.removeprefix("step-"))


@contextmanager
def appearing(run: Path, step: int, *, fresh: bool = True) -> Iterator[Path]:
    """A folder to write a checkpoint into, which then appears under its name, whole.

    What was kept stays as it was if anything fails. `fresh`: what is left of an older try goes.
    """
    final = run / "checkpoints" / f"step-{step:08}"
    part = final.with_name(final.name + ".part")
    try:
        if fresh:
            shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True, exist_ok=True)
        yield part
        _write_sums(part)
        sync_folder(part)  # a rename may reach the disk before what is in it
        if final.exists():
            os.replace(final, _free_name(final, "old"))
        os.replace(part, final)
        sync_folder(final.parent)
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError on a full disk
        shutil.rmtree(part, ignore_errors=True)
        raise cannot_save(run, step, error) from None


def cannot_save(run: Path, step: int, error: BaseException) -> TrainingError:
    """What to say of a checkpoint that could not be written."""
    said = getattr(error, "strerror", None) or (str(error).splitlines() or [repr(error)])[0]
    kept = checkpoints(run)
    goes_on = f"go on from step {step_of(kept[-1]):,} with --resume {run}" if kept else "retry"
    return TrainingError(
        f"step {step:,} cannot be saved in {run / 'checkpoints'} ({said}); what was kept is as it "
        f"was: make room, then {goes_on}"
    )


def _write_sums(part: Path) -> None:
    sums = {path.name: sha256(path) for path in sorted(part.iterdir()) if path.name != CHECKSUMS}
    with (part / CHECKSUMS).open("w", encoding="utf-8") as text:
        json.dump(sums, text, indent=2)
        sync(text)


def drop_old(run: Path, keep: int, every: int) -> None:
    """Drop all but the last `keep`.

    An older one that an interrupt left between two multiples of `every` goes too: the mean of the
    last checkpoints is the same whether a run was interrupted or not.
    """
    saved = checkpoints(run)
    between = [old for old in saved[:-1] if step_of(old) % every]
    regular = [old for old in saved if old not in between]
    folder = run / "checkpoints"
    for old in between + regular[:-keep]:  # killed while its files go, half of it is no checkpoint
        os.replace(old, _free_name(old, "old"))
    for left in sorted([*folder.glob("step-*.old*"), *folder.glob("step-*.part")]):  # of kills too
        shutil.rmtree(left)


def _free_name(path: Path, ending: str) -> Path:
    """`step-00000500.old`, or with a number behind it where that is taken."""
    numbers = (f"{path.name}.{ending}{n or ''}" for n in range(1000))
    return next(path.with_name(name) for name in numbers if not path.with_name(name).exists())


def damage(checkpoint: Path) -> str:
    """What is wrong with a checkpoint's files, or nothing; those of before have no checksums."""
    try:
        sums = json.loads((checkpoint / CHECKSUMS).read_text(encoding="utf-8"))
        for name, wanted in sums.items():
            if sha256(checkpoint / name) != wanted:
                return f"{name} has other bytes than were written"
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        return "" if missing == CHECKSUMS else f"{missing} is missing"
    except (OSError, ValueError, AttributeError, TypeError) as error:
        return f"{CHECKSUMS} cannot be read ({error})"
    return ""


def set_aside(checkpoint: Path, why: str, say: Callable[[str], None]) -> None:
    """Let a damaged checkpoint no longer count, without losing it."""
    aside = _free_name(checkpoint, "damaged")
    os.replace(checkpoint, aside)
    say(f"{checkpoint.name} is damaged ({why}); it is set aside as {aside.name}")
