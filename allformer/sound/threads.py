"""Stretches of one long piece of work, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def side_by_side(work: Callable[[int, int], None], count: int) -> None:
    """`work(begin, end)` for stretches of 0 … count, as many as torch has threads.

    Inside a stretch operations have one thread each. Threads that torch shares an operation among
    wait for each other at the end of it, which costs many short operations more than it spares
    them, most of all where cores are busy with something else.
    """
    threads, inference = torch.get_num_threads(), torch.is_inference_mode_enabled()
    if threads == 1:
        work(0, count)
        return

    def alone(number: int) -> None:
        torch.set_num_threads(1)  # of this thread
        with torch.inference_mode(inference), torch.no_grad():
            work(count * number // threads, count * (number + 1) // threads)

    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(alone, range(threads)))
    finally:
        torch.set_num_threads(threads)  # that new threads begin with
