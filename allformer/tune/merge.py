"""Compute an adapter into the weights, and take it out again.

    tune.merge(model)                   # runs as a model without adapters, fast paths included
    tune.unmerge(model)                 # bit by bit as before: the old matrices were kept
    tune.merge(model, keep=False)       # for good: the adapter is gone, and its memory too
    with tune.merged(model): …          # for a while, to write texts with

In fp64 a merged model says what it said before to 1e-10. In half precision the merged matrix is
rounded once more: to 8 bits of mantissa in bf16, so that a change smaller than 1/512 of a weight
may be lost. A layer in few bits is made whole, in the dtype of the other weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from allformer.core.linear import Fused, Linear
from allformer.core.quantised import AnyQuantised, widened
from allformer.errors import ConfigError
from allformer.tune.apply import check_free, forget
from allformer.tune.deltas import Change, Deltas
from allformer.tune.slot import Slot
from allformer.tune.tuning import Kept, Tuning, freeze, must_be_tuned


@torch.inference_mode(False)  # inside such a block too: parameters are no inference tensors
@torch.no_grad()
def merge(model: Any, *, keep: bool = True) -> None:
    """Compute what acts into the weights: `tune.switch(model, "tales")`, then `merge(model)`.

    With `keep` the old matrices stay beside the new ones, for `unmerge`; without, every adapter is
    taken off and the model is a plain one, trained as it was before the first came.
    """
    tuning = must_be_tuned(model)
    check_free(tuning)
    _check(tuning)
    acting = {place: slot for place, slot in tuning.slots.items() if slot.acts}
    for (path, _), slot in acting.items():
        tuning.merged[path] = _fold(model, path, slot, tuning)
    for path, attribute in acting:
        setattr(model.get_submodule(path), attribute, None)
    tuning.is_merged = True
    tuning.tell(model)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    if not keep:
        forget(model, tuning)


@torch.no_grad()
def unmerge(model: Any) -> None:
    """Put the old matrices back, exactly as they were; the adapters act, and train, again."""
    tuning = must_be_tuned(model)
    if not tuning.is_merged:
        raise ConfigError("nothing is merged into this model; tune.merge(model) does it")
    for path, kept in tuning.merged.items():
        if kept.layer is not None:
            _replace(model, path, kept.layer)
            continue
        layer = model.get_submodule(path)
        for name, old in kept.tensors.items():
            _put(getattr(layer, name), old)
    tuning.merged, tuning.is_merged = {}, False
    tuning.choose(model, tuning.selection)
    freeze(model, tuning)


@contextmanager
def merged(model: Any) -> Iterator[None]:
    """For a while what acts is in the weights: `with merged(model): model.generate(ids)`."""
    merge(model)
    try:
        yield
    finally:
        unmerge(model)


def _check(tuning: Tuning) -> None:
    """What cannot be merged is refused before anything is."""
    if tuning.selection.rows is not None:
        raise ConfigError(
            "each row has its own adapters, and a matrix is one for all; switch to one of them"
        )
    for (path, _), slot in tuning.slots.items():
        odd = next((x for x in slot.of(tuning.selection.names) if not isinstance(x, Change)), None)
        if slot.acts and (odd is not None or not isinstance(slot, Deltas)):
            kind = type(slot if odd is None else odd).__name__
            raise ConfigError(
                f"{path} has a {kind}, which is no change of a matrix and cannot be merged; keep "
                f"the adapter beside the model"
            )


def _fold(model: nn.Module, path: str, slot: Slot, tuning: Tuning) -> Kept:
    """Change one layer's weights; what they were before."""
    layer: Any = model.get_submodule(path)
    kept = Kept()
    if isinstance(layer, AnyQuantised):
        kept = Kept(layer=layer)
        layer = widened(layer, _dtype(model))
        _replace(model, path, layer)
    else:
        own = {"weight": layer.weight, "bias": layer.bias}
        kept = Kept(tensors={name: p.data for name, p in own.items() if p is not None})
    weight, bias = layer.weight.data, layer.addend(layer.weight.dtype)
    for change in slot.of(tuning.selection.names):
        assert isinstance(change, Change)
        weight, bias = change.merged(weight, bias)
    _put(layer.weight, weight)
    if layer.bias is not None and bias is not None:
        _put(layer.bias, _own_rows(layer, bias).to(layer.bias.dtype))
    return kept


def _put(parameter: Tensor, data: Tensor) -> None:
    """Other numbers in its place. They may come to lie where those of an earlier merge lay: that it
    was written is what tells them apart, for who keeps something made of the weights."""
    parameter.data = data
    increment_version(parameter)


def _own_rows(layer: Linear, bias: Tensor) -> Tensor:
    """Of one number for each output those that a layer's bias has rows for."""
    if not isinstance(layer, Fused) or len(layer.biased) == len(layer.parts):
        return bias.clone()
    return torch.cat([bias[layer.rows(name)] for name in layer.biased])


def _replace(model: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, layer)


def _dtype(model: nn.Module) -> torch.dtype:
    """What most of a model's own weights are in; fp32 where it has none."""
    sizes: dict[torch.dtype, int] = {}
    for name, parameter in model.named_parameters():
        if ".delta." not in name and parameter.is_floating_point():
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    return max(sizes, key=lambda kind: sizes[kind]) if sizes else torch.float32
