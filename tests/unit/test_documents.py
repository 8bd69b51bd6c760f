"""Rows out of documents: no token lost, none doubled, borders kept, (seed, epoch) decides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allformer.data.documents import cut_documents, cut_stream, pack
from allformer.data.encoded import Rows
from allformer.errors import DataError

Documents = st.lists(st.lists(st.integers(1, 60_000), max_size=30), min_size=1, max_size=20)


def flat(documents: list[list[int]], eos: int | None) -> list[int]:
    end = [] if eos is None else [eos]
    return [id for document in documents for id in document + end]


@given(Documents, st.integers(1, 12), st.sampled_from([None, 0, 70_000]), st.data())
def test_a_stream_is_all_documents_end_to_end_cut_evenly(documents, length, eos, data):
    rows = Rows.from_lists(documents)
    whole = flat(documents, eos)
    if len(whole) < length or not len(rows.ids):
        with pytest.raises(DataError, match="more than all documents together"):
            cut_stream(rows, length, eos)
        return
    overlap = data.draw(st.integers(0, length - 1))
    epoch = data.draw(st.integers(0, 5))
    stream = cut_stream(rows, length, eos, seed=7, epoch=epoch, overlap=overlap)
    step = length - overlap
    assert len(stream) > 0
    assert 0 <= stream.offset < step
    for i in range(len(stream)):
        begin = stream.offset + i * step
        assert stream[i].tolist() == whole[begin : begin + length]
    left = len(whole) - (stream.offset + len(stream) * step + overlap)
    assert 0 <= left < step  # no whole row was forgotten
    assert stream.lengths.tolist() == [length] * len(stream)
    order = list(range(len(stream)))[::-1]
    assert stream.take(order).tolist() == [stream[i].tolist() for i in order]


def test_the_offset_of_a_stream_is_another_in_each_epoch_and_none_without_a_seed():
    rows = Rows.from_lists([list(range(1, 200))])
    offsets = [cut_stream(rows, 20, 0, seed=1, epoch=epoch).offset for epoch in range(20)]
    assert len(set(offsets)) > 5
    assert offsets == [cut_stream(rows, 20, 0, seed=1, epoch=epoch).offset for epoch in range(20)]
    assert cut_stream(rows, 20, 0).offset == 0


def test_rows_that_overlap_by_one_predict_every_token_once():
    rows = Rows.from_lists([[1, 2, 3], [4, 5]])
    stream = cut_stream(rows, 4, 0, overlap=1)
    batch = stream.take(range(len(stream)))
    assert batch[:, 1:].ravel().tolist() == [2, 3, 0, 4, 5, 0]


def test_an_end_token_beyond_the_type_of_the_ids_is_kept():
    rows = Rows(np.array([1, 2], np.uint16), np.array([2]), np.array([0]))
    assert cut_stream(rows, 3, 70_000)[0].tolist() == [1, 2, 70_000]


@given(Documents, st.integers(1, 12))
def test_pieces_of_documents_join_to_the_documents_and_share_their_memory(documents, length):
    rows = Rows.from_lists(documents)
    pieces = cut_documents(rows, length)
    assert pieces.ids is rows.ids
    assert all(0 < n <= length for n in pieces.lengths)
    assert pieces.flat().tolist() == flat(documents, None)
    expected = [
        document[at : at + length]
        for document in documents
        for at in range(0, len(document), length)
    ]
    assert [pieces[i].tolist() for i in range(len(pieces))] == expected


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(0, 3))
def test_packing_loses_no_piece_doubles_none_and_overfills_no_row(sizes, epoch):
    packing = pack(sizes, 40, seed=5, epoch=epoch)
    assert sorted(packing.order.tolist()) == list(range(len(sizes)))
    for i in range(len(packing)):
        assert 0 < sum(sizes[piece] for piece in packing[i]) == packing.lengths[i] <= 40
    again = pack(sizes, 40, seed=5, epoch=epoch)
    assert again.order.tolist() == packing.order.tolist()
    assert again.starts.tolist() == packing.starts.tolist()


@given(st.lists(st.integers(1, 40), max_size=60))
def test_packing_is_best_fit_decreasing(sizes):
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fits = [i for i, room in enumerate(rooms) if room >= size]
        if fits:
            rooms[min(fits, key=lambda i: rooms[i])] -= size
        else:
            rooms.append(40 - size)
    packing = pack(sizes, 40, seed=0)
    assert sorted(40 - packing.lengths) == sorted(rooms)


def test_packing_of_many_pieces_is_nearly_full_and_other_in_each_epoch():
    sizes = np.random.default_rng(0).integers(1, 513, 20_000)
    first, second = (pack(sizes, 512, seed=0, epoch=epoch) for epoch in (0, 1))
    assert sizes.sum() / (len(first) * 512) > 0.99
    assert sorted(first.lengths.tolist()) == sorted(second.lengths.tolist())
    assert first[0].tolist() != second[0].tolist()
    assert first.lengths[:100].tolist() != sorted(first.lengths[:100].tolist())


def test_pieces_of_a_row_keep_their_borders():
    rows = Rows.from_lists([[1, 2, 3], [4], [5, 6], [7, 8]])
    pieces = cut_documents(rows, 4)
    packing = pack(pieces.lengths, 4, seed=0)
    assert packing.lengths.tolist() == [4, 4]
    for i in range(2):
        row = pieces.take(packing[i])
        parts = np.split(row.flat(), np.cumsum(row.lengths)[:-1])
        assert [part.tolist() for part in parts] == [pieces[j].tolist() for j in packing[i]]
    assert packing.take([1, 0]).tolist() == [*packing[1], *packing[0]]
    assert sorted(pieces.take(packing.take([0, 1])).flat().tolist()) == list(range(1, 9))
    assert len(packing.take([])) == 0


def test_what_cannot_be_cut_or_packed_is_refused():
    rows = Rows.from_lists([[1, 2]])
    for call, words in (
        (lambda: cut_stream(rows, 0, 0), "length=0"),
        (lambda: cut_stream(rows, 2, 0, overlap=2), "overlap=2"),
        (lambda: cut_documents(rows, 0), "length=0"),
        (lambda: pack([3, 9], 8, seed=0), "a piece of 9 tokens .* cut it with cut_documents"),
        (lambda: pack([3, 0], 8, seed=0), "a piece of 0 tokens"),
    ):
        with pytest.raises(DataError, match=words):
            call()
