"""Batches for the loop: cut, collated and prefetched, in an order that a resume can repeat."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
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
    """
    epoch, skip = begin.epoch, begin.batch
    while True:
        pairs = encode(epoch)
        batches = cut(pairs, train, epoch, frame)
        for number, index in enumerate(batches[skip:], skip + 1):
            batch = collate(pairs, index, tokenizer.bos_id, tokenizer.eos_id, frame)
            yield batch, Place(epoch, number)
        epoch, skip = epoch + 1, 0


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


def prefetch(items: Iterator[Any]) -> Generator[Any, None, None]:
    """The same items, made a few ahead in a thread; an error in it is raised here."""
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=_AHEAD)
    stop = threading.Event()

    def put(what: str, item: Any) -> None:
        while not stop.is_set():
            try:
                ready.put((what, item), timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put("item", item)
                if stop.is_set():
                    return
            put("end", None)
        except BaseException as error:
            put("error", error)

    threading.Thread(target=work, daemon=True, name="batches").start()
    try:
        while True:
            what, item = ready.get()
            if what == "end":
                return
            if what == "error":
                raise item
            yield item
    finally:
        stop.set()
