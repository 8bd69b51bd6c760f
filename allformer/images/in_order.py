"""Work on several threads whose results come in the order of what went in."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def usable_cores() -> int:
    """Those that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_order(work: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """`work(item)` for each item; at most four a thread are begun before they are asked for.

    >>> list(in_order(str, range(3), workers=2))
    ['0', '1', '2']
    """
    if workers < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(workers) as pool:
        yield from results(lambda x: pool.submit(work, x), items, 4 * workers)


def results(submit: Callable[[T], Future[R]], items: Iterable[T], ahead: int) -> Iterator[R]:
    """What becomes of each item, in order; at most `ahead` are begun before they are asked for."""
    stream = iter(items)
    begun = deque(submit(x) for x in islice(stream, ahead))
    try:
        while begun:
            result = begun.popleft().result()
            begun.extend(submit(x) for x in islice(stream, 1))
            yield result
    finally:  # an error, or nobody wants the rest
        for future in begun:
            future.cancel()
