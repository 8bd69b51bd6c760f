"""A model's parameters as one safetensors file: shared tensors once, every key accounted for."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn

from allformer.checkpoint.account import account, renamed
from allformer.checkpoint.files import TensorFiles, in_memory, open_tensors
from allformer.checkpoint.shards import PART, Outgoing, write_file
from allformer.checkpoint.stored import read_whole
from allformer.checkpoint.transfer import OLD_NAMES, copy_in, own_map, own_state


def save_weights(model: nn.Module, path: Path) -> None:
    """Write parameters and stored buffers; the file appears whole or not at all."""
    write_tensors({name: x.detach() for name, x in own_state(model).items()}, path)


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write named tensors to `path` through a temporary neighbour."""
    part = path.with_name(path.name + PART)
    try:
        write_file(part, [Outgoing(n, x, tuple(x.shape), x.dtype) for n, x in tensors.items()])
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read named tensors; a missing or damaged file is named."""
    found = renamed(open_tensors(path), OLD_NAMES)
    return {name: read_whole(stored) for name, stored in found.items()}


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill a model from `save_weights`' file; keys left over on either side are an error."""
    _put(model, open_tensors(path))


def put_weights(model: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Copy tensors into a model's parameters and buffers by name, all or nothing."""
    _put(model, in_memory(tensors, where))


@torch.no_grad()
def _put(model: nn.Module, files: TensorFiles) -> None:
    """Into the tensors that the model has, in their dtypes: an optimiser may hold them."""
    state = own_state(model)
    plan = account(state, own_map(model), files)
    for name, tensor in state.items():
        copy_in(plan.sources[name][0], tensor)
