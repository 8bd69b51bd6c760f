"""Norms that are written out: a reduction over the features, and a division by what it gave."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from allformer.auditor.watch.operators import Operator

REDUCTIONS = frozenset(
    {"mean", "sum", "var", "std", "var_mean", "std_mean", "linalg_vector_norm", "norm"}
)
LAST = 4  # a mean, what is left of it, its squares, and what lies between


@dataclass
class Division:
    """B T D divided by one number for each position, and what was reduced shortly before."""

    where: str
    reduced: list[Tensor]  # B T D each
    by: Tensor  # B T 1


class Moments:
    """`moments.look(op, where)` for every operator; `moments.divisions` is what was found."""

    def __init__(self) -> None:
        self.divisions: list[Division] = []
        self._reduced: list[Tensor] = []

    def look(self, op: Operator, where: str) -> None:
        """Write down reductions over the last axis, and divisions that follow them."""
        if op.name in REDUCTIONS:
            given = op.tensors[0]
            out = op.out if isinstance(op.out, Tensor) else op.out[0]
            if given.ndim == 3 and tuple(out.shape) in (given.shape[:2], (*given.shape[:2], 1)):
                self._reduced = [*self._reduced, given][-LAST:]
        elif op.name in ("mul", "div") and len(op.tensors) == 2 and self._reduced:
            one, other = op.tensors
            if other.ndim != 3 or other.shape[-1] != 1:
                one, other = other, one
                if op.name == "div":
                    return
            alike = [x for x in self._reduced if x.shape == one.shape]
            per_position = other.ndim == 3 and tuple(other.shape) == (*one.shape[:2], 1)
            if one.ndim == 3 and one.shape[-1] > 1 and per_position and alike:
                by = other if op.name == "div" else 1 / other
                self.divisions.append(Division(where, alike, by))
