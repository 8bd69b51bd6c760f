"""The states of a model without the work of its head."""

from __future__ import annotations

import copy

from torch import Tensor

from allformer.core.model import AnyModel, EncoderDecoderModel


def without_head(model: AnyModel) -> AnyModel:
    """The same weights, without head and pooler: nothing is copied, `model` stays as it is."""
    bare = copy.copy(model)
    bare._modules = {**model._modules, "head": None}
    if "pool" in bare._modules:
        bare._modules["pool"] = None
    return bare


def states(model: AnyModel, inputs: dict[str, Tensor]) -> Tensor:
    """The last hidden states of the stack that reads the text, B T dim."""
    if isinstance(model, EncoderDecoderModel):
        return model.encode(inputs["input_ids"], inputs["attention_mask"])
    hidden: Tensor = without_head(model)(**inputs).last_hidden_state
    return hidden
