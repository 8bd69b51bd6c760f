"""Activation checkpointing: less is kept for the backward pass, and made again there.

    model.recompute("layers")       # a layer keeps its input alone; a third more work
    model.recompute("selective")    # matrix products and attention are kept, the rest is made again
    model.recompute(None)

The numbers are the same, dropout included.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from allformer.errors import ConfigError

MODES = ("layers", "selective")
_KEPT = {  # what is dear to compute for its size
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::_flash_attention_forward",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "allformer::short_rows",
    "allformer::linear_attention",
    "flex_attention",
}


def check_mode(mode: str | None) -> None:
    """Refuse what is no way to recompute."""
    if mode is not None and mode not in MODES:
        raise ConfigError(
            f"recompute={mode!r} is not known; try 'layers', 'selective' or None for nothing"
        )


def recomputed(mode: str | None, random: bool, call: Callable[..., Any], *args: Any) -> Any:
    """`call(*args)`, which the backward pass will call again, as `mode` says.

    `random`: it draws from torch's generator, whose state is then kept (which no CUDA graph can).
    """
    if mode is None or not torch.is_grad_enabled():
        return call(*args)
    options: Any = {"use_reentrant": False, "preserve_rng_state": random}
    if mode == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    return checkpoint(call, *args, **options)


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    schema = getattr(operator, "_schema", None)  # operators of higher order have none
    name = operator.name() if schema is None else schema.name
    return CheckpointPolicy.MUST_SAVE if name in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
