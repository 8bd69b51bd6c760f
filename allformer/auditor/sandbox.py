"""Run an audit of somebody's code in a process of its own, with a limit on time and memory.

    result = run_apart("my_model.py:build", {"kind": "decoder"}, seconds=120, megabytes=4096)
    result.report or result.problem

The code may hang, crash, print, call os._exit or fill the memory: that becomes a sentence.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allformer.auditor.report import Report


@dataclass
class Apart:
    """What came of it: a report, rows of consistency, or a problem in words."""

    report: Report | None = None
    rows: list[dict[str, Any]] | None = None
    problem: str = ""


def run_apart(
    target: str,
    options: dict[str, Any],
    *,
    seconds: float = 300,
    megabytes: int = 8192,
    consistency: bool = False,
    say: Callable[[str], None] | None = None,
) -> Apart:
    """Audit `target` (FILE.py:NAME or a checkpoint's directory) in another process."""
    with tempfile.TemporaryDirectory() as folder:
        answer, wanted = Path(folder) / "answer.json", Path(folder) / "wanted.json"
        progress = Path(folder) / "progress"
        wanted.write_text(
            json.dumps({"target": target, "options": options, "megabytes": megabytes,
                        "consistency": consistency, "answer": str(answer),
                        "progress": str(progress)}),
            encoding="utf-8",
        )  # fmt: skip
        command = [sys.executable, "-m", "allformer.auditor.worker", str(wanted)]
        path = os.pathsep.join([p for p in sys.path if p])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
        with open(Path(folder) / "output", "wb+") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=environment, start_new_session=True,
            )  # fmt: skip
            try:
                code = _wait(process, seconds, progress, say)
            except BaseException:  # Ctrl-C does not reach it: it is in a session of its own
                _kill(process)
                raise
            output.seek(0)
            tail = output.read()[-4000:].decode("utf-8", "replace").strip()
        return _outcome(answer, code, tail, seconds, megabytes, _last(progress))


def _wait(process: Any, seconds: float, progress: Path, say: Any) -> int | None:
    """The exit status, or None if the time was up; the process and its children are gone then."""
    end, shown = time.monotonic() + seconds, ""
    while process.poll() is None:
        if time.monotonic() > end:
            _kill(process)
            return None
        line = _last(progress)
        if say is not None and line and line != shown:
            shown = line
            say(line)
        time.sleep(0.05)
    _kill(process)  # processes that it started and left behind
    return int(process.returncode)


def _kill(process: Any) -> None:
    """The process and all that it started."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last(progress: Path) -> str:
    try:
        return progress.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _outcome(
    answer: Path, code: int | None, tail: str, seconds: float, megabytes: int, last: str
) -> Apart:
    during = f" (during: {last})" if last else ""
    if code is None:
        return Apart(problem=f"it did not end within {seconds:g} s{during}; give --timeout more")
    if answer.is_file():
        found = json.loads(answer.read_text(encoding="utf-8"))
        if "problem" in found:
            return Apart(problem=found["problem"])
        report = Report.from_json(json.dumps(found["report"])) if "report" in found else None
        return Apart(report, found.get("rows"))
    end = tail.splitlines()[-1] if tail else "no output"
    if code < 0:
        name = signal.Signals(-code).name
        why = f"; more than {megabytes} MB of memory?" if name in ("SIGKILL", "SIGABRT") else ""
        return Apart(problem=f"the process was ended by {name}{during}{why}: {end[:200]}")
    return Apart(problem=f"the process left with status {code}{during} and no report: {end[:200]}")
