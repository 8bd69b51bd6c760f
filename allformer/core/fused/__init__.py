"""Chains of small operations as one pass over memory, for training on a GPU, and for inference that
is captured as a graph.

Matrix products stand at the chip's limit; what is left to win is traffic between them. Each file
here has a plain form, which runs anywhere and is the oracle, and takes a kernel of `gpu/` (Triton)
where `ready` says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from allformer.core.taps import listening

HALF = (torch.bfloat16, torch.float16)
_CAPTURING = ContextVar("capturing", default=False)
_TRITON = find_spec("triton") is not None  # asked once: a compiled graph cannot ask


def has_triton() -> bool:
    """Whether kernels can be compiled; a CPU build of torch comes without Triton."""
    return _TRITON


def trains(device: torch.device, dtype: torch.dtype | None) -> bool:
    """Whether a training step of this kind runs by the kernels: then it needs no compiling."""
    return device.type == "cuda" and dtype in HALF and has_triton() and modern(device)


@cache
def modern(device: torch.device) -> bool:
    """An Ampere or later: older chips have no bf16, others not the instructions used here."""
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (8, 0)


@contextmanager
def capturing() -> Iterator[None]:
    """Inside, inference takes the kernels too: in a graph, launching them costs nothing."""
    token = _CAPTURING.set(True)
    try:
        yield
    finally:
        _CAPTURING.reset(token)


def in_graph() -> bool:
    """Whether this is inside of `capturing`."""
    return not torch.compiler.is_compiling() and _CAPTURING.get()


def prepared() -> bool:
    """Whether the same sizes come again and again, so that what a kernel needs at first is no
    matter: somebody learns, or a graph is captured."""
    return torch.is_grad_enabled() or in_graph()


def ready(x: Tensor, *weights: Tensor | None) -> bool:
    """Whether the kernels serve for `x`: training (or capturing) in half precision on a GPU, plain
    tensors, and nobody listens to what lies in between.

    `torch.compile` fuses the plain forms by itself; with these operators in a deep graph torch 2.11
    takes minutes to lower it.
    """
    return (
        not torch.compiler.is_compiling()
        and trains(x.device, x.dtype)
        and prepared()
        and not listening()
        and type(x) is Tensor
        and all(w is None or type(w) in (Tensor, nn.Parameter) for w in weights)
    )
