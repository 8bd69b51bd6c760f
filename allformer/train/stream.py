"""Batches for the loop: cut, collated and prefetched, in an order that a resume can repeat."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from allformer.data.batches import Indices, token_batches
from allformer.train.batch import Frame
from allformer.train.objectives.objective import Lengths, Objective
from allformer.train.recipe import TrainRecipe

_AHEAD = 8  # batches made before they are asked for


@dataclass(frozen=True)
class Place:
    """Where in the data a step ended: `batch` micro-batches of `epoch` are used up."""

    epoch: int = 0
    batch: int = 0


def micro_batches(
    objective: Objective[Any, Any], train: TrainRecipe, frame: Frame | None, begin: Place
) -> Iterator[tuple[Any, Place]]:
    """Endless micro-batches from `begin` on, each with the place after it.

    The next epoch's examples are made while this one's are used: a GPU would wait for them
    otherwise.
    """
    skip = begin.batch
    epochs = prefetch(((epoch, objective.examples(epoch)) for epoch in count(begin.epoch)), ahead=1)
    try:
        for epoch, examples in epochs:
            batches = cut(objective.lengths(examples), train, epoch, frame)
            for number, index in enumerate(batches[skip:], skip + 1):
                yield objective.collate(examples, index, frame), Place(epoch, number)
            skip = 0
    finally:
        epochs.close()


def cut(
    sides: tuple[Lengths, Lengths], train: TrainRecipe, epoch: int, frame: Frame | None
) -> list[Indices]:
    """An epoch's batches as index arrays."""
    return token_batches(
        *sides,
        train.batch_tokens,
        seed=train.seed,
        epoch=epoch,
        pool=train.pool,
        max_rows=None if frame is None else frame.sentences,
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
