"""What every reward is: a section of the recipe, and the judge that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from allformer.errors import ConfigError
from allformer.train.sections.section import Section

COMMAND = "command:"  # before a command, in a reward that is one text


@dataclass(frozen=True)
class Answered:
    """An answer, and all that it is an answer to."""

    prompt: str  # the question, or the text that goes on
    answer: str  # without special tokens
    messages: list[dict[str, Any]] = field(default_factory=list)  # before it; of a text none
    record: Mapping[str, Any] = field(default_factory=dict)  # of the data, as it stands there
    ids: tuple[int, ...] = ()  # of the answer, with the token that ends it
    ended: bool = True  # False: cut off where there was no more room


Judge = Callable[[Sequence[Answered]], Any]  # numbers, one for each: the more the better


@dataclass(frozen=True)
class Reward(Section, section="objective.rewards", key="kind"):
    """`weight`: how much it counts beside others. `name`: what its figures are called."""

    needs: ClassVar[str] = ""  # the field that it cannot do without

    weight: float = 1.0
    name: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.needs and not getattr(self, self.needs):
            self.refuse(self.needs, "is empty", f"a reward of kind {self.named} needs it")

    @property
    def told(self) -> str:
        """What it is, where something is wrong with it."""
        return f"objective.rewards: {self.named} {getattr(self, self.needs)!r}"

    @property
    def called(self) -> str:
        """What it is called by itself."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuse what cannot be found, before anything is read or trained."""

    def open(self, device: torch.device) -> Judge:
        """The judge; a model is on its device."""
        raise NotImplementedError


def read_rewards(given: Any, where: str = "objective.rewards") -> tuple[Reward, ...]:
    """`read_rewards(["words.py:used", {"kind": "command", "run": "./judge"}])`."""
    if isinstance(given, str | Mapping):
        given = [given]
    if not isinstance(given, Sequence):
        raise ConfigError(f"{where} is {given!r}; it must be a list of rewards")
    return tuple(_reward(one, f"{where}[{i}]") for i, one in enumerate(given))


def _reward(given: Any, where: str) -> Reward:
    if isinstance(given, Reward):
        return given
    return Reward.read(_in_words(given, where) if isinstance(given, str) else given, where)


def anchored(said: str) -> str:
    """A reward that is one text, with a path that holds from everywhere: `anchored("a.py:f")`."""
    before, colon, name = said.rpartition(":")
    if said.startswith(COMMAND):
        return said
    if Path(said).is_dir():
        return str(Path(said).resolve())
    if colon and (before.endswith(".py") or Path(before).is_dir()):
        return f"{Path(before).resolve()}:{name}"
    return said


def _in_words(said: str, where: str) -> dict[str, Any]:
    """A reward that is one text: a command, a directory (with a label), or a function."""
    before, colon, label = said.rpartition(":")
    if said.startswith(COMMAND):
        return {"kind": "command", "run": said.removeprefix(COMMAND).strip()}
    if Path(said).is_dir():
        return {"kind": "model", "path": said}
    if colon and Path(before).is_dir():
        return {"kind": "model", "path": before, "label": label}
    if not colon or not before or not label:
        raise ConfigError(
            f"{where}={said!r} is no reward; try file.py:function, module:function, a run's "
            f"directory (DIR:label of a classifier), or {COMMAND} and a command"
        )
    return {"kind": "function", "call": said}
