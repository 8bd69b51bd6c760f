# mypy: disable-error-code="no-untyped-call"
"""One operator of a pass: its name, what went in and what came out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

# Operators that only move elements.
MOVES = frozenset([
    "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "clone", "contiguous",
    "unsqueeze", "squeeze", "select", "slice", "split", "split_with_sizes", "unbind", "chunk",
    "cat", "stack", "index_select", "repeat", "flip", "roll", "alias", "detach", "narrow",
    "as_strided", "unfold", "index", "gather", "movedim",
])  # fmt: skip
LISTS = (tuple, list)
MATMULS = frozenset({"mm", "bmm", "addmm", "baddbmm"})


def name_of(func: Any) -> str:
    """`aten.add_.Tensor` → "add": in place or not is one."""
    return str(func.__name__).split(".")[0].rstrip("_")


@dataclass
class Operator:
    """A call of an operator; matmuls have numbers, the others that of the next matmul."""

    func: Any
    args: Any
    kwargs: dict[str, Any]
    number: int
    out: Any

    @cached_property
    def name(self) -> str:
        """Its name."""
        return name_of(self.func)

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors among its arguments, also those in lists."""
        inside = [b for a in self.args for b in (a if isinstance(a, LISTS) else [a])]
        return [a for a in inside if isinstance(a, Tensor)]

    @property
    def added(self) -> Tensor | None:
        """What a matmul adds to the product."""
        return self.args[0] if self.name in ("addmm", "baddbmm") else None

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        """The two sides of a matmul."""
        left, right = self.args[1:3] if self.added is not None else self.args[:2]
        return left, right

    @property
    def elementwise(self) -> bool:
        """Whether the output has the shape of the inputs, or of one of them."""
        if any(t.shape == self.out.shape for t in self.tensors):
            return True
        try:
            return bool(torch.broadcast_shapes(*(t.shape for t in self.tensors)) == self.out.shape)
        except RuntimeError:
            return False
