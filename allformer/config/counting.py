"""Counting by formula: what each class of the tree says of itself; `allformer.count` sums it up.

Legend: d model width, H heads, G key/value heads, D head size, f feed width, V vocabulary,
n length (of source and of target alike).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Part:
    """One line of the table: a name, its formula, how many parameters, forward FLOPs per token."""

    name: str
    formula: str
    parameters: int
    flops: int = 0  # per token of its own side
    quadratic: int = 0  # the share of `flops` that grows with the length: attention itself


def plain_line(name: str, parameters: int) -> Part:
    """The line of a class that says no formula."""
    return Part(name, f"{parameters:,}" if parameters else "computed, not learned", parameters)


def dense(inputs: int, outputs: int, bias: bool = True) -> int:
    """The parameters of a linear layer: `dense(512, 2048)`."""
    return inputs * outputs + (outputs if bias else 0)


class Heads(Protocol):
    """What a mixer and a relative position may ask of their attention."""

    @property
    def heads(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def scale(self) -> float | None: ...
    @property
    def dropout(self) -> float: ...
    def size(self, dim: int) -> int: ...


class Layers(Protocol):
    """What a slot may ask of the stack that it stands in, to refuse what makes no sense there."""

    @property
    def dim(self) -> int: ...
    @property
    def blocks(self) -> tuple[Any, ...]: ...
    @property
    def causal(self) -> bool: ...
    @property
    def relative(self) -> Any: ...


class Widths(Protocol):
    """What a source may ask of its stack: the model's width, and that of the embedded tokens."""

    @property
    def dim(self) -> int: ...
    @property
    def width(self) -> int: ...
