"""The rooms of a model between two calls: their memory, and above all their graphs, serve again.

A room belongs to one search at a time. What is kept is dropped when the weights it has been
captured with are no longer those of the model, and when it is too much.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any

import torch

from allformer.core.model import Model
from allformer.core.states import Cache, Growing, Ring, State, Static, StaticRing
from allformer.core.walk import tensors, walk
from allformer.generate.room import Room, Size

MOST = 8  # rooms that are kept; the one that was not used for longest gives way
SHARE = 8  # together they may have this part of the device's memory: 1/8


class Rooms:
    """`Rooms.of(model)`: kept with the model, and no part of it: copies and files have none."""

    def __init__(self) -> None:
        self.weights: Any = None
        self.idle: OrderedDict[Size, Room] = OrderedDict()
        self.refused: str | None = None  # why a step of this model cannot be captured

    def __reduce__(self) -> tuple[Any, ...]:
        return Rooms, ()

    @staticmethod
    def of(model: Model[Any]) -> Rooms:
        """Those of a model, none of which was captured with other weights."""
        found = model.__dict__.get("_rooms")
        if found is None:
            found = model.__dict__["_rooms"] = Rooms()
        assert isinstance(found, Rooms)
        weights = _addresses(model)
        if found.weights != weights:
            found.drop()
            found.weights, found.refused = weights, None
        return found

    def find(self, size: Size) -> Room | None:
        """One that is kept, of that size or up to twice as large, for one search."""
        for key in reversed(self.idle):
            if key._replace(room=size.room) == size and size.room <= key.room <= 2 * size.room:
                return self.idle.pop(key)
        return None

    def give(self, room: Room) -> None:
        """A search is done with it."""
        if room.refused is not None:
            self.refused = room.refused
            return
        self.idle.pop(room.size, None)
        self.idle[room.size] = room
        budget = _budget(room.tokens.device)
        while len(self.idle) > MOST or sum(x.bytes for x in self.idle.values()) > budget:
            self.idle.popitem(last=False)

    def drop(self) -> None:
        """Keep nothing; what a search has is its own."""
        self.idle.clear()


def forget(model: Model[Any]) -> None:
    """Give back the memory that is kept for the next call: `forget(model)`."""
    kept = model.__dict__.get("_rooms")
    if kept is not None:
        kept.drop()


def _addresses(model: Model[Any]) -> list[Any]:
    """Where the weights lie, which is what a graph knows of them, and how often they were written:
    kernels may have a bias or a norm in a form of their own. And how products are computed."""
    both = (x for _, part in walk(model) for x in tensors(part))
    return [
        torch.get_float32_matmul_precision(),
        *(
            (x.data_ptr(), x.dtype, x.device, x.shape, 0 if x.is_inference() else x._version)
            for x in both
        ),
    ]


def fits(rooms: Rooms, need: int, device: torch.device) -> bool:
    """Whether there are so many bytes for a room, if need be those of rooms that are kept."""
    if device.type != "cuda":
        return True
    if need > _free(device):
        rooms.drop()
        torch.cuda.empty_cache()
    return need <= _free(device)


def bytes_of(size: Size, cache: Cache) -> int:
    """What keys and values will take in a room that goes on from a cache."""
    total = 0
    for layer in cache.layers:
        if isinstance(layer.own, Growing | Ring | Static):
            keys = layer.own.held()[0]
            token = keys.shape[1] * keys.shape[3] * keys.element_size()
            total += 2 * size.texts * min(size.room, _most(layer.own)) * token
        if layer.cross is not None:
            keys = layer.cross[0]
            total += 2 * size.rows * size.source * keys.shape[2] * keys.element_size()
    return total


def _most(state: State) -> int:
    """Slots that it can use, however many there are."""
    if isinstance(state, Ring):
        return state.size + 1
    return state.size if isinstance(state, StaticRing) else sys.maxsize


def _free(device: torch.device) -> int:
    """Bytes, those among them that torch holds and nobody uses."""
    free, _ = torch.cuda.mem_get_info(device)
    spare: int = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free) + spare


def _budget(device: torch.device) -> float:
    if device.type != "cuda":
        return float("inf")
    memory: int = torch.cuda.get_device_properties(device).total_memory
    return memory / SHARE
