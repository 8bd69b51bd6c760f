"""Packed = grid: leaving the padding out changes neither values nor gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from allformer.core.layout import Grid, Packed, compact, pack
from allformer.core.model import EncoderDecoderModel
from allformer.core.replay import pack_into
from allformer.core.trace import trace
from tests.diverge import assert_same, packed_trace
from tests.models import KINDS, left_padding, loss_of, loud, on_the_grid, right_padding, tokens

SIDES = {"left": left_padding, "right": right_padding}


class Batch:
    """One ragged batch, as a grid and packed."""

    def __init__(self, side: str) -> None:
        self.source, self.target = tokens(4, 50, 1), tokens(4, 48, 2)
        self.source_keep = SIDES[side]([50, 3, 33, 17], 50)
        self.target_keep = SIDES[side]([9, 48, 20, 31], 48)
        self.labels = tokens(4, 48, 3).masked_fill(self.target_keep == 0, -100)
        self.labels[0, ::3] = -100  # inside a sentence too
        self.layouts = {"encoder": pack(self.source_keep), "decoder": pack(self.target_keep)}

    def packed(self) -> tuple[tuple[Tensor, Packed], tuple[Tensor, Packed], Tensor]:
        source, target = self.layouts["encoder"], self.layouts["decoder"]
        return (
            (source.lay(self.source), source),
            (target.lay(self.target), target),
            target.lay(self.labels),
        )

    def grid(self) -> dict[str, Tensor]:
        return {
            "input_ids": self.source,
            "attention_mask": self.source_keep,
            "decoder_input_ids": self.target,
            "decoder_attention_mask": self.target_keep,
        }


def gradients(model: EncoderDecoderModel, loss: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def check_loss(kind: str, side: str, smoothing: float) -> None:
    """model.loss on packed tokens = cross-entropy of the grid's logits; every gradient too."""
    model, batch = loud(KINDS[kind]), Batch(side)
    loss, nll = loss_of(model, *batch.packed(), smoothing=smoothing)
    with on_the_grid():
        logits = model(**batch.grid()).logits
    flat, labels = logits.flatten(0, 1), batch.labels.flatten()
    wanted = F.cross_entropy(flat, labels, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(loss, wanted, rtol=1e-10, atol=0)
    plain = F.cross_entropy(flat, labels, reduction="sum")
    torch.testing.assert_close(nll, plain, rtol=1e-10, atol=0)
    mine, hers = gradients(model, loss), gradients(model, wanted)
    assert_same(mine, hers)


def check_loss_of_a_grid() -> None:
    """model.loss takes a padded grid as well, and gives the same sum."""
    model, batch = loud(KINDS["seq2seq paper"]), Batch("left")
    packed = loss_of(model, *batch.packed(), smoothing=0.1)
    layouts = [Grid(*keep.shape, keep.bool()) for keep in (batch.source_keep, batch.target_keep)]
    grid = loss_of(
        model, (batch.source, layouts[0]), (batch.target, layouts[1]), batch.labels, smoothing=0.1
    )
    torch.testing.assert_close(grid, packed, rtol=1e-10, atol=0)


def check_taps(kind: str, side: str) -> None:
    """Every intermediate of a packed run, laid back on the grid, is the grid's."""
    model, batch = loud(KINDS[kind]), Batch(side)
    with torch.no_grad():
        seen = packed_trace(lambda: loss_of(model, *batch.packed()), batch.layouts)
    keep = {"encoder": batch.source_keep, "decoder": batch.target_keep}
    assert_same(seen, trace(model, **batch.grid()), keep=keep)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", ["seq2seq paper", "seq2seq modern"])
def test_packed_loss_and_gradients_equal_the_grid(kind, side, smoothing):
    check_loss(kind, side, smoothing)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", ["seq2seq paper", "seq2seq modern"])
def test_every_packed_intermediate_equals_the_grid(kind, side):
    check_taps(kind, side)


def test_the_loss_of_a_grid_is_the_loss_of_the_packed_batch():
    check_loss_of_a_grid()


def check_separate() -> None:
    """A packed batch = the sum over its sentences, each alone: no row sees another."""
    model, batch = loud(KINDS["seq2seq paper"]), Batch("right")
    loss, _ = loss_of(model, *batch.packed(), smoothing=0.1)
    alone = torch.zeros((), dtype=torch.float64)
    for i in range(4):
        s, t = batch.source_keep[i].bool(), batch.target_keep[i].bool()
        logits = model(batch.source[i : i + 1, s], None, batch.target[i : i + 1, t]).logits[0]
        alone += F.cross_entropy(logits, batch.labels[i, t], reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(loss, alone, rtol=1e-10, atol=0)


def test_a_packed_batch_is_the_sum_of_its_sentences():
    check_separate()


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.sampled_from(sorted(SIDES)))
def test_packing_loses_nothing_and_counts_positions_in_each_row(lengths, side):
    mask = SIDES[side](lengths, 7)
    layout = pack(mask)
    x = torch.randn(*mask.shape, 3)
    packed = layout.lay(x)
    assert packed.shape == (sum(lengths), 3)
    assert torch.equal(layout.to_grid(packed), x * mask[..., None])
    assert layout.starts.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    assert layout.numbers.tolist() == [i for n in lengths for i in range(n)]


@pytest.mark.parametrize("side", [left_padding, right_padding])
def test_packing_into_a_fixed_number_of_places_adds_only_rows_of_their_own(side):
    keep = side([7, 1, 30, 12, 60, 2, 3, 44], 60).bool()
    wanted, got = pack(keep), pack_into(keep, 256)
    count, rows = int(keep.sum()), len(keep)
    assert len(got.cells) == len(got.numbers) == 256
    assert torch.equal(got.cells[:count], wanted.cells)
    assert torch.equal(got.numbers[:count], wanted.numbers)
    assert torch.equal(got.starts[: rows + 1], wanted.starts)
    assert not keep.flatten()[got.cells[count:]].any(), "what is too many is padding"
    assert got.cells.unique().numel() == 256, "each cell once"
    lengths = got.starts.diff()
    assert got.starts[-1] == 256
    assert lengths.max() <= 60, "no row is longer than the grid is wide"
    fewer = pack_into(side([2, 1, 3, 1, 1, 1, 1, 1], 60).bool(), 256)
    assert fewer.starts.shape == got.starts.shape, "sizes depend on the shape of the grid alone"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_layouts_carry_the_gradient(backend):
    """torch 2.11 loses it where a Function's forward writes into its result."""
    layout = pack(right_padding([3, 5, 0, 2], 5))
    weights = torch.arange(10.0)[:, None] + 1

    def there_and_back(x: Tensor) -> Tensor:
        return (layout.lay(layout.to_grid(x) ** 2) * weights).sum()

    torch._dynamo.reset()
    x = torch.randn(10, 3, requires_grad=True)
    (mine,) = torch.autograd.grad(torch.compile(there_and_back, backend=backend)(x), x)
    torch.testing.assert_close(mine, 2 * x.detach() * weights)


@pytest.mark.parametrize("side", [left_padding, right_padding])
def test_the_smallest_grid_holds_the_same_tokens_in_order(side):
    layout = pack(side([7, 0, 30, 12], 40).bool())
    small = compact(layout)
    assert small.keep.shape == (4, 30)
    assert small.keep.sum(-1).tolist() == [7, 0, 30, 12]
    x = torch.randn(49, 3)
    grid = small.to_grid(x)
    assert torch.equal(grid[2], x[7:37])
    assert torch.equal(small.lay(grid), x)
    full = pack(torch.ones(2, 5).bool())
    assert compact(full) is full
    nothing = pack(torch.zeros(2, 5).bool())
    assert compact(nothing) is nothing
