"""Records that fit neither memory nor disk: read, shuffled and encoded on the way.

>>> stream = Stream(open_records("shards/*.jsonl.gz"), buffer=50_000, seed=0)
>>> for table in stream.chunks(encode, 20_000, epoch=0): ...

At no time is more in memory than `buffer` records and one chunk. Where a reading is can be written
down in a few numbers, and another goes on from there with exactly the records that were left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from allformer.data.mixture import shares
from allformer.data.records import Pass, Record, Records
from allformer.data.table import Encode, Table
from allformer.data.table.encode import Chunk, encoded_chunk
from allformer.errors import DataError

State = dict[str, Any]  # of numbers and lists: it can be written as JSON
Placed = tuple[Record, tuple[str, int]]  # a record, and where it stands: "a.csv, line" and 12


class Stream:
    """One or several `Records`, shuffled through a buffer; (seed, epoch) alone decides the order.

    With several, records come in the proportion of `weights` (by themselves equal), small ones are
    read again, and an epoch ends when each has been read to its end once. With several files their
    order is another in each epoch. `buffer=1` leaves everything in order. `rank` of `world`: every
    process reads all, and keeps each world-th record; all get equally many, so that up to
    `world - 1` records at the very end are left for another epoch.
    """

    def __init__(
        self,
        records: Records | Sequence[Records],
        *,
        weights: Sequence[float] | None = None,
        buffer: int = 10_000,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.records = [records] if isinstance(records, Records) else list(records)
        if not self.records:
            raise DataError("a stream needs records; give those of open_records")
        if buffer < 1 or not 0 <= rank < world:
            raise DataError(
                f"buffer={buffer}, rank={rank}, world={world}: the buffer holds at least 1 record, "
                "and rank is from 0 to world - 1"
            )
        self.parts = shares([1] * len(self.records), weights)
        self.buffer, self.seed, self.rank, self.world = buffer, seed, rank, world

    def read(self, epoch: int = 0, state: State | None = None) -> Reading:
        """The records of an epoch, from its beginning or from what `.state()` said."""
        return Reading(self, epoch, state)

    def chunks(
        self,
        encode: Encode,
        size: int,
        *,
        epoch: int = 0,
        start: int = 0,
        state: State | None = None,
    ) -> Chunks:
        """Tables of `size` records each. `start` passes over so many chunks, which are read but not
        encoded; `state`, that of an earlier `Chunks`, begins at its place without reading what is
        in other files.
        """
        if size < 1 or start < 0:
            raise DataError(f"size={size}, start={start}: at least 1 record, from chunk 0 on")
        reading = self.read(epoch, state)
        reading.skip(start * size)
        return Chunks(reading, encode, size)


class Chunks:
    """Iterate for tables; `state()` after one of them is where the next begins."""

    def __init__(self, reading: Reading, encode: Encode, size: int) -> None:
        self.reading, self.encode, self.size = reading, encode, size

    def __iter__(self) -> Iterator[Table]:
        while placed := list(islice(self.reading, self.size)):
            records, places = [each for each, _ in placed], [place for _, place in placed]
            table = Table.from_pieces([encoded_chunk(self.encode, Chunk(records, places, 0))])
            if not len(table):
                where, number = places[0]
                raise DataError(
                    f"the encoder gave no row for {len(records)} records from {where} {number} on; "
                    "does a limit of length leave everything out?"
                )
            yield table

    def state(self) -> State:
        """Where the next chunk begins."""
        return self.reading.state()


class Reading:
    """Iterate for (record, place) in shuffled order; `state()` is where the next one stands.

    The buffer is filled, shuffled and emptied, then filled again: so that a state is the place
    where the buffer began to be filled, and how many were taken out of it since.
    """

    def __init__(self, stream: Stream, epoch: int, state: State | None) -> None:
        if state is not None and (state["epoch"], len(state["cursor"]["at"])) != (
            epoch,
            len(stream.records),
        ):
            raise DataError(
                f"this state is of epoch {state['epoch']} and {len(state['cursor']['at'])} sets of "
                f"records, not of epoch {epoch} and {len(stream.records)}"
            )
        self.stream, self.epoch = stream, epoch
        self.block = state["block"] if state else 0
        self.given = 0
        self._cursor = _Cursor(stream, epoch, state["cursor"] if state else None)
        self._begun = self._cursor.state()
        self._buffer: list[Placed] = []
        if state and state["given"]:
            self._fill()
            self.given = state["given"]

    def __iter__(self) -> Reading:
        return self

    def __next__(self) -> Placed:
        if self.given == len(self._buffer):
            self._next_block()
            self._fill()
            if not self._buffer:
                raise StopIteration
        self.given += 1
        return self._buffer[self.given - 1]

    def skip(self, count: int) -> None:
        """Pass over so many records; a buffer that is passed over as a whole is not shuffled."""
        while count:
            here = min(count, len(self._buffer) - self.given)
            self.given, count = self.given + here, count - here
            if count:
                self._next_block()
                if self._fill(shuffle=count < self.stream.buffer) == 0:
                    return

    def state(self) -> State:
        """A few numbers, for `Stream.read(epoch, state)`."""
        return {
            "epoch": self.epoch, "block": self.block, "given": self.given, "cursor": self._begun,
        }  # fmt: skip

    def _next_block(self) -> None:
        self.block += bool(self._buffer)
        self._begun, self.given, self._buffer = self._cursor.state(), 0, []

    def _fill(self, shuffle: bool = True) -> int:
        stream = self.stream
        found: list[Placed] = []
        while len(found) < stream.buffer:
            around = list(islice(self._cursor, stream.world))
            if len(around) < stream.world:
                break
            found.append(around[stream.rank])
        if shuffle:
            random = np.random.default_rng([stream.seed, self.epoch, self.block, stream.rank])
            found = (
                [found[i] for i in random.permutation(len(found))] if stream.buffer > 1 else found
            )
        self._buffer = found
        return len(found)


class _Cursor:
    """All records in the order of the files, several sets in turn by weight, with its place."""

    def __init__(self, stream: Stream, epoch: int, state: State | None) -> None:
        self.parts, self.epoch = stream.parts, epoch
        self.records = [
            _files_shuffled(records, [stream.seed, epoch, number]) if stream.buffer > 1 else records
            for number, records in enumerate(stream.records)
        ]
        at = state["at"] if state else [[0, 0]] * len(self.records)
        self.drawn: list[int] = list(state["drawn"]) if state else [0] * len(self.records)
        self.ended: list[bool] = list(state["ended"]) if state else [False] * len(self.records)
        self.passes = [Pass(each, *place) for each, place in zip(self.records, at, strict=True)]
        self.open = [iter(each) for each in self.passes]

    def state(self) -> State:
        at = [[each.source, each.record] for each in self.passes]
        return {"at": at, "drawn": list(self.drawn), "ended": list(self.ended)}

    def __iter__(self) -> _Cursor:
        return self

    def __next__(self) -> Placed:
        while not all(self.ended):
            # Whose part is furthest behind: proportions hold to a record at every moment.
            behind = self.parts * (sum(self.drawn) + 1) - self.drawn
            which = int(np.argmax(behind)) if len(self.parts) > 1 else 0
            record = next(self.open[which], None)
            if record is not None:
                self.drawn[which] += 1
                reading = self.passes[which]
                return record, (reading.where, reading.number)
            self.ended[which] = True
            self._again(which)
        raise StopIteration

    def _again(self, which: int) -> None:
        if all(self.ended):
            return
        if not self.drawn[which]:
            raise DataError(f"{self.records[which].description}: no record in it to mix in")
        self.passes[which] = Pass(self.records[which])
        self.open[which] = iter(self.passes[which])


def _files_shuffled(records: Records, seed: list[int]) -> Records:
    order = np.random.default_rng(seed).permutation(len(records.sources))
    return replace(records, sources=tuple(records.sources[i] for i in order))
