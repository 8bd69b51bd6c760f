"""An adapter computed into the weights of the model below it, for `convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from allformer.checkpoint.adapter.files import (
    CONFIG,
    WEIGHTS,
    AdapterFiles,
    is_adapter,
    open_adapter,
)
from allformer.checkpoint.hashes import sha256
from allformer.checkpoint.load import load
from allformer.core.model import AnyModel
from allformer.errors import CheckpointError, ConfigError
from allformer.tune.merge import merge

NARROW = (torch.bfloat16, torch.float16)


def check_merge(where: Path, wanted: bool) -> AdapterFiles | None:
    """The adapter in a directory, if it is one and is to be merged; the rest is refused."""
    adapter = where.is_dir() and is_adapter(where)
    if adapter and not wanted:
        raise CheckpointError(
            f"{where} is an adapter, whose model lies elsewhere; merge=True (--merge) writes both "
            f"as one model"
        )
    if wanted and not adapter:
        raise CheckpointError(
            f"{where} is no adapter: it has no {CONFIG}; leave merge (--merge) out"
        )
    return open_adapter(where) if adapter else None


def read_merged(where: Path, base: str | Path | None) -> AnyModel:
    """The model with the adapter in its weights, and no adapter on it."""
    model = load(where, base=base)
    try:
        merge(model, keep=False)
    except ConfigError as error:
        raise CheckpointError(f"{where} cannot be merged: {error}") from None
    return model


def is_narrow(model: nn.Module) -> bool:
    """Whether weights are in half precision, in which a merged matrix is rounded once more."""
    return any(p.dtype in NARROW for p in model.parameters())


def describe_adapter(adapter: AdapterFiles, base: str | Path | None) -> dict[str, Any]:
    """The adapter's files and their hashes, and the model below."""
    files = [adapter.file, *(adapter.directory / name for name in WEIGHTS)]
    return {
        "path": adapter.directory.name,
        "layout": adapter.raw.get("peft_type") or adapter.raw.get("is"),
        "base": str(base or adapter.base),
        "files": {file.name: sha256(file) for file in files if file.is_file()},
    }
