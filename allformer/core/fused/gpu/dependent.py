"""Kernels that begin before the one in front of them has ended (programmatic dependent launch).

On Hopper and later a kernel of a chain may be launched while its forerunner still runs: what it
reads that nobody writes, the weights, it reads at once; `gdc_wait` in it waits for all else. So
the memory is not idle from one kernel to the next. A kernel that is launched so must wait, even
where it needs nothing of its forerunner: who comes after it relies on that.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

LINE = 128  # bytes that the memory gives at a time


@cache
def chained(device: torch.device) -> bool:
    """Whether kernels on this device are launched so: since CUDA 12.3 graphs have edges for it."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    version = tuple(map(int, torch.version.cuda.split(".")[:2]))
    return version >= (12, 3) and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def fetch_ahead(pointers):
    """Ask for the lines at these addresses: they come as far as the second cache, in which whoever
    wants them later finds them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [pointers.to(tl.int64)], tl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


def launch(chain: bool) -> dict[str, bool]:
    """What a kernel is told when it is launched."""
    return {"CHAIN": True, "launch_pdl": True} if chain else {"CHAIN": False}
