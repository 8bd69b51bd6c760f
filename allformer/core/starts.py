"""Fresh weights, and what decays: every module with tensors says both for itself.

    class Scale(nn.Module):
        def reset_parameters(self): nn.init.ones_(self.weight)     # how it starts
        decays = ("weight",)                                        # what weight decay may shrink

`start(model)` calls them all, in order; a module that says nothing is refused, not guessed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from allformer.errors import ConfigError


@torch.no_grad()
def start(model: nn.Module) -> None:
    """Give each module its fresh weights."""
    for name, module in model.named_modules():
        owns = any(True for _ in module.parameters(recurse=False))
        owns = owns or any(True for _ in module.buffers(recurse=False))
        reset: Any = getattr(module, "reset_parameters", None)
        if owns and reset is None:
            kind = type(module).__name__
            raise ConfigError(
                f"{name or 'the model'} ({kind}) has tensors but no reset_parameters(): nobody "
                f"says how they start; add the method to {kind}"
            )
        if owns:
            reset()


def decay_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Parameters for an optimiser: what modules name in `decays`, and the rest without decay.

    Matrices decay; norms, biases and tables keep their size. A tensor that is shared decays only
    if all who hold it say so. What is frozen is in neither group.
    """
    decays: dict[int, bool] = {}
    every: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            every[id(parameter)] = parameter
            says = name in getattr(module, "decays", ())
            decays[id(parameter)] = says and decays.get(id(parameter), True)
    split: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for key, parameter in every.items():
        split[not decays[key]].append(parameter)
    return [{"params": split[0], "weight_decay": decay}, {"params": split[1], "weight_decay": 0.0}]
