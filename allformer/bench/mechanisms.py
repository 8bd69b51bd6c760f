"""The mechanisms that are compared, by the names of the command line.

read_mechanisms("window:256,linear")     # a number is the mechanism's own size
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from allformer import config
from allformer.errors import ConfigError, did_you_mean

Make = Callable[[int, int, bool], config.Mixer]  # its size, the length, whether it is causal

# name: the size that is usual, how the mixer is made
MECHANISMS: dict[str, tuple[int, Make]] = {
    "window": (256, lambda size, length, causal: config.Window(size, 0 if causal else size)),
}


@dataclass(frozen=True)
class Mechanism:
    """One of `MECHANISMS`, of a size; `full` has none."""

    name: str
    size: int | None

    def mixer(self, length: int, causal: bool) -> config.Mixer:
        """What stands in the slot, for texts of `length` tokens."""
        if self.name == "full":
            return config.Full()
        usual, make = MECHANISMS[self.name]
        return make(usual if self.size is None else self.size, length, causal)

    def __str__(self) -> str:
        return self.name if self.size is None else f"{self.name}:{self.size}"


def read_mechanisms(text: str | None) -> list[Mechanism]:
    """`read_mechanisms("window:128,full")`; None: all of them."""
    if text is None:
        return [Mechanism(name, None) for name in ("full", *MECHANISMS)]
    return [_read(word.strip()) for word in text.split(",") if word.strip()]


def _read(word: str) -> Mechanism:
    name, _, size = word.partition(":")
    known = ("full", *MECHANISMS)
    if name not in known:
        raise ConfigError(
            f"mechanism {name!r} is not known; {did_you_mean(name, known)}there are "
            f"{', '.join(known)}"
        )
    if size and (not size.isdecimal() or not int(size)):
        raise ConfigError(f"{word}: the size must be a whole number of at least 1; try {name}:64")
    return Mechanism(name, int(size) if size else None)
