"""Batches for the loop: cut, collated and prefetched, in an order that a resume can repeat."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from allformer.data.batches import Indices, token_batches
from allformer.train.batch import Frame, keyed
from allformer.train.objectives.objective import Lengths, Objective
from allformer.train.sections.common import TrainRecipe

_AHEAD = 8  # batches made before they are asked for


@dataclass(frozen=True)
class Place:
    """Where in the data a step ended: `batch` micro-batches of an epoch's `chunk` are used up."""

    epoch: int = 0
    batch: int = 0
    chunk: int = 0


def micro_batches(
    objective: Objective[Any, Any],
    train: TrainRecipe,
    frame: Frame | None,
    begin: Place,
    turn: tuple[int, int] = (0, 1),
) -> Iterator[tuple[Any, Place]]:
    """Endless micro-batches from `begin` on, each with the place after it.

    The next chunk's examples are made while this one's are used: a GPU would wait for them
    otherwise. Where several ranks take `turn`s, each gets the batch that is its own of every so
    many, and the place after all of them.
    """
    skip, (mine, ranks) = begin.batch, turn
    left, own = ranks, None
    parts = prefetch(_chunks(objective, begin), ahead=1)
    try:
        for epoch, chunk, examples in parts:
            batches = batches_of(objective, examples, train, epoch, frame, chunk)
            for number, index in enumerate(batches[skip:], skip + 1):
                if ranks - left == mine:
                    if number - 1 + ranks < len(batches):
                        objective.expect(examples, batches[number - 1 + ranks])
                    place = (train.seed, epoch, chunk, number)
                    own = keyed(objective.collate(examples, index, frame), *place)
                left -= 1
                if not left:
                    yield own, Place(epoch, number, chunk)
                    left = ranks
            skip = 0
    finally:
        parts.close()


def _chunks(objective: Objective[Any, Any], begin: Place) -> Iterator[tuple[int, int, Any]]:
    """Epoch after epoch, chunk by chunk."""
    first = begin.chunk
    for epoch in count(begin.epoch):
        for number, examples in enumerate(objective.chunks(epoch, first), first):
            yield epoch, number, examples
        first = 0


def batches_of(
    objective: Objective[Any, Any],
    examples: Any,
    train: TrainRecipe,
    epoch: int = 0,
    frame: Frame | None = None,
    chunk: int = 0,
) -> list[Indices]:
    """The batches of examples: in the objective's own order, or cut by length."""
    own = objective.order(examples)
    return cut(objective.lengths(examples), train, epoch, frame, chunk) if own is None else own


def cut(
    sides: tuple[Lengths, Lengths],
    train: TrainRecipe,
    epoch: int,
    frame: Frame | None,
    chunk: int = 0,
) -> list[Indices]:
    """The batches of an epoch (or of a chunk of it) as index arrays."""
    return token_batches(
        *sides,
        train.batch_tokens,
        seed=train.seed if not chunk else (train.seed + chunk) % 2**63,
        epoch=epoch,
        pool=train.pool,
        max_rows=train.batch_rows if frame is None else frame.sentences,
    )


def prefetch(items: Iterator[Any], ahead: int = _AHEAD) -> Generator[Any, None, None]:
    """The same items, at most `ahead` made before they are asked for, in a thread of their own.

    An error in it is raised here, after the items before it.
    """
    ready: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    room, stop = threading.Semaphore(ahead), threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                if room.acquire(timeout=0.1):
                    ready.put(("item", next(items)))
        except StopIteration:
            ready.put(("end", None))
        except BaseException as error:
            ready.put(("error", error))

    threading.Thread(target=work, daemon=True, name="batches").start()
    try:
        while True:
            what, item = ready.get()
            if what == "end":
                return
            if what == "error":
                raise item
            room.release()
            yield item
    finally:
        stop.set()
