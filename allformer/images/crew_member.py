"""The processes of a crew (crew.py): `python -m allformer.images.crew_member MEMORY PIPE …`."""

from __future__ import annotations

import math
import mmap
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np

from allformer.errors import AllformerError
from allformer.images.crew import TOGETHER, Named, Pixels, read_pixels
from allformer.images.settings import Settings


def main(memory: int, pipes: list[int]) -> None:
    """Fork a process for each pipe, and wait for their end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's, who closes the pipes
    for number, own in enumerate(pipes):
        if os.fork() == 0:
            for other in pipes[number + 1 :]:  # those before are closed already
                os.close(other)
            serve(Connection(own), memory, number)
            os._exit(0)
        os.close(own)
    for _ in pipes:
        os.wait()
    os._exit(0)  # there is nothing to tidy up


def serve(pipe: Connection, memory: int, number: int) -> None:
    """Answer until nobody asks any more; the pixels lie in the memory's part of that number."""
    try:
        pipe.send(True)  # it listens
        asked: tuple[Settings, int | None] = pipe.recv()
        settings, enough = asked
        assert settings.shape is not None
        size = TOGETHER * math.prod(settings.shape)
        shared = mmap.mmap(memory, 0)
        out = np.frombuffer(shared, np.uint8, size, number * size)
        while True:
            images = pipe.recv()
            pipe.send(_answer(images, settings, enough, out.reshape(TOGETHER, *settings.shape)))
    except (EOFError, OSError):  # the caller is gone
        return


def _answer(
    images: Sequence[Named], settings: Settings, enough: int | None, out: Pixels
) -> tuple[Exception | None, list[str]]:
    """What went wrong, if anything did, and what there is to warn of."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        try:
            for row, (source, name) in zip(out, images, strict=False):
                row[...] = read_pixels(source, name, settings, enough)
            fault: Exception | None = None
        except AllformerError as error:
            fault = error
        except Exception:  # a bug: with where it is
            fault = RuntimeError(f"{name}: {traceback.format_exc()}")
    return fault, [str(warning.message) for warning in heard]


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(word) for word in sys.argv[2:]])
