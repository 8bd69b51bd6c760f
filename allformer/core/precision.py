"""Where numbers live and how wide they are."""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.errors import ConfigError


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x.to(dtype)`, without the call where nothing is to do: small steps consist of such calls."""
    return x if x.dtype == dtype else x.to(dtype)


def widen(x: Tensor) -> Tensor:
    """At least fp32: half precision is too narrow for sums; fp32 and fp64 stay as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def pick_device(name: str | None = None) -> torch.device:
    """The device of that name, or a GPU if there is one: `pick_device("cuda:1")`."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device={name!r} is not known; try cpu, cuda or cuda:1") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        there = torch.cuda.device_count()
        raise ConfigError(f"device={name!r} is not there: this machine has {there} GPUs; try cpu")
    return device
