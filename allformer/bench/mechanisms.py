"""The mechanisms that are compared, by the names of the command line.

read_mechanisms("window:256,linear")     # a number is the mechanism's own size
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from allformer import config
from allformer.config.remix import remix
from allformer.errors import ConfigError, did_you_mean

HASHES = 4  # of Reformer: fewer miss too much (Kitaev et al., table 2)
RANDOM = 3  # blocks of BigBird, as published

Make = Callable[[int, int, bool, int], config.Mixer]  # size, length, causal or not, layer

# name: what its size is and how large it is usually, and the mixer of a layer
MECHANISMS: dict[str, tuple[str, int, Make]] = {
    "window": ("reach", 256, lambda size, n, causal, i: config.Window(size, 0 if causal else size)),
    "longformer": ("reach", 256, lambda size, n, causal, i: config.GlobalWindow(size, size)),
    "bigbird": (
        "block", 64, lambda size, n, causal, i: config.BlockSparse(size, RANDOM, i, always=True),
    ),
    "reformer": ("chunk", 64, lambda size, n, causal, i: config.LSH(size, HASHES, seed=i)),
    "linformer": ("rank", 256, lambda size, n, causal, i: config.LowRank(size, n)),
    "performer": ("features", 256, lambda size, n, causal, i: config.Features("favor", size)),
    "linear": ("", 0, lambda size, n, causal, i: config.Features("elu")),
    "xl": ("segment", 512, lambda size, n, causal, i: config.Full()),
}  # fmt: skip


@dataclass(frozen=True)
class Mechanism:
    """One of `MECHANISMS`, of a size; `full` has none."""

    name: str
    size: int | None = None

    def tree(self, model: config.Model, length: int) -> config.Model:
        """The model's tree with this mechanism where it reads, and positions for `length` tokens.

        Nothing is dropped out of attention: not every mechanism has weights to drop.
        """
        name, stack = next(iter(model.stacks.items()))
        changed: dict[str, Any] = {"blocks": tuple(map(_undropped, stack.blocks))}
        position = stack.position
        if isinstance(position, config.Learned) and position.length < length:
            changed["position"] = replace(position, length=length)
        if self.name == "xl":
            changed |= {"position": None, "relative": config.XLRelative(memory=self.own_size)}
        whole: dict[str, Any] = {name: replace(stack, **changed)}
        model = replace(model, **whole)
        if self.name == "full":
            return remix(model, config.Full(), name)
        make = MECHANISMS[self.name][2]
        return remix(model, lambda i: make(self.own_size, length, stack.causal, i), name)

    @property
    def own_size(self) -> int:
        """As given, else the usual one."""
        return MECHANISMS[self.name][1] if self.size is None else self.size

    @property
    def segment(self) -> int | None:
        """How many tokens are read at a time, if not all."""
        return self.own_size if self.name == "xl" else None

    def __str__(self) -> str:
        return self.name if self.size is None else f"{self.name}:{self.size}"


def read_mechanisms(text: str | None) -> list[Mechanism]:
    """`read_mechanisms("window:128,full")`; None: all of them."""
    if text is None:
        return [Mechanism(name) for name in ("full", *MECHANISMS)]
    return [_read(word.strip()) for word in text.split(",") if word.strip()]


def _undropped(block: config.Block) -> config.Block:
    return replace(block, attention=replace(block.attention, dropout=0.0))


def _read(word: str) -> Mechanism:
    name, _, size = word.partition(":")
    known = ("full", *MECHANISMS)
    if name not in known:
        raise ConfigError(
            f"mechanism {name!r} is not known; {did_you_mean(name, known)}there are "
            f"{', '.join(known)}"
        )
    if size and not (name in MECHANISMS and MECHANISMS[name][0]):
        raise ConfigError(f"{word}: {name} has no size; leave it out")
    if size and (not size.isdecimal() or not int(size)):
        what, usual, _ = MECHANISMS[name]
        raise ConfigError(f"{word}: the {what} must be a whole number from 1; try {name}:{usual}")
    return Mechanism(name, int(size) if size else None)
