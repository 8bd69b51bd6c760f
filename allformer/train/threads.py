"""How many threads a run on a CPU is worth."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Tokens × parameters of a micro-batch that keep one thread busy. Below, threads wait for each
# other more than they work, and on a busy machine for other programs too.
WORK = 2 * 10**8


@contextmanager
def fitting_threads(tokens: int, parameters: int, device: torch.device) -> Iterator[str]:
    """Set torch's threads for steps of that size while inside; gives what to say of it.

    OMP_NUM_THREADS wins, where it is set.
    """
    before = torch.get_num_threads()
    wanted = max(1, min(before, -(-tokens * parameters // WORK)))
    if device.type != "cpu" or wanted == before or "OMP_NUM_THREADS" in os.environ:
        yield ""
        return
    torch.set_num_threads(wanted)
    try:
        yield (
            f"threads: {wanted} of {before}, as a step is little work; OMP_NUM_THREADS={before} "
            f"takes all"
        )
    finally:
        torch.set_num_threads(before)
