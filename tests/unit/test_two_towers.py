"""Two towers as a tree of our own: built, counted, saved, traced, trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import allformer as af
from allformer import config
from allformer.config import (
    Attention,
    Block,
    Contrast,
    Feed,
    Learned,
    LearnedPlane,
    Norm,
    Patches,
    Probe,
    Stack,
    Tokens,
    TwoTowers,
    VectorHead,
)
from allformer.core.starts import decay_groups
from allformer.errors import ConfigError

BLOCK = Block(Attention(2), Feed(24, act="quick_gelu"), norm_at="pre", dropout=0.0)
TEXT = Stack(
    16, Tokens(20, eos_id=19), Learned(7), (BLOCK,) * 2, causal=True, final_norm=Norm(), dropout=0.0
)
PATCHES = Patches(4, image=(8, 8), bias=False)
VISION = Stack(12, PATCHES, LearnedPlane((2, 2)), (BLOCK,), source_norm=Norm(), dropout=0.0)
WORDS = VectorHead("eos", 6, output="text_embeds")
SIGHT = VectorHead("first", 6, Norm(), "image_embeds")
TREE = TwoTowers(TEXT, VISION, Contrast(WORDS, SIGHT))


def batch() -> dict[str, torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 19, (4, 7), generator=make)
    ids[:, -1] = 19
    return {"input_ids": ids, "pixel_values": torch.randn(4, 3, 8, 8, generator=make)}


def test_the_tree_goes_to_json_and_back_and_counts_what_is_built() -> None:
    assert af.config_from_json(TREE.to_json()) == TREE
    model = af.build(TREE, seed=0)
    assert af.count(TREE).parameters == sum(p.numel() for p in model.parameters())
    assert model.head.scale.item() == pytest.approx(2.6592)


SIGMOID = Contrast(
    VectorHead("last", 12, output="text_embeds", bias=True),
    VectorHead(Probe(3, Feed(8)), output="image_embeds"),
    scale=2.3,
    bias=-10.0,
)


@pytest.mark.parametrize("head", [TREE.head, SIGMOID], ids=["softmax", "sigmoid"])
def test_our_own_layout_keeps_it(head: Contrast, tmp_path: Path) -> None:
    tree = replace(TREE, head=head)
    assert af.config_from_json(tree.to_json()) == tree
    model = af.build(tree, seed=0).eval()
    assert af.count(tree).parameters == sum(p.numel() for p in model.parameters())
    af.save(model, tmp_path, family="allformer")
    again = af.load(tmp_path)
    assert torch.equal(again(**batch()).logits_per_text, model(**batch()).logits_per_text)


def test_it_learns_which_text_belongs_to_which_image() -> None:
    model, inputs = af.build(TREE, seed=0), batch()
    model.recompute("layers")
    groups = decay_groups(model, 0.1)
    assert not any(p is model.head.scale for p in groups[0]["params"])
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    before = model(**inputs, return_loss=True).loss.item()
    for _ in range(25):
        optimizer.zero_grad()
        loss = model(**inputs, return_loss=True).loss
        loss.backward()
        optimizer.step()
    assert before > 1.0
    assert loss.item() < 0.1
    assert model(**inputs).logits_per_image.argmax(-1).tolist() == [0, 1, 2, 3]


def test_a_trace_sees_both_towers_and_changes_nothing() -> None:
    model = af.build(TREE, seed=0).eval()
    seen = af.trace(model, **batch())
    assert seen["vision.0.attention.weights"].shape == (4, 2, 5, 5)
    assert seen["text.0.attention.weights"].shape == (4, 2, 7, 7)
    assert torch.allclose(seen["head.scores"], model(**batch()).logits_per_text, atol=1e-5)


def test_half_precision_computes_both_towers() -> None:
    model = af.build(TREE, seed=0).eval()
    half = model(**batch(), dtype=torch.bfloat16).logits_per_text
    assert half.dtype == torch.bfloat16
    assert torch.allclose(half.float(), model(**batch()).logits_per_text, atol=0.3)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: replace(TREE, head=Contrast(WORDS, replace(SIGHT, width=7))), "width"),
        (lambda: Contrast(WORDS, replace(SIGHT, output="text_embeds")), "output"),
        (lambda: TwoTowers(VISION, VISION, Contrast(replace(WORDS, at="first"), SIGHT)), "tokens"),
        (lambda: TwoTowers(TEXT, TEXT, Contrast(WORDS, SIGHT)), "reads tokens"),
        (lambda: config.EncoderOnly(VISION, VectorHead(Probe(5, Feed(8)))), "heads=5"),
        (lambda: config.EncoderOnly(VISION, WORDS), "looks for a token"),
        (lambda: config.EncoderOnly(VISION, Contrast(WORDS, SIGHT)), "TwoTowers"),
        (lambda: replace(TREE, text=replace(TEXT, source=Tokens(20))), "eos_id"),
    ],
)
def test_what_makes_no_sense_is_refused(make, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()
