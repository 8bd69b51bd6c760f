"""What is done to a batch on the device before its step, as a graph.

    stage = Stage(self.prepared)         # prepared(batch, drawn) → batch: kernels alone
    batch = stage(batch, self.drawn(batch))

Augmentation is some two hundred small kernels: to launch them one by one takes longer than a small
model's whole step, which is one graph. What is left to chance is drawn on the host, goes to the
device in one parcel, and is the graph's input beside the batch. Batches of another form, and what
cannot be captured, go the plain way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Generic

import torch
from torch import Tensor

from allformer.core.graph import copy_into
from allformer.generate.graph import CAPTURES, Graph
from allformer.train.batch import B, mapped, tensors

MOST = 4  # forms of batches that have a graph: the usual one, and what is left of an epoch
_ALIGNED = 8  # bytes: the widest numbers that chance draws


class Stage(Generic[B]):
    """`call(batch, drawn)` gives a batch of the same fields; what it launches depends on nothing
    but the sizes of both and the batch's numbers (`tokens`)."""

    def __init__(self, call: Callable[[B, Any], B]) -> None:
        self.call = call
        self._stills: dict[Hashable, _Still[B]] = {}

    def __call__(self, batch: B, drawn: Any) -> B:
        device = tensors(batch)[0].device
        if device.type not in CAPTURES:
            return self.call(batch, drawn)
        parcel, form = _packed(tensors(drawn), device), _form(batch, drawn)
        still = self._stills.get(form)
        if still is None:
            if len(self._stills) >= MOST:
                return self.call(batch, _unpacked(parcel.to(device, non_blocking=True), drawn))
            still = self._stills[form] = _Still(self.call, batch, drawn, parcel)
        return still(batch, parcel)


class _Still(Generic[B]):
    """Batches of one form, in tensors that stay where they are."""

    def __init__(self, call: Callable[[B, Any], B], batch: B, drawn: Any, parcel: Tensor) -> None:
        device = tensors(batch)[0].device
        self.batch = mapped(batch, torch.clone)
        self.parcel = torch.empty_like(parcel, device=device)
        mine = _unpacked(self.parcel, drawn)
        read: Any = partial(call, self.batch, mine)
        self.graph = Graph(read, device, lambda: None)

    def __call__(self, batch: B, parcel: Tensor) -> B:
        copy_into(tensors(self.batch), tensors(batch))
        self.parcel.copy_(parcel, non_blocking=True)
        # What it gives stands until the next call; a step may be of several batches.
        given: Any = self.graph()
        found: Any = mapped(given, torch.clone)
        same: B = found._replace(key=batch.key) if "key" in found._fields else found  # type: ignore[attr-defined]
        return same


def _form(batch: Any, drawn: Any) -> Hashable:
    """What the work depends on."""
    sizes = tuple((x.shape, x.dtype) for x in (*tensors(batch), *tensors(drawn)))
    return sizes, batch.tokens


def _packed(parts: list[Tensor], device: torch.device) -> Tensor:
    """Tensors of the host end to end, as bytes: one way to the device for all, and none that the
    host waits for."""
    starts, end = _starts(parts)
    parcel = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
    for part, start in zip(parts, starts, strict=True):
        flat = part.contiguous().view(-1).view(torch.uint8)
        parcel[start : start + len(flat)].copy_(flat)
    return parcel


def _unpacked(parcel: Tensor, drawn: Any) -> Any:
    """As `drawn` is, in views of the parcel."""
    starts = iter(_starts(tensors(drawn))[0])

    def view(x: Tensor) -> Tensor:
        start = next(starts)
        part = parcel[start : start + x.numel() * x.element_size()]
        return part.view(x.dtype).view(x.shape)

    return mapped(drawn, view)


def _starts(parts: list[Tensor]) -> tuple[list[int], int]:
    """Where each begins, in bytes, and where all end."""
    starts, end = [], 0
    for part in parts:
        starts.append(end)
        end += -(-part.numel() * part.element_size() // _ALIGNED) * _ALIGNED
    return starts, end
