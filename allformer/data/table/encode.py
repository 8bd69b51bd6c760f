"""Apply an encoder to chunks of records: in this process, or in several at once."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, NamedTuple

from allformer.data.records import Record
from allformer.data.table.column import Piece, piece
from allformer.errors import AllformerError, DataError

Encode = Callable[[list[Record]], Mapping[str, Any]]
Pieces = dict[str, Piece | None]


class Chunk(NamedTuple):
    """Records, where each stands ("a.csv, line" and 12), how far the reading was after them."""

    records: list[Record]
    places: list[tuple[str, int]]
    done: int


def encoded_chunk(encode: Encode, chunk: Chunk) -> Pieces:
    """The columns of a chunk as arrays. What the encoder refuses is named by file and line."""
    try:
        columns = encode(chunk.records)
    except AllformerError:
        for record, (where, number) in zip(chunk.records, chunk.places, strict=True):
            try:
                encode([record])
            except AllformerError as error:
                raise DataError(f"{where} {number}: {error}") from error
        raise
    return {name: piece(name, values) for name, values in columns.items()}


def in_processes(
    encode: Encode, chunks: Iterator[Chunk], workers: int
) -> Iterator[tuple[Pieces, int]]:
    """The same, `workers` chunks at a time, in the order of the chunks.

    Each process is a fresh interpreter that gets the encoder by pickle and ends with this one. It
    never imports the caller's script, so a script needs no `if __name__ == "__main__"`.
    """
    if not can_be_sent(encode):
        raise DataError(
            f"workers={workers}: encode must be a function or object of a module that can be "
            "imported and pickled, not of the script itself; move it, or use workers=0"
        )
    message = pickle.dumps(encode)
    processes = [_Process(message) for _ in range(workers)]
    free: SimpleQueue[_Process] = SimpleQueue()
    for process in processes:
        free.put(process)

    def work(chunk: Chunk) -> tuple[Pieces, int]:
        process = free.get()
        try:
            return process.encode(chunk), chunk.done
        finally:
            free.put(process)

    waiting: deque[Future[tuple[Pieces, int]]] = deque()
    threads = ThreadPoolExecutor(workers)
    try:
        for chunk in chunks:
            waiting.append(threads.submit(work, chunk))
            if len(waiting) > 2 * workers:  # so many chunks are in memory, and no more
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
        threads.shutdown()
        for process in processes:
            process.end()


def can_be_sent(encode: Encode) -> bool:
    """Whether another process can have it: it pickles, and is not of the caller's own script."""
    try:
        return b"__main__" not in pickle.dumps(encode)
    except Exception:  # whatever an object of the user's says about pickling
        return False


class _Process:
    """An interpreter at the other end of two pipes."""

    def __init__(self, encode: bytes) -> None:
        command = "from allformer.data.table.encode import serve; serve()"
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        # One thread of the tokenisers library each: there are as many processes as are wanted.
        environment = os.environ | {"PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.send, self.receive = self.process.stdin, self.process.stdout
        self.first = encode

    def encode(self, chunk: Chunk) -> Pieces:
        try:
            for message in (self.first, pickle.dumps(chunk)):
                if message:
                    self.send.write(message)
            self.send.flush()
            self.first = b""
            found, value = pickle.load(self.receive)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            status = self.process.wait()
            raise DataError(
                f"an encoding process ended with status {status}; if memory ran out (-9), use "
                "fewer workers or smaller chunks, else try workers=0 to see its error"
            ) from error
        if found:
            return dict(value)
        raise value

    def end(self) -> None:
        self.send.close()  # the process reads the end of its input, and goes
        self.receive.close()
        self.process.wait()


def serve() -> None:
    """The other end: an encoder, then chunks, until there are no more."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who asked
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an encoder prints must not get among the answers
    try:
        encode = pickle.load(requests)
    except EOFError:
        return
    while True:
        try:
            chunk = pickle.load(requests)
        except EOFError:
            return
        try:
            answer: tuple[bool, Any] = True, encoded_chunk(encode, chunk)
        except Exception as error:
            answer = False, error
        answers.write(_pickled(answer))
        answers.flush()


def _pickled(answer: tuple[bool, Any]) -> bytes:
    try:
        return pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:  # an error that cannot be sent is told in words
        return pickle.dumps((False, DataError(f"encode failed: {answer[1]!r}")))
