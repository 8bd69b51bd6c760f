"""Trainings side by side on one device, each a process of its own that leaves its result as JSON.

    results = side_by_side({"full": [sys.executable, "listops.py", "--one", "full"]}, out, 10)

Each command is called with `--result FILE` behind it; what it says goes to NAME.log beside that
file. One that fails, or is late, has its last lines for a result, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from allformer.train.loop import train

_TAIL = 6  # lines of a log that tell why
_PATIENCE = 5.0  # seconds


def add_arguments(parser: argparse.ArgumentParser, changed: str = "the recipe") -> None:
    """What every script of trainings side by side is asked: `add_arguments(parser)`."""
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="steps as one captured graph")
    parser.add_argument("--set", action="append", default=[], help=f"change {changed}")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--result", help="where the figures go, as JSON")


def side_by_side(
    commands: Mapping[str, Sequence[str]], out: Path, minutes: float, most: int = 16
) -> dict[str, dict[str, Any]]:
    """The results by name; `most` of them run at a time, all together no longer than `minutes`."""
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nobody is left running
    waiting = list(commands)
    running: dict[str, subprocess.Popen[bytes]] = {}
    end = time.monotonic() + 60 * minutes
    try:
        while (waiting or running) and time.monotonic() < end:
            while waiting and len(running) < most:
                name = waiting.pop(0)
                running[name] = _start(name, commands[name], out)
            time.sleep(0.2)
            for name in [name for name, each in running.items() if each.poll() is not None]:
                _say(f"{name}: ended with {running.pop(name).returncode}")
    finally:
        for name, process in running.items():
            _say(f"{name}: late, and stopped")
            process.terminate()
        for process in running.values():
            _ended(process)
    return {name: read_result(out, name) for name in commands}


def _ended(process: subprocess.Popen[bytes]) -> None:
    """After a while by force: one that has processes of its own stops them first."""
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _start(name: str, command: Sequence[str], out: Path) -> subprocess.Popen[bytes]:
    result = out / f"{name}.json"
    result.unlink(missing_ok=True)
    # One thread each: there are about as many processes as cores.
    given = {"OMP_NUM_THREADS": "1", **os.environ, "TOKENIZERS_PARALLELISM": "false"}
    with (out / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--result", str(result)], stdout=log, stderr=subprocess.STDOUT, env=given
        )


def trained(recipe: Any, run: Path, args: Any) -> Any:
    """Into a fresh directory. With --compile steps are captured as one graph; where that fails, the
    whole process begins again without it, as a device that failed in a capture is no good."""
    shutil.rmtree(run, ignore_errors=True)
    if not args.compile:
        return train(recipe, run, device=args.device, compile=False)
    try:
        return train(recipe, run, device=args.device, compile=True)
    except Exception:
        traceback.print_exc()
        print("again, without --compile", flush=True)
        plain = [word for word in sys.argv if word != "--compile"]
        os.execv(sys.executable, [sys.executable, *plain])


def read_result(out: Path, name: str) -> dict[str, Any]:
    """What a process left, or the end of what it said."""
    try:
        found: dict[str, Any] = json.loads((out / f"{name}.json").read_text())
        return found
    except (OSError, ValueError):
        log = out / f"{name}.log"
        lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
        said = " / ".join(line.strip()[-200:] for line in lines[-_TAIL:]) or "no result"
        return {"error": said, "so far": so_far(out / f"run-{name}")}


def so_far(run: Path) -> dict[str, Any]:
    """The last validation of a training that did not come to its end."""
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    found = [row for row in rows if "validation_nll" in row]
    return found[-1] if found else {}


def write_result(path: str | None, found: Mapping[str, Any]) -> None:
    """At once or not at all."""
    if path is None:
        return
    aside = Path(f"{path}.{os.getpid()}")
    aside.write_text(json.dumps(found, indent=1) + "\n")
    os.replace(aside, path)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Markdown, columns as wide as they must be."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
             for row in cells]  # fmt: skip
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])
