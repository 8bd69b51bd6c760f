"""Attention within chunks of neighbours (Reformer's local layers)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from allformer.config.base import Natural, Positive
from allformer.config.check import refuse
from allformer.config.counting import Heads, Layers
from allformer.config.mixer import Mixer
from allformer.config.rotary import Rotary


class Chunks(Protocol):
    """What is cut into chunks that look at themselves and at some neighbours."""

    @property
    def chunk(self) -> int: ...
    @property
    def before(self) -> int: ...
    @property
    def after(self) -> int: ...


@dataclass(frozen=True)
class Local(Mixer):
    """Rows are cut into chunks of `chunk` tokens, which look at themselves, `before` chunks before
    and `after` behind. The chunks stand in a ring: without a causal mask, the first looks back at
    the last. Rows that are no longer than one chunk look at all of themselves.
    """

    chunk: Positive = 64
    before: Natural = 1
    after: Natural = 0

    def check(self, attention: Heads, stack: Layers) -> None:
        check_chunks(self, stack)
        if not isinstance(stack.relative, Rotary | None):
            refuse(stack, "relative", "adds to scores, of which chunks have few", "try Rotary()")

    def keys(self, n: int, causal: bool) -> float:
        return super().keys(n, causal) if n <= self.chunk else chunk_keys(self, n)

    def state(self, attention: Heads, dim: int, n: int) -> int:
        """Numbers that decoding remembers after n tokens: the last chunks."""
        return min(n, (1 + self.before) * self.chunk - 1) * self.cached(attention, dim)


def chunk_keys(mixer: Chunks, n: int) -> float:
    """Keys that a query meets: whole chunks, hidden ones too."""
    seen = mixer.chunk * (1 + mixer.before + mixer.after)
    return float(min(seen, -(-n // mixer.chunk) * mixer.chunk))


def check_chunks(mixer: Chunks, stack: Layers) -> None:
    """Refuse chunks that a causal mask hides."""
    if stack.causal and mixer.after:
        refuse(mixer, "after", "looks ahead, but the stack is causal", "set it to 0")
