"""Rows of the three stages: flattened with offsets, and back."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allformer.audiolm.tokens import STAGES, Stage, flatten, unflatten, without_repeats
from allformer.errors import ConfigError, DataError


def drawn(books: int, frames: int, size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, size, (books, frames))


def test_repeats_go_and_what_comes_back_later_stays() -> None:
    check_repeats()


def check_repeats() -> None:
    assert without_repeats([7, 7, 7, 2, 2, 7]).tolist() == [7, 2, 7]
    assert without_repeats([]).tolist() == []


@given(st.lists(st.integers(0, 3), max_size=30))
def test_no_two_neighbours_are_alike_and_the_order_is_kept(units: list[int]) -> None:
    found = without_repeats(units).tolist()
    assert all(a != b for a, b in pairwise(found))
    assert without_repeats(found).tolist() == found
    assert set(found) == set(units)


def test_codes_lie_frame_by_frame_each_book_with_its_offset() -> None:
    check_flat()


def check_flat() -> None:
    """As the paper's formula has it, by hand; and the row of each stage."""
    for name, before, said in (
        ("coarse", [4, 2], [1 + 5, 3 + 5 + 10, 2 + 5, 4 + 5 + 10]),
        ("fine", [1, 3 + 10, 2, 4 + 10], [5 + 20, 6 + 20]),
    ):
        stage = Stage(name, units=5, codes=10, coarse=2, books=3)
        row = stage.row([4, 4, 2], [[1, 2], [3, 4], [5, 6]])
        assert row.ids.tolist() == [stage.begin, *before, stage.then, *said]
        assert row.given == len(before) + 2
    assert flatten([[1, 2], [3, 4]], 10).tolist() == [1, 13, 2, 14]
    assert flatten([[1, 2], [3, 4]], 10, first=2).tolist() == [21, 33, 22, 34]


@given(st.integers(1, 5), st.integers(0, 6), st.integers(1, 9), st.integers(0, 3))
def test_flatten_and_unflatten_are_inverse(books: int, frames: int, size: int, first: int) -> None:
    codes = drawn(books, frames, size, books * frames)
    ids = flatten(codes, size, first)
    assert np.array_equal(unflatten(ids, size, books, first), codes)
    assert ids.shape == (books * frames,)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 5), st.integers(2, 9))
def test_what_a_row_says_is_what_went_in(coarse: int, fine: int, frames: int, size: int) -> None:
    books = coarse + fine
    codes, units = drawn(books, frames, size, frames), drawn(1, 7, 4, size)[0]
    for name in STAGES:
        stage = Stage(name, units=4, codes=size, coarse=coarse, books=books)
        row = stage.row(units, codes)
        said = row.ids[row.given :]
        own = codes[stage.said_books.start : stage.said_books.stop]
        wanted = without_repeats(units) if name == "semantic" else own
        assert np.array_equal(stage.read(said), wanted)
        assert row.ids.max() < stage.size
        assert len(row.ids) <= stage.longest(len(units), frames)
        if name != "semantic":
            assert all(id in stage.may_say(i) for i, id in enumerate(said.tolist()))


def test_ids_of_units_books_and_marks_do_not_meet() -> None:
    for name in STAGES:
        stage = Stage(name, units=5, codes=7, coarse=2, books=5)
        parts = [set(stage.may_say(i)) for i in range(max(1, len(stage.said_books)))]
        marks = [stage.begin, stage.then, stage.end, stage.pad]
        every = [id for part in parts for id in part] + marks
        assert len(set(every)) == len(every)
        assert max(every) == stage.size - 1


def test_a_prompt_is_the_beginning_of_its_row() -> None:
    codes, units = drawn(5, 4, 7, 0), [1, 1, 2]
    for name in ("coarse", "fine"):
        stage = Stage(name, units=5, codes=7, coarse=2, books=5)
        row, prompt = stage.row(units, codes), stage.prompt(units, codes, known=3)
        assert np.array_equal(prompt, row.ids[: len(prompt)])
        assert len(prompt) == row.given + 3 * len(stage.said_books)
        assert len(stage.prompt(units, codes)) == row.given


def test_the_semantic_stage_is_read_to_its_end() -> None:
    stage = Stage("semantic", units=5)
    assert stage.read([3, 1, stage.end, stage.pad]).tolist() == [3, 1]
    assert stage.read([3, 1]).tolist() == [3, 1]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="stage='corse' is not a choice"):
        Stage("corse")
    with pytest.raises(ConfigError, match="coarse=4 must be 1 … 3"):
        Stage("coarse", units=2, codes=4, coarse=4, books=3)
    with pytest.raises(ConfigError, match="nothing to say"):
        Stage("fine", codes=4, coarse=3, books=3)
    with pytest.raises(DataError, match="no whole frames"):
        unflatten([1, 2, 3], 4, 2)
    with pytest.raises(DataError, match="another book"):
        unflatten([5, 1], 4, 2)
    with pytest.raises(DataError, match="books of 4"):
        flatten([[4]], 4)
