"""Dropout only while training; a narrow compute dtype only where it is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allformer.core.layout import pack
from allformer.core.model import build
from tests.loud import make_loud
from tests.models import KINDS, PAPER, crossed, loss_of, loud, right_padding, seq2seq, stack, tokens

RATE = 0.3
PLACES = {
    "input": lambda c: replace(c, encoder=replace(c.encoder, dropout=RATE)),
    "sub-layers": lambda c: seq2seq(replace(PAPER, dropout=RATE)),
    "attention weights": lambda c: seq2seq(
        replace(PAPER, attention=replace(PAPER.attention, dropout=RATE))
    ),
    "cross-attention weights": lambda c: replace(
        c,
        decoder=stack(
            replace(crossed(PAPER), cross=replace(PAPER.attention, dropout=RATE)), causal=True
        ),
    ),
    "feed-forward": lambda c: seq2seq(replace(PAPER, feed=replace(PAPER.feed, dropout=RATE))),
}


def check_dropout(place: str, route: str) -> None:
    """Random while training, nothing at all in eval mode."""
    model = make_loud(build(PLACES[place](seq2seq()), seed=0).double(), seed=1)
    mask = right_padding([20, 9], 20) if route == "packed" else None
    inputs = (tokens(2, 20), mask, tokens(2, 20, 1), mask)
    kernel = "eager" if route == "eager" else "fast"
    quiet = loud(seq2seq() if place != "cross-attention weights" else PLACES[place](seq2seq()))
    with torch.no_grad():
        model.train()
        first, second = (model(*inputs, kernel=kernel).logits for _ in range(2))
        assert (first - second).abs().max() > 1e-3, "no dropout while training"
        model.eval()
        first, second = (model(*inputs, kernel=kernel).logits for _ in range(2))
        assert torch.equal(first, second), "dropout in eval mode"
        wanted = quiet(*inputs, kernel=kernel).logits  # the same weights, no dropout at all
    torch.testing.assert_close(first, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("route", ["grid", "eager", "packed"])
@pytest.mark.parametrize("place", PLACES)
def test_dropout_acts_in_training_only(place, route):
    check_dropout(place, route)


def check_bf16(kind: str) -> None:
    """bf16 activations over fp32 weights: close values, fp32 gradients."""
    model = build(KINDS[kind], seed=0)
    ids, mask = tokens(3, 48), right_padding([48, 40, 21], 48)
    inputs = {"input_ids": ids, "attention_mask": mask}
    labels = ids.masked_fill(mask == 0, -100)
    wide = model(**inputs, labels=labels)
    narrow = model(**inputs, labels=labels, dtype=torch.bfloat16)
    assert narrow.logits.dtype == torch.bfloat16
    assert wide.logits.dtype == torch.float32
    off = (narrow.logits.float() - wide.logits).norm() / wide.logits.norm()
    assert 1e-4 < off < 0.03
    torch.testing.assert_close(narrow.loss, wide.loss, rtol=0.01, atol=0)
    wanted = torch.autograd.grad(wide.loss, list(model.parameters()))
    narrow.loss.backward()
    for (name, p), hers in zip(model.named_parameters(), wanted, strict=True):
        assert p.dtype == p.grad.dtype == torch.float32
        if hers.norm() > 1e-5:  # a key's bias has none
            assert (p.grad - hers).norm() < 0.1 * hers.norm(), name


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_is_close_and_its_gradients_are_fp32(kind):
    check_bf16(kind)


def test_the_packed_loss_in_bf16_is_close_with_fp32_gradients():
    model = build(KINDS["seq2seq paper"], seed=0)
    ids, layout = tokens(3, 48), pack(right_padding([48, 40, 21], 48))
    side = (layout.lay(ids), layout)
    labels = layout.lay(tokens(3, 48, 1))
    wide, _ = loss_of(model, side, side, labels, smoothing=0.1)
    narrow, nll = loss_of(model, side, side, labels, smoothing=0.1, dtype=torch.bfloat16)
    assert narrow.dtype == nll.dtype == torch.float32
    torch.testing.assert_close(narrow, wide, rtol=0.01, atol=0)
    wanted = torch.autograd.grad(wide, list(model.parameters()))
    narrow.backward()
    for (name, p), hers in zip(model.named_parameters(), wanted, strict=True):
        assert p.grad.dtype == torch.float32
        if hers.norm() > 1e-3:
            assert (p.grad - hers).norm() < 0.1 * hers.norm(), name
