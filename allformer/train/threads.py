"""How many threads a run on a CPU is worth."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Tokens × parameters of a micro-batch that keep one thread busy. Below, threads wait for each
# other more than they work.
WORK = 2 * 10**8


def pick_threads(tokens: int, parameters: int) -> int:
    """As many as the work keeps busy and other programs leave free; OMP_NUM_THREADS wins."""
    most = torch.get_num_threads()
    if "OMP_NUM_THREADS" in os.environ:
        return most
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    # Threads meet several times in each layer: one that has to wait for a core holds up all.
    return max(1, min(most, -(-tokens * parameters // WORK), most - round(load)))


@contextmanager
def threads(count: int, device: torch.device) -> Iterator[str]:
    """Let torch have that many on a CPU while inside; gives what to say of it."""
    before = torch.get_num_threads()
    if device.type != "cpu" or count == before:
        yield ""
        return
    torch.set_num_threads(count)
    try:
        yield (
            f"threads: {count} of {before}, which is what the work keeps busy and other programs "
            f"leave free; OMP_NUM_THREADS says otherwise"
        )
    finally:
        torch.set_num_threads(before)
