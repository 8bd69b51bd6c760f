"""A run that trains an adapter beside frozen weights: how it begins, and what is kept of it.

put_methods(model, recipe.tune, fresh, dtype)     # after the weights are there
save_trained(model, path)                         # the adapter's tensors alone
put_trained(model, read_tensors(path), "where")

A model on which nothing is tuned, or which is tuned whole (`tune: full`), is kept whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allformer.checkpoint.load import load
from allformer.checkpoint.run import is_beside
from allformer.checkpoint.weights import put_weights, save_weights, write_tensors
from allformer.core.model import build
from allformer.core.quantised import is_quantised
from allformer.errors import CheckpointError, ConfigError
from allformer.train.sections.model import CheckpointModel
from allformer.train.sections.tune import TuneRecipe
from allformer.train.weights import refuse_adapter
from allformer.tune.apply import DEFAULT, apply
from allformer.tune.full import Full
from allformer.tune.state import adapter_state, load_adapter_state


def beside(asked: TuneRecipe | None) -> bool:
    """Whether a recipe trains something beside weights that stay as they are."""
    return asked is not None and not any(isinstance(m, Full) for m in asked.methods)


def check_methods(recipe: Any, tree: Any) -> None:
    """Refuse, before any data is read, what cannot be put on the model: a target that no layer has.

    `tree` is the model's with the head that it is going to have; no weights are read.
    """
    asked, model = recipe.tune, recipe.model
    if not isinstance(model, CheckpointModel):
        if beside(asked):
            raise ConfigError(
                f"tune.is={asked.told} stands beside trained weights, and this model starts at "
                f"random; give model: {{checkpoint: DIR}}, or leave tune out"
            )
        return
    refuse_adapter(model)
    trained = load(model.directory, device="meta")
    shape = trained if trained.config == tree else build(tree, device="meta")
    shape.provenance = trained.provenance
    apply(shape, asked.methods, DEFAULT)


def check_bits(model: Any, asked: TuneRecipe | None) -> None:
    """Refuse to train all of a model whose matrices, in few bits, cannot be."""
    if not beside(asked) and is_quantised(model):
        raise ConfigError(
            "the model's matrices are in few bits, and nothing can be learnt in them; train an "
            "adapter beside them (tune: lora), or give a model that is not quantised"
        )


def put_methods(
    model: Any, asked: TuneRecipe, fresh: Sequence[str], dtype: torch.dtype | None = None
) -> None:
    """Put a recipe's methods on a model; what is frozen from then on is held in `dtype`.

    `fresh` are the parameters that came with no checkpoint: they are trained whole, whatever the
    method, for they would be noise otherwise.
    """
    methods = asked.methods
    parts = tuple(dict.fromkeys(name.partition(".")[0] for name in fresh))
    if parts and beside(asked):
        given = next((m.whole for m in methods if m.whole is not None), None)
        if given is not None:
            _check_fresh(fresh, given)
        else:
            methods = (replace(methods[0], whole=parts), *methods[1:])
    apply(model, methods, DEFAULT)
    if dtype is not None:
        narrow(model, dtype)


def _check_fresh(fresh: Sequence[str], whole: Sequence[str]) -> None:
    for name in fresh:
        if not any(name == part or name.startswith(f"{part}.") for part in whole):
            part = name.partition(".")[0]
            raise ConfigError(
                f"tune.whole={list(whole)} leaves {name} as it started, at random: the checkpoint "
                f"has none; add {part!r} to it, or leave whole out"
            )


@torch.no_grad()
def narrow(model: Any, dtype: torch.dtype) -> None:
    """Frozen matrices in the dtype that is computed in: they would be rounded at each use."""
    for parameter in model.parameters():
        frozen = not parameter.requires_grad and parameter.is_floating_point()
        if frozen and parameter.ndim > 1:
            parameter.data = parameter.data.to(dtype)


def save_trained(model: Any, path: Path) -> None:
    """Write what is trained: an adapter's tensors, or all weights."""
    if is_beside(model):
        write_tensors(adapter_state(model, DEFAULT), path)
    else:
        save_weights(model, path)


def put_trained(model: Any, tensors: dict[str, Tensor], where: str) -> None:
    """Copy what `save_trained` wrote into a model with the same methods."""
    if not is_beside(model):
        put_weights(model, tensors, where)
        return
    try:
        load_adapter_state(model, DEFAULT, tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {error}") from None
