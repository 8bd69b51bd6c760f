"""Alone on a device: processes that name the same file are timed in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def turn(path: str | None) -> Iterator[None]:
    """Alone on the GPU among processes that name the same file."""
    if path is None:
        yield
        return
    import fcntl

    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
