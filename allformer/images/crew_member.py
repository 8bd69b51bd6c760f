"""The processes of a crew (crew.py): `python -m allformer.images.crew_member MEMORY PIPE …`."""

from __future__ import annotations

import math
import mmap
import os
import signal
import sys
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from allformer.errors import AllformerError
from allformer.images.prepare import pixels_of
from allformer.images.read import read_image
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
        settings: Settings = pipe.recv()
        assert settings.shape is not None
        size = math.prod(settings.shape)
        shared = mmap.mmap(memory, 0)
        out = np.frombuffer(shared, np.uint8, size, number * size).reshape(settings.shape)
        while True:
            source, name = pipe.recv()
            pipe.send(_answer(source, name, settings, out))
    except (EOFError, OSError):  # the caller is gone
        return


def _answer(
    source: Any, name: str, settings: Settings, out: Any
) -> tuple[Exception | None, list[str]]:
    """What went wrong, if anything did, and what there is to warn of."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        try:
            out[...] = pixels_of(read_image(source, mode=settings.mode, name=name), settings, name)
            fault: Exception | None = None
        except AllformerError as error:
            fault = error
        except Exception:  # a bug: with where it is
            fault = RuntimeError(f"{name}: {traceback.format_exc()}")
    return fault, [str(warning.message) for warning in heard]


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(word) for word in sys.argv[2:]])
