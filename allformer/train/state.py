"""Checkpoints of a running training: everything needed to go on as if nothing had happened.

Each is a folder that appears whole or not at all, with the SHA-256 of its files beside them: what a
disk has changed since is not trusted, and the checkpoint before it counts.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allformer.checkpoint.hashes import sha256
from allformer.checkpoint.weights import put_weights, read_tensors, save_weights
from allformer.errors import CheckpointError, TrainingError
from allformer.train.step import Stepper

WEIGHTS, STATE, CHECKSUMS = "model.safetensors", "state.pt", "checksums.json"


def checkpoints(run: Path) -> list[Path]:
    """The run's checkpoints, oldest first."""
    return sorted((run / "checkpoints").glob("step-????????"))


def step_of(checkpoint: Path) -> int:
    """The step at which a checkpoint was saved."""
    return int(checkpoint.name.removeprefix("step-"))


def save_state(
    run: Path, step: int, stepper: Stepper, extra: dict[str, Any], *, keep: int, every: int
) -> Path:
    """Write a checkpoint (whole or not at all) and drop all but the last `keep`.

    An older one that an interrupt left between two multiples of `every` goes too: the mean of the
    last checkpoints is the same whether a run was interrupted or not. What is there goes only
    after the new one is down on the disk.
    """
    final = run / "checkpoints" / f"step-{step:08}"
    part = final.with_name(final.name + ".part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        _write(part, step, stepper, extra)
        if final.exists():
            os.replace(final, _free_name(final, "old"))
        os.replace(part, final)
        _settle(final.parent)
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError on a full disk
        shutil.rmtree(part, ignore_errors=True)
        said = getattr(error, "strerror", None) or str(error).splitlines()[0]
        kept = checkpoints(run)
        goes_on = f"go on from step {step_of(kept[-1]):,} with --resume {run}" if kept else "retry"
        raise TrainingError(
            f"step {step:,} cannot be saved in {final.parent} ({said}); what was kept is as it "
            f"was: make room, then {goes_on}"
        ) from None
    saved = checkpoints(run)
    between = [old for old in saved[:-1] if step_of(old) % every]
    regular = [old for old in saved if old not in between]
    left = [*final.parent.glob("step-*.old*"), *final.parent.glob("step-*.part")]  # of kills
    for old in between + regular[:-keep] + sorted(left):
        shutil.rmtree(old)
    return final


def _settle(folder: Path) -> None:
    """A folder's names down to the disk: else a power cut could undo a rename."""
    try:
        number = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _write(part: Path, step: int, stepper: Stepper, extra: dict[str, Any]) -> None:
    save_weights(stepper.model, part / WEIGHTS)
    state = {
        "step": step,
        "optimizer": stepper.optimizer.state_dict(),
        "scaler": None if stepper.scaler is None else stepper.scaler.state_dict(),
        "ema": None if stepper.ema is None else stepper.ema.state_dict(),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state() if stepper.on_gpu else None,
        **extra,
    }
    with (part / STATE).open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    sums = {name: sha256(part / name) for name in (WEIGHTS, STATE)}
    with (part / CHECKSUMS).open("w", encoding="utf-8") as text:
        json.dump(sums, text, indent=2)
        text.flush()
        os.fsync(text.fileno())


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


def load_state(
    run: Path, model: Any, stepper: Stepper, say: Callable[[str], None]
) -> dict[str, Any]:
    """Restore the newest good checkpoint; returns what was stored beside it.

    A damaged one is set aside under another name, and said so.
    """
    found = checkpoints(run)
    if not found:
        raise CheckpointError(
            f"{run} has no checkpoint to resume from; start anew without --resume, "
            f"or give a folder with checkpoints/step-…"
        )
    for checkpoint in reversed(found):
        try:
            tensors, state = _read(checkpoint, model.device)
        except CheckpointError as error:
            set_aside(checkpoint, str(error), say)
            continue
        put_weights(model, tensors, str(checkpoint / WEIGHTS))  # another model is no damage
        stepper.load(state)
        torch.set_rng_state(state["rng"].cpu())
        if stepper.on_gpu and state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"].cpu())
        say(f"going on from step {state['step']:,} ({checkpoint.name})")
        return state
    raise CheckpointError(
        f"{run}: all {len(found)} checkpoints are damaged and set aside as checkpoints/*.damaged; "
        f"copy a good one back, or start anew with another --out"
    )


def set_aside(checkpoint: Path, why: str, say: Callable[[str], None]) -> None:
    """Let a damaged checkpoint no longer count, without losing it."""
    aside = _free_name(checkpoint, "damaged")
    os.replace(checkpoint, aside)
    say(f"{checkpoint.name} is damaged ({why}); it is set aside as {aside.name}")


def _read(checkpoint: Path, device: torch.device) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and state, read whole before anything is touched."""
    if found := damage(checkpoint):
        raise CheckpointError(found)
    try:
        state = torch.load(checkpoint / STATE, map_location=device, weights_only=True)
    except Exception as error:  # whatever pickle and zip say of such bytes
        raise CheckpointError(f"{STATE} cannot be read ({type(error).__name__})") from None
    return read_tensors(checkpoint / WEIGHTS), state
