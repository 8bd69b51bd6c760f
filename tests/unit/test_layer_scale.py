"""Layer scale: a learned factor for each feature of what a sub-layer gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import allformer as af
from allformer.config import EncoderOnly, Model, Reversible
from allformer.core.block import LayerScale
from allformer.core.starts import decay_groups
from allformer.errors import ConfigError
from tests.loud import make_loud
from tests.models import MODERN, PAPER, decoder_only, encoder_only, seq2seq, stack

SCALED = replace(PAPER, scale=0.5)
TREES: dict[str, Model] = {
    "post-norm": encoder_only(SCALED),
    "pre-norm": decoder_only(replace(MODERN, scale=0.5)),
    "across": seq2seq(SCALED),
}


@pytest.mark.parametrize("name", TREES)
def test_the_factors_are_those_of_the_last_matrices(name: str) -> None:
    """f(x)·λ is what rows of the last matrix (and its bias) times λ give."""
    model = make_loud(af.build(TREES[name])).double().eval()
    ids = torch.arange(12).view(2, 6) + 4
    inputs = {"input_ids": ids, "labels": ids}
    before = model(**inputs).logits
    with torch.no_grad():
        for block in model.modules():
            for part, last in (("attention", "out"), ("cross", "out"), ("feed", "down")):
                scale = getattr(block, f"{part}_scale", None)
                if not isinstance(scale, LayerScale):
                    continue
                matrix = getattr(getattr(block, part), last)
                matrix.weight.mul_(scale.weight[:, None])
                if matrix.bias is not None:
                    matrix.bias.mul_(scale.weight)
                scale.weight.fill_(1.0)
    assert torch.allclose(model(**inputs).logits, before, atol=1e-10)


@pytest.mark.parametrize("name", TREES)
def test_they_are_counted_and_start_as_said(name: str) -> None:
    model = af.build(TREES[name], seed=0)
    assert af.count(TREES[name]).parameters == sum(p.numel() for p in model.parameters())
    scales = [part for part in model.modules() if isinstance(part, LayerScale)]
    assert scales
    assert all(torch.equal(s.weight, torch.full((24,), 0.5)) for s in scales)
    still = {id(p) for p in decay_groups(model, 0.1)[1]["params"]}
    assert all(id(s.weight) in still for s in scales)


def test_streams_that_run_backwards_have_them_too() -> None:
    body = stack(replace(PAPER, norm_at="pre", scale=0.5), flow=Reversible())
    model, ids = make_loud(af.build(EncoderOnly(body))).double(), torch.arange(12).view(2, 6) + 4
    model(input_ids=ids).last_hidden_state.square().sum().backward()
    grads = [p.grad for name, p in model.named_parameters() if "_scale" in name]
    assert len(grads) == 4
    assert all(grad is not None and grad.any() for grad in grads)


def test_no_factor_is_none() -> None:
    with pytest.raises(ConfigError, match=r"Block\.scale=0\.0 must be positive"):
        replace(PAPER, scale=0.0)
