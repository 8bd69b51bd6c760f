"""Streams: shuffled in a bounded buffer, exact when resumed at any record, shared out by rank."""

import gzip
import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from allformer.data.records import Records, hold_out, open_records
from allformer.data.stream import Stream
from allformer.errors import DataError


@pytest.fixture
def shards(tmp_path: Path) -> Records:
    """Four files, 0 to 102, one of them packed."""
    number = 0
    for name, count in (("a.jsonl", 40), ("b.jsonl.gz", 30), ("c.jsonl", 32), ("d.jsonl", 1)):
        lines = "".join(json.dumps({"i": number + i}) + "\n" for i in range(count))
        data = lines.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        number += count
    return open_records(str(tmp_path / "*.jsonl*"))


def numbers(reading: Any) -> list[int]:
    return [record["i"] for record, _ in reading]


def encode(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    for record in records:
        if record["i"] < 0:
            raise DataError("no such number")
    return {"ids": [[record["i"]] for record in records]}


def test_an_epoch_has_every_record_once_in_an_order_of_its_own(shards: Records) -> None:
    stream = Stream(shards, buffer=16, seed=3)
    first, second = numbers(stream.read(0)), numbers(stream.read(1))
    assert sorted(first) == sorted(second) == list(range(103))
    assert first != second
    assert first == numbers(Stream(shards, buffer=16, seed=3).read(0))
    assert numbers(Stream(shards, buffer=1).read(5)) == list(range(103))


def test_a_stream_goes_on_exactly_from_any_record(shards: Records) -> None:
    stream = Stream(shards, buffer=16, seed=3)
    whole = numbers(stream.read(2))
    reading = stream.read(2)
    for taken in range(104):
        state = json.loads(json.dumps(reading.state()))
        assert len(json.dumps(state)) < 200
        assert numbers(stream.read(2, state)) == whole[taken:]
        next(reading, None)
    with pytest.raises(DataError, match=r"of epoch 2 .* not of epoch 0"):
        stream.read(0, state)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 50, 102, 103, 500])
def test_records_passed_over_are_those_that_would_have_come(shards: Records, count: int) -> None:
    stream = Stream(shards, buffer=16, seed=3)
    reading = stream.read(0)
    reading.skip(count)
    assert numbers(reading) == numbers(stream.read(0))[count:]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_ranks_share_the_records_out_evenly(shards: Records, world: int) -> None:
    parts = [
        numbers(Stream(shards, buffer=8, seed=1, rank=rank, world=world).read(0))
        for rank in range(world)
    ]
    assert {len(part) for part in parts} == {103 // world}
    together = [i for part in parts for i in part]
    assert len(set(together)) == len(together) == 103 // world * world
    stream = Stream(shards, buffer=8, seed=1, rank=1, world=world)
    reading = stream.read(0)
    for _ in range(11):
        next(reading)
    assert numbers(stream.read(0, reading.state())) == parts[1][11:]


def test_chunks_are_tables_and_go_on_by_number_or_by_state(shards: Records) -> None:
    stream = Stream(shards, buffer=16, seed=3)
    tables = list(stream.chunks(encode, 10, epoch=1))
    assert [len(table) for table in tables] == [10] * 10 + [3]
    rows = [table["ids"].flat().tolist() for table in tables]
    assert [i for row in rows for i in row] == numbers(stream.read(1))
    by_number = stream.chunks(encode, 10, epoch=1, start=4)
    assert [table["ids"].flat().tolist() for table in by_number] == rows[4:]
    chunks = stream.chunks(encode, 10, epoch=1)
    going = iter(chunks)
    next(going), next(going), next(going)
    again = stream.chunks(encode, 10, epoch=1, state=chunks.state())
    assert [table["ids"].flat().tolist() for table in again] == rows[3:]


def test_several_sets_come_in_proportion_and_small_ones_again(tmp_path: Path) -> None:
    for name, first, count in (("a", 0, 90), ("b", 1000, 7)):
        lines = "".join(json.dumps({"i": first + i}) + "\n" for i in range(count))
        (tmp_path / f"{name}.jsonl").write_text(lines)
    sets = [open_records(tmp_path / f"{name}.jsonl") for name in "ab"]
    stream = Stream(sets, weights=[2, 1], buffer=1)
    seen = numbers(stream.read(0))
    for end in range(1, len(seen)):
        assert abs(sum(i < 1000 for i in seen[:end]) - end * 2 / 3) < 1
    assert [i for i in seen if i < 1000] == list(range(90))
    small = [i - 1000 for i in seen if i >= 1000]
    assert small == [i % 7 for i in range(len(small))]
    reading = stream.read(0)
    for taken in range(60):
        if taken % 7 == 0:
            assert numbers(stream.read(0, reading.state())) == seen[taken:]
        next(reading)


def test_a_bad_record_is_named_wherever_it_comes_up(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"i": 1}\n{"i": -1}\n{"i": \n')
    with pytest.raises(DataError, match=r"a\.jsonl, line 3: not JSON"):
        numbers(Stream(open_records(path)).read(0))
    path.write_text('{"i": 1}\n\n{"i": -1}\n')
    with pytest.raises(DataError, match=r"a\.jsonl, line 3: no such number"):
        list(Stream(open_records(path)).chunks(encode, 2))
    with pytest.raises(DataError, match="gave no row for 1 records"):
        list(Stream(open_records(path)).chunks(lambda _: {"ids": []}, 1))


def test_a_long_stream_holds_its_buffer_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(("x" * 999 + "\n") * 20_000)  # 20 MB
    stream = Stream(open_records(path), buffer=200)
    tracemalloc.start()
    for table in stream.chunks(lambda records: {"n": [len(r["text"]) for r in records]}, 100):
        assert table["n"][0] == 999
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_held_out_records_do_not_come(shards: Records) -> None:
    train, validation = hold_out(shards, 20, column="i")
    stream = Stream(train, buffer=16)
    held = {record["i"] for record in validation}
    assert sorted(numbers(stream.read(0))) == sorted(set(range(103)) - held)


def test_streams_that_cannot_be_are_refused(shards: Records) -> None:
    for options in ({"buffer": 0}, {"rank": 2, "world": 2}, {"weights": [1, 2]}):
        with pytest.raises(DataError):
            Stream(shards, **options)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="needs records"):
        Stream([])
    with pytest.raises(DataError, match="size=0"):
        Stream(shards).chunks(encode, 0)
