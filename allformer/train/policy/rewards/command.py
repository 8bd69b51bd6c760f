"""A reward that is a command: it reads answers as JSON lines and writes a number for each.

    {"prompt": "…", "answer": "…", "messages": […], "ended": true, "record": {…}}   → 0.75

It is started for each batch of answers, without a shell, and has so many seconds.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import torch

from allformer.errors import ConfigError, TrainingError
from allformer.train.policy.rewards.reward import Answered, Judge, Reward
from allformer.train.sections.section import positive


@dataclass(frozen=True)
class CommandReward(Reward, named="command"):
    """`run`: the command with its arguments. `timeout`: seconds that it has for a batch."""

    needs: ClassVar[str] = "run"

    run: str = ""
    timeout: Annotated[float, positive("60")] = 60.0

    @property
    def called(self) -> str:
        return Path(self._words()[0]).stem

    def check(self) -> None:
        """There is such a program."""
        first = self._words()[0]
        if shutil.which(first) is None:
            raise ConfigError(f"{self.told}: there is no program {first!r}; give its path")

    def open(self, device: torch.device) -> Judge:
        return self._judge

    def _words(self) -> list[str]:
        try:
            words = shlex.split(self.run)
        except ValueError as error:
            raise ConfigError(f"{self.told} cannot be read ({error}); mend its quotes") from None
        if not words:
            raise ConfigError(f"{self.told} is empty; give a command")
        return words

    def _judge(self, answered: Sequence[Answered]) -> list[float]:
        lines = "".join(json.dumps(_line(x), ensure_ascii=False) + "\n" for x in answered)
        given = self._ran(lines).split("\n")
        return [self._number(x, i) for i, x in enumerate(x for x in given if x.strip())]

    def _ran(self, lines: str) -> str:
        """What it wrote; one that fails, or takes too long, is told with its last words."""
        try:
            process = subprocess.Popen(
                self._words(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, encoding="utf-8", errors="replace",
                start_new_session=True,  # Ctrl-C is ours: the step is finished first
            )  # fmt: skip
        except OSError as error:
            raise TrainingError(f"{self.told} cannot be started ({error}); mend it") from None
        try:
            out, errors = process.communicate(lines, timeout=self.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # what it has started too
            process.communicate()
            raise TrainingError(
                f"{self.told} took longer than timeout={self.timeout:g} seconds; raise it, or make "
                f"the command faster, then --resume"
            ) from None
        if process.returncode:
            said = errors.strip().splitlines()
            raise TrainingError(
                f"{self.told} ended with status {process.returncode}"
                + (f": {said[-1]}" if said else " and said nothing")
                + "; mend it, then --resume"
            )
        return out

    def _number(self, line: str, place: int) -> float:
        try:
            return float(line)
        except ValueError:
            raise TrainingError(
                f"{self.told} wrote {line[:60]!r} as line {place + 1}; it must write a number for "
                f"each answer, and nothing else"
            ) from None


def _line(each: Answered) -> dict[str, object]:
    return {
        "prompt": each.prompt, "answer": each.answer, "messages": each.messages,
        "ended": each.ended, "record": dict(each.record),
    }  # fmt: skip
