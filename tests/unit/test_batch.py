"""Collated batches: packed ids, shifted targets, and frames whose filler counts for nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from allformer.core.layout import Packed
from allformer.core.loss import IGNORE
from allformer.data.encoded import EncodedPairs, Rows
from allformer.errors import TrainingError
from allformer.train.batch import Frame, mapped, tensors
from allformer.train.objectives.seq2seq import PairBatch, Seq2Seq
from tests.models import BOS, EOS, KINDS, PAD, loud
from tests.models import loss_of as model_loss

SOURCES = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [14, 15], [16, 17, 18, 19]]
TARGETS = [[25, 26], [27, 28, 29, 30, 31, 32], [33], [34, 35, 36], [20, 21]]
INDEX = np.array([3, 0, 2, 1])  # not in order, and not all
FRAME = Frame(tokens=40, sentences=6, width=9)


def rows(sentences: list[list[int]]) -> Rows:
    lengths = np.array([len(s) for s in sentences])
    return Rows(np.concatenate(sentences).astype(np.uint16), lengths, lengths.cumsum() - lengths)


PAIRS = EncodedPairs(rows(SOURCES), rows(TARGETS))


def padded(sentences: list[list[int]], value: int) -> Tensor:
    width = max(map(len, sentences))
    return torch.tensor([s + [value] * (width - len(s)) for s in sentences])


def grid(ids: Tensor, layout: Packed, value: int, count: int) -> Tensor:
    """The first `count` rows as a padded grid."""
    assert isinstance(layout, Packed)
    filled = layout.to_grid(ids).masked_fill(~layout.keep, value)[:count]
    return filled[:, : int(layout.keep[:count].sum(1).max())]


def naive() -> tuple[Tensor, Tensor, Tensor]:
    """Source, what the decoder reads and what it has to say, row by row and padded."""
    source = padded([[*SOURCES[i], EOS] for i in INDEX], PAD)
    reads = padded([[BOS, *TARGETS[i]] for i in INDEX], PAD)
    says = padded([[*TARGETS[i], EOS] for i in INDEX], IGNORE)
    return source, reads, says


def loss_of(batch: PairBatch, smoothing: float = 0.1) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Loss, NLL and gradients of a loud model."""
    model = loud(KINDS["seq2seq paper"])
    loss, nll = model_loss(
        model,
        (batch.source, batch.source_layout),
        (batch.target, batch.target_layout),
        batch.labels,
        smoothing=smoothing,
    )
    loss.backward()
    return loss.detach(), nll, {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize("frame", [None, FRAME], ids=["plain", "framed"])
def test_a_batch_is_the_padded_rows_without_the_padding(frame):
    batch = Seq2Seq().collate(PAIRS, INDEX, frame)
    source, reads, says = naive()
    assert grid(batch.source, batch.source_layout, PAD, 4).equal(source)
    assert grid(batch.target, batch.target_layout, PAD, 4).equal(reads)
    assert grid(batch.labels, batch.target_layout, IGNORE, 4).equal(says)
    assert batch.tokens == int((says != IGNORE).sum())
    for layout in (batch.source_layout, batch.target_layout):
        lengths = layout.keep.sum(1)
        assert layout.starts.tolist() == [0, *lengths.cumsum(0).tolist()]
        assert layout.numbers.tolist() == [i for n in lengths.tolist() for i in range(n)]


def test_the_decoder_reads_one_place_behind_what_it_says():
    for frame in (None, FRAME):
        batch = Seq2Seq().collate(PAIRS, INDEX, frame)
        starts = batch.target_layout.starts.tolist()
        for row, i in enumerate(INDEX):
            place = slice(starts[row], starts[row + 1])
            assert batch.target[place].tolist() == [BOS, *TARGETS[i]]
            assert batch.labels[place].tolist() == [*TARGETS[i], EOS]


def test_packed_and_padded_give_the_same_loss():
    batch = Seq2Seq().collate(PAIRS, INDEX)
    loss, nll, _ = loss_of(batch, smoothing=0.0)
    source, reads, says = naive()
    model = loud(KINDS["seq2seq paper"])
    out = model(source, source != PAD, reads, (says != IGNORE).long(), says)
    torch.testing.assert_close(loss, out.loss.detach() * batch.tokens, rtol=1e-10, atol=0)
    torch.testing.assert_close(nll, loss, rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    "frame",
    [FRAME, Frame(16, 4, 7), Frame(64, 4, 64), Frame(500, 50, 7)],
    ids=["roomy", "tight", "one wide row", "many rows"],
)
def test_filler_changes_neither_loss_nor_gradient(frame):
    plain, framed = (Seq2Seq().collate(PAIRS, INDEX, f) for f in (None, frame))
    assert framed.tokens == plain.tokens
    want, got = loss_of(plain), loss_of(framed)
    torch.testing.assert_close(got[:2], want[:2], rtol=1e-11, atol=0)
    torch.testing.assert_close(got[2], want[2], rtol=1e-9, atol=1e-11)


def test_all_batches_of_a_frame_have_one_shape():
    shapes = set()
    for index in ([0], [1, 2], [4, 3, 2, 1], [0, 1, 2, 3, 4]):
        batch = Seq2Seq().collate(PAIRS, np.array(index), FRAME)
        shapes.add(tuple((tuple(x.shape), x.dtype) for x in tensors(batch)))
        assert not (batch.target >= 37).any()
        assert (batch.labels == IGNORE).sum() == FRAME.tokens - batch.tokens
    assert len(shapes) == 1


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (Frame(tokens=15, sentences=6, width=9), "16 tokens"),  # the source alone fits
        (Frame(tokens=40, sentences=3, width=9), "4 sentences"),
        (Frame(tokens=40, sentences=6, width=6), "the longest 7"),
    ],
    ids=["tokens", "sentences", "width"],
)
def test_a_batch_that_does_not_fit_its_frame_is_refused(frame, said):
    with pytest.raises(TrainingError, match=rf"{said}.*does not fit .*frame's own bounds"):
        Seq2Seq().collate(PAIRS, INDEX, frame)


def test_a_batch_that_just_fits_its_frame_has_no_filler():
    one = np.array([3])  # 2 + 1 source tokens, 3 + 1 target tokens
    batch = Seq2Seq().collate(PAIRS, one, Frame(tokens=4, sentences=1, width=4))
    assert batch.labels.tolist() == [34, 35, 36, EOS]
    assert batch.target.tolist() == [BOS, 34, 35, 36]
    assert batch.source[:3].tolist() == [14, 15, EOS]


def test_map_reaches_every_tensor_and_nothing_else():
    batch = Seq2Seq().collate(PAIRS, INDEX, FRAME)
    seen = []
    copy = mapped(batch, lambda x: seen.append(x) or x.clone())
    assert len(seen) == len(tensors(batch)) == 11
    assert {id(x) for x in seen} == {id(x) for x in tensors(batch)}
    assert copy.tokens == batch.tokens
    assert type(copy.source_layout) is type(batch.source_layout)
    for new, old in zip(tensors(copy), tensors(batch), strict=True):
        assert new.equal(old)
        assert new.data_ptr() != old.data_ptr()
