"""Presets of Linformer, Performer and the linear Transformer: their papers' sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import allformer as af
from allformer.config import Features, LowRank
from allformer.errors import AllformerError
from tests.models import tokens

NAMES = {
    "linformer-base": LowRank(256, 512, "layers"),
    "linformer-base-1024": LowRank(256, 1024, "layers"),
    "performer-protein": Features("favor", 256),
    "performer-protein-causal": Features("favor", 256),
    "linear-mnist": Features("elu"),
    "linear-cifar10": Features("elu"),
    "linear-bytes": Features("elu"),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_counts_what_it_builds_and_has_its_mixer_in_every_layer(name):
    tree = af.preset(name)
    model = af.build(tree, device="meta")
    assert af.count(tree).parameters == sum(p.numel() for p in model.parameters())
    assert {b.attention.mixer for b in tree.writer.blocks} == {NAMES[name]}


def test_linformer_is_roberta_and_one_matrix():
    plain = af.count(af.preset("roberta-base")).parameters
    pooler, head = 768 * 768 + 768, 768 * 768 + 768 + 2 * 768 + 50_265
    made = af.count(af.preset("linformer-base")).parameters
    assert made == plain - pooler + head + 256 * 512


def test_the_papers_sizes():
    protein = af.preset("performer-protein").encoder
    assert (protein.dim, len(protein.blocks), protein.blocks[0].feed.width) == (512, 36, 1024)
    for name, layers in (("linear-mnist", 8), ("linear-cifar10", 16)):
        stack = af.preset(name).decoder
        attention = stack.blocks[0].attention
        assert (len(stack.blocks), attention.heads, attention.size(stack.dim)) == (layers, 8, 32)


@pytest.mark.parametrize("name", NAMES)
def test_no_other_family_takes_it_for_its_own(name, tmp_path):
    tree = af.preset(name)
    (stack,) = tree.stacks
    small = replace(tree.writer, blocks=tree.writer.blocks[:1], source=_small(tree.writer.source))
    model = af.build(replace(tree, **{stack: small}), seed=0).eval()
    with pytest.raises(AllformerError):
        af.save(model, tmp_path)
    af.save(model, tmp_path, family="allformer")
    ids = tokens(1, 12, vocab=20)
    assert torch.equal(af.load(tmp_path)(input_ids=ids).logits, model(input_ids=ids).logits)


def _small(source):
    return replace(source, vocab=min(source.vocab, 64))
