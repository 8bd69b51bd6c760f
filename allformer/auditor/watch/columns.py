"""For each element of a tensor, the column of the linear map's output that it came from."""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.auditor.watch.operators import Operator
from allformer.auditor.watch.tags import Tags


def fresh(out: Tensor, axis: int) -> Tensor:
    """The columns of an output whose features run along `axis`."""
    shape = [1] * out.ndim
    shape[axis] = out.shape[axis]
    return torch.arange(out.shape[axis]).view(shape).expand(out.shape)


def moved(columns: Tensor | None, op: Operator, tags: Tags) -> Tensor | None:
    """The same after an operator that only moves elements."""
    if columns is None or op.name == "_to_copy":
        return columns
    new: Tensor | None
    try:
        if op.name in ("cat", "stack"):
            parts = [tags.of(t).columns for t in op.args[0]]
            new = None if any(p is None for p in parts) else op.func(parts, *op.args[1:])
        elif op.name in ("view", "_unsafe_view", "reshape"):
            new = columns.reshape(op.args[1])
        else:
            new = op.func(columns, *op.args[1:])
    except (RuntimeError, TypeError, IndexError):
        return None
    return new


def paired(columns: Tensor | None, op: Operator) -> Tensor | None:
    """The same when pairs of reals become complex numbers, or these pairs again."""
    if columns is None:
        return None
    if op.name == "view_as_complex":
        return columns[..., 0]
    return columns[..., None].expand(op.out.shape)


def expanded(columns: Tensor | None, shape: torch.Size) -> Tensor | None:
    """The same for a shape to which the tensor was broadcast."""
    try:
        return None if columns is None else columns.expand(shape)
    except RuntimeError:
        return None
