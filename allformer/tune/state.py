"""An adapter's tensors: all that it has trained, by our paths, without its name.

state = adapter_state(model, "tales")       # "encoder.layers.0.attention.qkv.delta.lora.…"
load_adapter_state(other, "tales", state)   # on which the same method has been applied
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from allformer.errors import CheckpointError
from allformer.tune.tuning import must_be_tuned


def adapter_state(model: Any, name: str = "default") -> dict[str, Tensor]:
    """The tensors themselves, not copies; the model's own where the method trains those (Full)."""
    tuning = must_be_tuned(model)
    adapter = tuning.adapters[tuning.known(name)]
    if adapter.in_place:
        return {path: p.detach() for path, p in model.named_parameters()}
    return {path: p.detach() for path, p in tuning.parameters_of(name)}


@torch.no_grad()
def load_adapter_state(model: Any, name: str, state: Mapping[str, Tensor]) -> None:
    """Copy tensors into an adapter, all or nothing: names and shapes must be its own."""
    there = adapter_state(model, name)
    for path in (*there, *state):
        if path not in state or path not in there:
            which = "lacks" if path not in state else "has"
            raise CheckpointError(
                f"the state of adapter {name!r} {which} {path}: it is of another method, or of "
                f"other targets; apply the one that it was trained with"
            )
        if there[path].shape != state[path].shape:
            raise CheckpointError(
                f"{path} is {tuple(state[path].shape)}, but {tuple(there[path].shape)} here: it "
                f"is of a model of another size, or of another rank"
            )
    for path, tensor in there.items():
        tensor.copy_(state[path])
