"""Call a part with something that may not fit it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def normal(*shape: int) -> Tensor:
    """Normal numbers, always the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _first(out: Any) -> Tensor | None:
    if isinstance(out, tuple | list) and out:
        out = out[0]
    return out if isinstance(out, Tensor) and out.is_floating_point() else None


def output(module: Any, *arguments: Any) -> Tensor | None:
    """What it gives for these arguments, or None."""
    try:
        with torch.no_grad():
            return _first(module(*arguments))
    except Exception:
        return None
