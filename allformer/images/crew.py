"""Processes that read images ahead: threads of one process share Python's lock and the memory's.

with Crew(settings, 8) as crew:
    reading = [crew.submit(path) for path in paths]     # begun at once
    pixels = [each.result() for each in reading]        # C H W, uint8, as `pixels_of` gives them

One helper process imports what is needed and then forks: no thread and no GPU of the caller's is
there to be forked, and no script runs twice. Each process answers one question at a time over a
pipe, and leaves the pixels in memory that both see. When the caller ends, however it ends, the
pipes close, and so they end too.
"""

from __future__ import annotations

import math
import mmap
import os
import queue
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from allformer.errors import DataError
from allformer.images.in_order import usable_cores
from allformer.images.settings import Settings

FEW = 1000  # images that threads have read before the processes have begun
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Pixels = npt.NDArray[np.uint8]


def usual_crew() -> int:
    """A process a core that this one may use; of several ranks on a machine each has its share."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, usable_cores() // max(1, int(ranks) if ranks.isdigit() else 1))


def can_crew(settings: Settings) -> bool:
    """Whether processes can serve: the system forks, and all images come out in one size."""
    return hasattr(os, "fork") and bool(sys.executable) and settings.shape is not None


class Crew:
    """So many processes that read and prepare images as the settings say; for several threads."""

    def __init__(self, settings: Settings, count: int) -> None:
        shape = settings.shape
        assert shape is not None, "ask can_crew first"
        size = count * math.prod(shape)
        memory = _shared(size)
        seen = np.frombuffer(mmap.mmap(memory, size), np.uint8).reshape(count, *shape)
        pairs = [Pipe() for _ in range(count)]
        self._helper = _started(memory, [theirs for _, theirs in pairs])
        os.close(memory)
        self._pipes = [ours for ours, _ in pairs]
        self._free: queue.SimpleQueue[tuple[Connection, Pixels]] = queue.SimpleQueue()
        for (ours, theirs), pixels in zip(pairs, seen, strict=True):
            theirs.close()
            self._free.put((ours, pixels))
        self._settings, self._told = settings, set[int]()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="crew")

    def submit(
        self, source: str | Path | bytes, name: str = "the image", into: Pixels | None = None
    ) -> Future[Pixels]:
        """Begin to read an image; its pixels are put `into` an array, if one is given."""
        return self._threads.submit(self._ask, source, name, into)

    def _ask(self, source: Any, name: str, into: Pixels | None) -> Pixels:
        pipe, pixels = self._free.get()
        try:
            if pipe.fileno() not in self._told:
                self._told.add(pipe.fileno())
                pipe.send(self._settings)
            pipe.send((source, name))
            fault, said = pipe.recv()
            found = np.empty_like(pixels) if into is None else into
            if fault is None:
                np.copyto(found, pixels)
        except (EOFError, OSError):
            raise DataError(
                f"a process that reads images has ended while it read {name}: it may have been "
                f"killed for its memory; take fewer workers, or 0 for threads"
            ) from None
        finally:
            self._free.put((pipe, pixels))
        for warning in said:
            warnings.warn(warning, stacklevel=2)
        if fault is not None:
            raise fault
        return found

    def close(self) -> None:
        """What has not begun is not read any more; all processes end."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for pipe in self._pipes:
            pipe.close()
        try:
            self._helper.wait(5)
        except subprocess.TimeoutExpired:
            self._helper.kill()
            self._helper.wait()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _shared(size: int) -> int:
    """A file descriptor of memory that a child can see too."""
    if hasattr(os, "memfd_create"):  # /dev/shm is often too small
        number = os.memfd_create("allformer-images")
    else:
        with tempfile.TemporaryFile() as file:
            number = os.dup(file.fileno())
    os.ftruncate(number, size)
    return number


def _started(memory: int, pipes: list[Connection]) -> subprocess.Popen[bytes]:
    """The helper, which forks a process for each pipe."""
    numbers = [memory, *(pipe.fileno() for pipe in pipes)]
    paths = [path or os.getcwd() for path in sys.path]
    return subprocess.Popen(
        [sys.executable, "-m", "allformer.images.crew_member", *map(str, numbers)],
        pass_fds=numbers,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1"), "PYTHONPATH": os.pathsep.join(paths)},
    )
