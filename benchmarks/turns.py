"""Alone on a device, and going on after a failure."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def turn(path: str | None, of: int = 1) -> Iterator[None]:
    """Alone on the device among processes that name the same file; of so many of them none begins
    before all are warm, so that nobody's compiling disturbs what is timed."""
    if path is None:
        yield
        return
    import fcntl

    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    while len(Path(path).read_text().split()) < of:
        time.sleep(0.2)
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def attempt(what: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A row of a table, or the reason why there is none."""
    try:
        return work()
    except Exception as error:  # whatever a kernel or a peer stumbles over
        last = traceback.format_exc().strip().splitlines()[-8:]
        return {"what": what, "failed": f"{type(error).__name__}: {error}"[:300], "said": last}
