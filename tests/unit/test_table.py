"""Tables: built once, whole or not at all, the same however they are built."""

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from allformer.data.encoded import Rows
from allformer.data.records import open_records
from allformer.data.table import Table, Texts, build, build_table
from allformer.data.table.encode import can_be_sent
from allformer.errors import DataError


def encode(records: list[dict[str, Any]]) -> dict[str, Any]:
    """An id for each character, the length, the text, two numbers; X is refused, Q kills."""
    texts = [record["text"] for record in records]
    for text in texts:
        if "X" in text:
            raise DataError(f"no piece for {text!r}")
        if "Q" in text:
            os.kill(os.getpid(), signal.SIGKILL)
    return {
        "ids": [[ord(letter) for letter in text] for text in texts],
        "count": [len(text) for text in texts],
        "share": [len(text) / 2 for text in texts],
        "text": texts,
        "pair": np.array([[len(text), 7] for text in texts]),
    }


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {'é' * (i % 5)}{i}\n" for i in range(100)), encoding="utf-8")
    return path


def contents(table: Table) -> dict[str, list[Any]]:
    out = {}
    for name in table.columns:
        column = table[name]
        values = [column[i] for i in range(len(table))]
        out[name] = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    return out


def test_columns_have_the_narrowest_type_that_fits_and_come_back_from_disk(
    corpus: Path, tmp_path: Path
) -> None:
    records = open_records(corpus)
    table = build_table(records, encode, tmp_path / "t", chunk=7, workers=0)
    assert len(table) == 100
    assert isinstance(table["ids"], Rows)
    assert isinstance(table["text"], Texts)
    assert isinstance(table["ids"].ids, np.memmap)
    types = {name: table[name].dtype for name in ("count", "share", "pair")}
    assert types == {"count": np.int64, "share": np.float32, "pair": np.uint16}
    assert table["ids"].ids.dtype == np.uint16
    assert table["text"][99] == "line éééé99"
    assert table["pair"][3].tolist() == [len("line ééé3"), 7]
    assert contents(table) == contents(build_table(records, encode, chunk=1000))
    assert contents(table.take([5, 5, 0])) == {
        name: [values[i] for i in (5, 5, 0)] for name, values in contents(table).items()
    }
    with pytest.raises(DataError, match="no column 'idz' in the table; there are ids, count"):
        table["idz"]


@pytest.mark.parametrize(
    ("late", "dtype"),
    [(65_535, np.uint16), (65_536, np.int32), (-100, np.int32), (2**40, np.int64)],
)
def test_an_id_that_does_not_fit_widens_what_was_written(
    tmp_path: Path, late: int, dtype: Any
) -> None:
    rows = [[1, 2], [], [3], [late, 65_535], [4]]

    def numbers(records: list[dict[str, Any]]) -> dict[str, Any]:
        return {"ids": [rows[record["i"]] for record in records]}

    records = [{"i": i} for i in range(5)]
    for folder in (tmp_path / "t", None):
        table = build_table(records, numbers, folder, chunk=2)
        assert table["ids"].ids.dtype == dtype
        assert contents(table)["ids"] == rows


def test_a_table_with_the_same_key_is_taken_and_with_another_replaced(
    corpus: Path, tmp_path: Path
) -> None:
    calls = []

    def counted(records: list[dict[str, Any]]) -> dict[str, Any]:
        calls.append(len(records))
        return encode(records)

    records, folder = open_records(corpus), tmp_path / "deep" / "t"
    first = build_table(records, counted, folder, key="a")
    again = build_table(records, counted, folder, key="a", warn=pytest.fail)
    assert calls == [100]
    assert contents(first) == contents(again)
    build_table(records, counted, folder, key="b", warn=pytest.fail)
    assert calls == [100, 100]
    assert contents(first) == contents(again)  # an open table outlives its replacement
    assert sorted(path.name for path in folder.parent.iterdir()) == [".t.lock", "t"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a flipped bit": (lambda folder: flip(folder / "ids.values"), "ids.values is damaged"),
    "a short file": (lambda folder: os.truncate(folder / "ids.starts", 8), "has 8 bytes, not 800"),
    "a lost file": (lambda folder: (folder / "count.values").unlink(), "No such file"),
    "half a list": (lambda folder: os.truncate(folder / "table.json", 99), "table.json is damaged"),
    "no list": (lambda folder: (folder / "table.json").unlink(), "table.json cannot be read"),
    "another form": (
        lambda folder: (folder / "table.json").write_text(json.dumps({"version": 99})),
        "has form 99",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_table_is_built_again_and_said(corpus: Path, tmp_path: Path, kind: str) -> None:
    harm, words = DAMAGE[kind]
    records, told = open_records(corpus), list[str]()
    good = contents(build_table(records, encode, tmp_path / "t"))
    harm(tmp_path / "t")
    table = build_table(records, encode, tmp_path / "t", warn=told.append)
    assert contents(table) == good
    assert words in told[0]
    assert told[0].endswith("built again")


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    records = [{"text": "a"}, {"text": "bX"}]
    with pytest.raises(DataError, match="record 2: no piece for 'bX'"):
        build_table(records, encode, tmp_path / "t", chunk=1)
    assert [path.name for path in tmp_path.iterdir()] == [".t.lock"]


def test_a_build_that_is_killed_leaves_nothing_that_counts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\nb\nQ\n")
    code = f"""
from pathlib import Path
from allformer.data.records import open_records
from allformer.data.table import build_table
from tests.unit.test_table import encode
here = Path({str(tmp_path)!r})
build_table(open_records(here / "a.txt"), encode, here / "t", chunk=1, workers=0)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob(".t.building-*"))) == 1
    (tmp_path / "a.txt").write_text("a\nb\n")
    table = build_table(open_records(tmp_path / "a.txt"), encode, tmp_path / "t", warn=pytest.fail)
    assert contents(table)["text"] == ["a", "b"]
    assert not list(tmp_path.glob(".t.building-*"))


def test_of_two_who_want_the_same_table_one_builds_and_the_other_waits(
    corpus: Path, tmp_path: Path
) -> None:
    calls, tables = [], []

    def slow(records: list[dict[str, Any]]) -> dict[str, Any]:
        calls.append(1)
        time.sleep(0.2)
        return encode(records)

    def want() -> None:
        tables.append(build_table(open_records(corpus), slow, tmp_path / "t", key="k"))

    threads = [threading.Thread(target=want) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]
    assert len(tables) == 3
    assert contents(tables[0]) == contents(tables[2])


def test_who_waits_long_says_so(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_PATIENCE", 0.05)
    told, held = list[str](), threading.Event()

    def hold() -> None:
        with FileLock(tmp_path / ".t.lock"):
            held.set()
            time.sleep(0.3)

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    build_table(open_records(corpus), encode, tmp_path / "t", warn=told.append)
    other.join()
    assert told == [f"{tmp_path / 't'}: another process is building this table; waiting for it"]


def test_a_full_disk_is_said_and_leaves_nothing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("allformer.data.table.writer.sync", full)
    with pytest.raises(DataError, match=r"No space left on device.*make room"):
        build_table(open_records(corpus), encode, tmp_path / "t")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".t.lock", "a.txt"]


@pytest.mark.slow
def test_processes_give_what_one_gives_and_their_errors_name_the_line(
    corpus: Path, tmp_path: Path
) -> None:
    records = open_records(corpus)
    table = build_table(records, encode, tmp_path / "t", workers=2, chunk=9)
    assert contents(table) == contents(build_table(records, encode, workers=0))
    bad = tmp_path / "b.txt"
    bad.write_text("a\n\nb\nXX\n")
    with pytest.raises(DataError, match=r"b\.txt, line 4: no piece for 'XX'"):
        build_table(open_records(bad), encode, workers=1)


@pytest.mark.slow
def test_a_process_that_dies_is_told_with_its_status(tmp_path: Path) -> None:
    bad = tmp_path / "b.txt"
    bad.write_text("a\nQ\n")
    with pytest.raises(DataError, match=r"encoding process ended with status -9; .*fewer workers"):
        build_table(open_records(bad), encode, workers=1)


def test_an_encoder_that_no_other_process_can_have_is_refused_or_stays_here(corpus: Path) -> None:
    local = lambda records: encode(records)  # noqa: E731
    assert not can_be_sent(local)
    assert can_be_sent(encode)
    with pytest.raises(
        DataError, match="workers=2: encode must be a function or object of a module"
    ):
        build_table(open_records(corpus), local, workers=2)


def test_processes_are_started_only_where_they_pay() -> None:
    assert build._choice(left=1000.0, busy=1.0, cores=8) == 8
    assert build._choice(left=1000.0, busy=7.5, cores=8) == 0  # threads of the tokenisers library
    assert build._choice(left=5.0, busy=1.0, cores=8) == 0  # done before they had started
    assert build._choice(left=1000.0, busy=1.0, cores=1) == 0
    assert build._choice(left=1000.0, busy=1.0, cores=64) == 16


def test_progress_is_in_bytes_of_files_and_ends_at_the_total(corpus: Path) -> None:
    seen: list[tuple[int, int]] = []
    build_table(open_records(corpus), encode, chunk=10, progress=lambda *at: seen.append(at))
    size = corpus.stat().st_size
    assert len(seen) == 10
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)
    build_table([{"text": "a"}] * 3, encode, chunk=2, progress=lambda *at: seen.append(at))
    assert seen[-2:] == [(2, 3), (3, 3)]


def test_a_build_holds_a_few_chunks_in_memory_not_the_corpus(tmp_path: Path) -> None:
    def endless() -> Iterator[dict[str, Any]]:
        for i in range(20_000):
            yield {"text": f"{i:0500d}"}

    def short(records: list[dict[str, Any]]) -> dict[str, Any]:
        return {"ids": np.zeros((len(records), 500), np.uint16)}

    tracemalloc.start()
    table = build_table(endless(), short, tmp_path / "t", chunk=200)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert table["ids"].shape == (20_000, 500)  # 20 MB
    assert peak < 4_000_000


def test_a_mapped_table_is_sent_to_another_process_by_its_folder(
    corpus: Path, tmp_path: Path
) -> None:
    table = build_table(open_records(corpus), encode, tmp_path / "t")
    assert len(pickle.dumps(table)) < 500
    assert contents(pickle.loads(pickle.dumps(table))) == contents(table)
    memory = Table.from_columns({"ids": [[1], []], "text": ["a", ""]})
    assert contents(pickle.loads(pickle.dumps(memory))) == {"ids": [[1], []], "text": ["a", ""]}


BAD_COLUMNS = {
    "uneven": ({"a": [1, 2], "b": [1]}, "equally many rows, and there are a 2, b 1"),
    "nested": ({"a": [[[1], [2, 3]]]}, "column 'a' holds values such as"),
    "objects": ({"a": [{"x": 1}]}, "column 'a' holds an array of object"),
    "words in rows": ({"a": [["x"]]}, "column 'a' holds rows of <U1"),
    "three dimensions": ({"a": np.zeros((1, 1, 1))}, "shape"),
}


@pytest.mark.parametrize("kind", BAD_COLUMNS)
def test_columns_that_are_no_columns_are_refused(kind: str) -> None:
    columns, words = BAD_COLUMNS[kind]
    with pytest.raises(DataError, match=words):
        Table.from_columns(columns)


def test_an_encoder_that_changes_its_mind_is_refused(tmp_path: Path) -> None:
    answers = {
        "kind": ({"a": [1]}, {"a": [[1]]}, "is plain .* at first and rows"),
        "width": ({"a": np.ones((1, 2))}, {"a": np.ones((1, 3))}, r"shape \(2,\).* shape \(3,\)"),
        "float": ({"a": [[1]]}, {"a": [[1.5]]}, "float32"),
        "names": ({"a": [1]}, {"b": [1]}, "columns b after a"),
        "path": ({"../a": [1]}, {}, "a name is a letter"),
    }
    for first, second, words in answers.values():
        given = iter((first, second))
        with pytest.raises(DataError, match=words):
            build_table([{}, {}], lambda _, given=given: next(given), tmp_path / "t", chunk=1)
    for folder in (None, tmp_path / "t"):
        with pytest.raises(DataError, match="gave no row for any record"):
            build_table([{}], lambda _: {"a": []}, folder)
    with pytest.raises(DataError, match="chunk=0"):
        build_table([{}], encode, chunk=0)


@pytest.mark.parametrize("page", ["data.md", "data.zh-CN.md"])
def test_the_example_of_the_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    (code,) = [part.split("```")[0] for part in text.split("```python\n") if "build_table(" in part]
    (tmp_path / "reviews").mkdir()
    rows = "".join(f"a fine film no. {i},{i % 2}\n" for i in range(1500))
    (tmp_path / "reviews" / "a.csv").write_text("sentence,sentiment\n" + rows)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, page, "exec"), names)
    assert len(names["table"]) == 500
    assert (tmp_path / "cache" / "train" / "table.json").is_file()
