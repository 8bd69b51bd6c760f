"""Batches for the loop: cut, collated and prefetched, in an order that a resume can repeat."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from allformer.data.batches import Indices, token_batches
from allformer.data.encoded import EncodedPairs
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Batch, Frame, collate
from allformer.train.recipe import TrainRecipe

_AHEAD = 8  # batches made before they are asked for


@dataclass(frozen=True)
class Place:
    """Where in the data a step ended: `batch` micro-batches of `epoch` are used up."""

    epoch: int = 0
    batch: int = 0


def micro_batches(
    encode: Callable[[int], EncodedPairs],
    tokenizer: Tokenizer,
    train: TrainRecipe,
    frame: Frame | None,
    begin: Place,
) -> Iterator[tuple[Batch, Place]]:
    """Endless micro-batches from `begin` on, each with the place after it.

    `encode(epoch)` gives the epoch's pairs: the same every time, or cut anew with BPE-dropout.
    The next epoch's are made while this one's are used: a GPU would wait for them otherwise.
    """
    skip = begin.batch
    epochs = prefetch(((epoch, encode(epoch)) for epoch in count(begin.epoch)), ahead=1)
    try:
        for epoch, pairs in epochs:
            batches = cut(pairs, train, epoch, frame)
            for number, index in enumerate(batches[skip:], skip + 1):
                batch = collate(pairs, index, tokenizer.bos_id, tokenizer.eos_id, frame)
                yield batch, Place(epoch, number)
            skip = 0
    finally:
        epochs.close()


def cut(pairs: EncodedPairs, train: TrainRecipe, epoch: int, frame: Frame | None) -> list[Indices]:
    """An epoch's batches as index arrays; each sentence takes one token more, for </s>."""
    return token_batches(
        pairs.source_lengths + 1,
        pairs.target_lengths + 1,
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
