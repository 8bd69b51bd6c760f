"""What must be decided once: choices of a layer that is computed again in the backward pass.

    buckets = decided(lambda: self._hash(qk))

States that are computed again differ in their last bits. A sum does not mind; the choice of a
bucket would. So while a flow records, choices are put on its tape, and taken from it when the layer
runs again: `make` itself draws nothing. Where nobody records, `decided(make)` is `make()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

_tape: Tape | None = None


class Tape:
    """The choices of one layer, in order: first recorded, then played as often as needed."""

    def __init__(self) -> None:
        self.choices: list[Tensor] = []
        self._next: int | None = None  # None: recording

    def take(self, make: Callable[[], Tensor]) -> Tensor:
        """The next choice."""
        if self._next is None:
            self.choices.append(make())
            return self.choices[-1]
        self._next += 1
        return self.choices[self._next - 1]

    @contextmanager
    def running(self, again: bool) -> Iterator[None]:
        """Record what is decided inside, or decide it `again` as it was."""
        global _tape
        before, _tape = _tape, self
        self._next = 0 if again else None
        try:
            yield
        finally:
            _tape = before


def decided(make: Callable[[], Tensor]) -> Tensor:
    """`make()`, or what it was when this layer ran before."""
    return make() if _tape is None else _tape.take(make)
