"""How a text is read: whole, or segment after segment with a memory of what came before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from allformer.core.inputs import Side


def pieces(
    model: Any, inputs: Mapping[str, Tensor], segment: int | None = None
) -> Iterator[Tensor]:
    """The hidden states of the stack that reads, 1 T dim; with `segment`, so many tokens a time."""
    name = next(iter(model.config.stacks))
    if segment is None:
        yield model.states(**inputs)[name]
        return
    cache = model.new_cache()
    for ids in torch.split(inputs["input_ids"], segment, dim=1):
        side = Side(cache.grid(*ids.shape, None), {"input_ids": ids}, ids)
        yield model.hidden({name: side}, cache=cache)[name]


def read(model: Any, inputs: Mapping[str, Tensor], segment: int | None = None) -> Tensor:
    """All hidden states, nobody learning."""
    with torch.no_grad():
        return torch.cat([*pieces(model, inputs, segment)], dim=1)


def learn(model: Any, inputs: Mapping[str, Tensor], segment: int | None = None) -> None:
    """Forward and backward; gradients stay inside a segment, whose activations are then gone."""
    model.zero_grad(set_to_none=True)
    with torch.enable_grad():
        for hidden in pieces(model, inputs, segment):
            torch.autograd.backward(hidden, torch.ones_like(hidden))
