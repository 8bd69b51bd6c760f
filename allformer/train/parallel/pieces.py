"""Which pieces of the ordinary tensors a rank holds: what checkpoints and exports are made of.

Whatever the plan is, a rank's tensor is some rectangles of the tensor that a single process would
have. `Held` names them, so that a checkpoint is one of ordinary tensors under ordinary names, and
any other plan can read its own rectangles from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from allformer.train.parallel.tensor import Cut


@dataclass(frozen=True)
class Piece:
    """A rectangle of a whole tensor: where it begins, and its numbers, a view of the rank's own."""

    offsets: tuple[int, ...]
    numbers: Tensor


@dataclass(frozen=True)
class Held:
    """All that a rank holds of one tensor of `shape`."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    def copy(self) -> Held:
        """The same on the host, in memory of its own: training may go on meanwhile."""
        pieces = (Piece(p.offsets, p.numbers.detach().to("cpu", copy=True)) for p in self.pieces)
        return Held(self.shape, tuple(pieces))

    @torch.no_grad()
    def put(self, whole: Tensor) -> None:
        """Take one's own from a whole tensor."""
        for piece in self.pieces:
            piece.numbers.copy_(_window(whole, piece))

    @torch.no_grad()
    def into(self, whole: Tensor) -> None:
        """Lay one's own into a whole tensor."""
        for piece in self.pieces:
            _window(whole, piece).copy_(piece.numbers)


def _window(whole: Tensor, piece: Piece) -> Tensor:
    for dim, (start, size) in enumerate(zip(piece.offsets, piece.numbers.shape, strict=True)):
        whole = whole.narrow(dim, start, size)
    return whole


def local(tensor: Tensor) -> Tensor:
    """What lies here of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def held(tensor: Tensor, cut: Cut | None = None, like: Tensor | None = None) -> Held:
    """The pieces of a parameter, or of a tensor of its shape (`like` it) in an optimiser's state.

    `cut` is what tensor parallel left here of it; a DTensor's rows were dealt out after that.
    """
    shaped = tensor if like is None else like
    here = local(tensor).detach()
    if not shaped.ndim:
        return Held((), (Piece((), here),))
    if cut is None:
        cut = Cut(tuple(shaped.shape), 0, ((0, shaped.shape[0]),))
    whole, spans, dim = cut.shape, cut.spans, cut.dim
    first = _first_row(shaped)
    pieces = []
    start = 0  # of this span in the rank's own part
    for begin, end in spans:
        if dim == 0:
            a, b = max(start, first), min(start + end - begin, first + here.shape[0])
            rows, offset = here[a - first : b - first], (begin + a - start,)
            if b > a:
                pieces.append(Piece((*offset, *[0] * (here.ndim - 1)), rows))
        elif here.shape[0]:
            part = here.narrow(dim, start, end - begin)
            offsets = [first, *[0] * (here.ndim - 1)]
            offsets[dim] = begin
            pieces.append(Piece(tuple(offsets), part))
        start += end - begin
    return Held(whole, tuple(pieces))


def _first_row(tensor: Any) -> int:
    """Where the rows of this rank begin in what the ranks of a shard group have together."""
    if not isinstance(tensor, DTensor):
        return 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return int(offsets[0])


def numel(pieces: Sequence[Held]) -> int:
    """Numbers that lie here."""
    return sum(p.numbers.numel() for h in pieces for p in h.pieces)
