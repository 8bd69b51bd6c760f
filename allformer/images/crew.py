"""Processes that read images ahead: threads of one process share Python's lock and the memory's.

with Crew(settings, 8) as crew:
    for pixels in crew.read((path, path) for path in paths):   # C H W, uint8, in order
        …

One helper process imports what is needed and then forks: no thread and no GPU of the caller's is
there to be forked, and no script runs twice. Until it has, which takes seconds, threads read. Each
process is asked for a few images at a time over a pipe, and leaves them in memory that both see.
When the caller ends, however it ends, the pipes close, and so they end too.
"""

from __future__ import annotations

import math
import mmap
import os
import queue
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np
import numpy.typing as npt

from allformer.errors import DataError
from allformer.images.in_order import results, usable_cores
from allformer.images.prepare import pixels_of
from allformer.images.read import read_image
from allformer.images.settings import Settings

FEW = 1000  # images that threads have read about when the processes have begun
TOGETHER = 8  # images of one question at most: to ask takes a tenth of what an image takes
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Pixels = npt.NDArray[np.uint8]
Named = tuple[Any, str]  # a path or the bytes of a file, and what to call it


def usual_crew() -> int:
    """A process a core that this one may use; of several ranks on a machine each has its share."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, usable_cores() // max(1, int(ranks) if ranks.isdigit() else 1))


def can_crew(settings: Settings) -> bool:
    """Whether processes can serve: the system forks, and all images come out in one size."""
    return hasattr(os, "fork") and bool(sys.executable) and settings.shape is not None


class Crew:
    """So many processes that read and prepare images as the settings say; for several threads."""

    def __init__(self, settings: Settings, count: int, enough: int | None = None) -> None:
        """`enough` as `read_image` takes it."""
        shape = settings.shape
        assert shape is not None, "ask can_crew first"
        self.count, size = count, count * TOGETHER * math.prod(shape)
        memory = _shared(size)
        seen = np.frombuffer(mmap.mmap(memory, size), np.uint8).reshape(count, TOGETHER, *shape)
        pairs = [Pipe() for _ in range(count)]
        self._helper = _started(memory, [theirs for _, theirs in pairs])
        os.close(memory)
        self._pipes = [ours for ours, _ in pairs]
        self._free: queue.SimpleQueue[tuple[Connection, Pixels]] = queue.SimpleQueue()
        for (ours, theirs), pixels in zip(pairs, seen, strict=True):
            theirs.close()
            self._free.put((ours, pixels))
        self._asked, self._begun = (settings, enough), set[int]()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="crew")

    def read(self, images: Iterable[Named]) -> Iterator[Pixels]:
        """Of each image its pixels, in order; never more than the next few are in memory."""
        stream = iter(images)
        few = iter(lambda: list(islice(stream, TOGETHER)), [])
        for found in results(self.submit, few, 3 * self.count):
            yield from found

    def fill(self, images: Sequence[Named], out: Pixels) -> list[Future[Pixels]]:
        """Begin to read as many images as `out` has rows, into it: what to wait for."""
        step = min(TOGETHER, -(-len(images) // self.count))
        parts = (slice(i, i + step) for i in range(0, len(images), step or 1))
        return [self.submit(images[part], out[part]) for part in parts]

    def submit(self, images: Sequence[Named], into: Pixels | None = None) -> Future[Pixels]:
        """Begin to read a few images, at most `TOGETHER`; `into` an array, if one is given."""
        return self._threads.submit(self._ask, images, into)

    def _ask(self, images: Sequence[Named], into: Pixels | None) -> Pixels:
        pipe, whole = self._free.get()
        pixels = whole[: len(images)]
        found = np.empty_like(pixels) if into is None else into
        try:
            if not self._listens(pipe):
                for row, (source, name) in zip(found, images, strict=True):
                    row[...] = read_pixels(source, name, *self._asked)
                return found
            pipe.send(images)
            fault, said = pipe.recv()
            if fault is None:
                np.copyto(found, pixels)
        except (EOFError, OSError):
            raise DataError(
                f"a process that reads images has ended at {images[0][1]} or soon after it: it may "
                f"have been killed for its memory; take fewer workers"
            ) from None
        finally:
            self._free.put((pipe, whole))
        for warning in said:
            warnings.warn(warning, stacklevel=2)
        if fault is not None:
            raise fault
        return found

    def _listens(self, pipe: Connection) -> bool:
        """Whether the process at the other end has begun."""
        number = pipe.fileno()
        if number not in self._begun and pipe.poll():
            try:
                pipe.recv()
                pipe.send(self._asked)
            except (EOFError, OSError):  # it could not begin, and has said why: threads go on
                return False
            self._begun.add(number)
        return number in self._begun

    def close(self) -> None:
        """What has not begun is not read any more; all processes end."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for pipe in self._pipes:
            pipe.close()
        try:
            self._helper.wait(0.5)
        except subprocess.TimeoutExpired:  # it is still beginning, perhaps
            self._helper.kill()
            self._helper.wait()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Standing:
    """The crew of who reads again and again: begun once it has read `FEW` files, it stays until
    nobody has this any more. `Standing(settings).crew(200, workers=8)` is None, the fifth time not.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.read = settings, 0
        self._crew: Crew | None = None
        self._lock = threading.Lock()

    def crew(self, files: int, workers: int) -> Crew | None:
        """Who shall read so many more files; None: threads."""
        with self._lock:
            self.read += files
            if self._crew is None and self.read >= FEW and workers > 2 and can_crew(self.settings):
                self._crew = Crew(self.settings, workers)
                weakref.finalize(self, self._crew.close)
            return self._crew


def read_pixels(source: Any, name: str, settings: Settings, enough: int | None = None) -> Pixels:
    """One image as the settings say, C H W: `read_pixels("cat.jpg", "a cat", settings)`."""
    image = read_image(source, mode=settings.mode, name=name, enough=enough)
    return pixels_of(image, settings, name)


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
