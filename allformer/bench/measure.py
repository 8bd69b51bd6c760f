"""How long a call takes, how much memory it needs at most, and how both grow with the length."""

from __future__ import annotations

import gc
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Call = Callable[[], Any]


def seconds(call: Call, device: torch.device, *, budget: float = 1.0, most: int = 20) -> float:
    """The median of several calls, as many as the budget of seconds lets in, but one at least.

    `seconds(lambda: model.states(input_ids=ids), model.device)`. Call it once before: the first
    call compiles and fills caches.
    """
    times: list[float] = []
    begin = time.perf_counter()
    while not times or (len(times) < most and time.perf_counter() - begin < budget):
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak_bytes(call: Call, device: torch.device) -> int:
    """The most bytes that one call holds in tensors beyond those that are there before it.

    On a GPU as the allocator counts them; on a CPU from torch's record of every allocation, which
    sees what is freed at once too (the process's own peak does not fall, and would hide it). What a
    library of matrix products takes for itself is not in it.
    """
    gc.collect()
    if device.type == "cuda":
        _wait(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        _wait(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    return _recorded_peak(call)


def _recorded_peak(call: Call) -> int:
    from torch.profiler import ProfilerActivity, profile

    seen = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with _quiet():
        seen.start()
    try:
        call()
    finally:
        with _quiet():
            seen.stop()
    assert seen.profiler is not None
    results: Any = seen.profiler.kineto_results
    events = sorted(
        (event.start_ns(), event.nbytes())
        for event in results.events()
        if event.name() == "[memory]"
    )
    held = most = 0
    for _, change in events:
        held += change
        most = max(most, held)
    return most


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the profiler's library writes to standard error when it starts and stops."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """b of the curve a·nᵇ that fits best: 1 is linear, 2 is the square.

    `exponent([1024, 2048, 4096], [1.0, 2.1, 4.0])` → 1.0. The least squares of the logarithms.
    """
    x, y = [math.log(n) for n in lengths], [math.log(max(v, 1e-12)) for v in values]
    middle = statistics.fmean(x)
    spread = sum((a - middle) ** 2 for a in x)
    return sum((a - middle) * b for a, b in zip(x, y, strict=True)) / spread


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
