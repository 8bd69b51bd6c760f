"""Loud weights: a fixture in which a small mistake makes a large difference.

With the default initialisation a tiny model is nearly linear, its norms are the identity and its
biases are zero: a wrong activation, a swapped norm or a forgotten bias hides below 1e-5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


@torch.no_grad()
def make_loud(model: M, seed: int = 0, tables: float | None = 1.0) -> M:
    """Fill a model, ours, torch's or transformers': matrices std 1.5/√fan_in, tables std `tables`
    (None: as matrices), norms 1 ± 0.3, biases ± 0.3. The same seed gives the same weights; the
    global random state is not touched.
    """
    generator = torch.Generator().manual_seed(seed)
    lookups = {id(p) for m in model.modules() if _is_table(m) for p in m.parameters(recurse=False)}
    for owner, name, tensor in _learned(model):
        # Drawn in fp64 whatever the model's dtype, so that a seed means one set of weights.
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        if name.endswith("bias"):
            value = 0.3 * noise
        elif tensor.ndim < 2:  # a norm's weight, a scale
            value = 1 + 0.3 * noise
        elif id(tensor) in lookups and tables is not None:
            value = tables * noise
        else:  # transformers' Conv1D is in × out
            value = noise * 1.5 / tensor.shape[type(owner).__name__ != "Conv1D"] ** 0.5
        tensor.copy_(value)
    return model


def _learned(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Every parameter but stored sinusoids; and BART's bias of the logits, which is a buffer."""
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        if "Sinusoidal" not in type(owner).__name__:
            yield owner, name, parameter
    for name, buffer in model.named_buffers():
        if name.endswith("final_logits_bias"):
            yield model, name, buffer


def _is_table(module: nn.Module) -> bool:
    return type(module).__name__ in ("Embedding", "Learned", "OutputMatrix")
