"""A model's parameters as one safetensors file: shared tensors once, every key accounted for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from allformer.checkpoint.shards import Outgoing, write_file
from allformer.checkpoint.transfer import own_state
from allformer.errors import CheckpointError


def save_weights(model: nn.Module, path: Path) -> None:
    """Write parameters and stored buffers; the file appears whole or not at all."""
    write_tensors({name: x.detach() for name, x in own_state(model).items()}, path)


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write named tensors to `path` through a temporary neighbour."""
    out = [Outgoing(name, x.contiguous(), tuple(x.shape), x.dtype) for name, x in tensors.items()]
    part = path.with_name(path.name + ".part")
    try:
        write_file(part, out)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read named tensors; a missing or damaged file is named."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise CheckpointError(f"{path} is not there; give the directory that training wrote")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); copy it again, or train again"
        ) from None


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill a model from `save_weights`' file; keys left over on either side are an error."""
    put_weights(model, read_tensors(path), str(path))


@torch.no_grad()
def put_weights(model: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Copy tensors into a model's parameters and buffers by name, all or nothing."""
    parameters = own_state(model)
    missing = sorted(parameters.keys() - tensors.keys())
    unexpected = sorted(tensors.keys() - parameters.keys())
    wrong = [
        f"{name} has {tuple(tensors[name].shape)}, the model {tuple(parameters[name].shape)}"
        for name in parameters
        if name in tensors and parameters[name].shape != tensors[name].shape
    ]
    if missing or unexpected or wrong:
        said = [
            f"{label}: {', '.join(names[:5])}{' …' if names[5:] else ''}"
            for label, names in (("missing", missing), ("unexpected", unexpected), ("shape", wrong))
            if names
        ]
        raise CheckpointError(
            f"{where} does not fit the model ({'; '.join(said)}); use the config it was saved with"
        )
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])


def average(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights, summed in fp64 (paper, section 6.1)."""
    total: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for path in paths:
        tensors = read_tensors(path)
        if total and tensors.keys() != total.keys():
            raise CheckpointError(
                f"{path} has other weights than {paths[0]}; average checkpoints of one run"
            )
        for name, x in tensors.items():
            dtypes[name] = x.dtype
            total[name] = x.double() + total[name] if name in total else x.double()
    return {name: (x / len(paths)).to(dtypes[name]) for name, x in total.items()}
