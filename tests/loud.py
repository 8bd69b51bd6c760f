"""Loud weights: a fixture in which a small mistake makes a large difference.

With the default initialisation a tiny model is nearly linear, its norms are the identity and its
biases are zero: a wrong activation, a swapped norm or a forgotten bias hides below 1e-5.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


@torch.no_grad()
def make_loud(model: M, seed: int) -> M:
    """Fill a model, ours or torch's: matrices std 1.5/√fan_in, tables std 1, norms 1 ± 0.3,
    biases ± 0.3. The same seed gives the same weights; the global random state is not touched.
    """
    generator = torch.Generator().manual_seed(seed)
    tables = {id(p) for m in model.modules() if _is_table(m) for p in m.parameters(recurse=False)}
    for name, parameter in model.named_parameters():
        # Drawn in fp64 whatever the model's dtype, so that a seed means one set of weights.
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if name.endswith("bias"):
            value = 0.3 * noise
        elif parameter.ndim == 1:  # a norm's weight
            value = 1 + 0.3 * noise
        elif id(parameter) in tables:
            value = noise
        else:
            value = noise * 1.5 / parameter.shape[1] ** 0.5
        parameter.copy_(value)
    return model


def _is_table(module: nn.Module) -> bool:
    return type(module).__name__ in ("Embedding", "Learned", "Output")
