"""Kernels that begin before the one in front of them has ended (programmatic dependent launch).

On Hopper and later a kernel of a chain may be launched while its forerunner still runs: what it
reads that nobody writes, the weights, it reads at once; `gdc_wait` in it waits for all else. So
the memory is not idle from one kernel to the next. A kernel that is launched so must wait, even
where it needs nothing of its forerunner: who comes after it relies on that.
"""

from __future__ import annotations

from functools import cache

import torch


@cache
def chained(device: torch.device) -> bool:
    """Whether kernels on this device are launched so: since CUDA 12.3 graphs have edges for it."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    version = tuple(map(int, torch.version.cuda.split(".")[:2]))
    return version >= (12, 3) and torch.cuda.get_device_capability(device) >= (9, 0)


def launch(chain: bool) -> dict[str, bool]:
    """What a kernel is told when it is launched."""
    return {"CHAIN": True, "launch_pdl": True} if chain else {"CHAIN": False}
