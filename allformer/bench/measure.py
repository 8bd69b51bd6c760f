"""How long a call takes, how much memory it needs at most, and how both grow with the length."""

from __future__ import annotations

import gc
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Call = Callable[[], Any]


BLOCK = 0.05  # seconds: shorter calls are timed several at once


def in_turn(
    calls: Mapping[str, Call], device: torch.device, *, budget: float = 1.0, most: int = 9
) -> dict[str, float]:
    """Seconds of each call: medians of rounds in which all have their turn, so that a machine that
    is busy for a while is so for all. At least one round, and more while the budget lasts (seconds
    for each call), up to `most`.

        in_turn({"full": read, "window": other}, model.device)

    Call each once before: the first call compiles and fills caches.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    for _ in range(most):
        for name, call in calls.items():
            times[name].append(_block(call, device, times[name]))
        if time.perf_counter() - begin > budget * len(calls):
            break
    return {name: statistics.median(each) for name, each in times.items()}


def _block(call: Call, device: torch.device, before: Sequence[float]) -> float:
    again = max(1, min(50, round(BLOCK / max(before[0], 1e-6)))) if before else 1
    _wait(device)
    begin = time.perf_counter()
    for _ in range(again):
        call()
    _wait(device)
    return (time.perf_counter() - begin) / again


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
