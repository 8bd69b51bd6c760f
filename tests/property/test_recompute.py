"""Activation checkpointing changes no number, whatever the shape, the layout and the dropout."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import allformer as af
from allformer.config import DecoderOnly, EncoderOnly, LMHead
from allformer.core.recompute import MODES
from allformer.errors import ConfigError
from allformer.families.original import transformer
from tests.models import VOCAB


def tree(kind):
    """A small model with dropout everywhere."""
    whole = transformer(
        16, 2, 24, 2, vocab=VOCAB, dropout=0.2, attention_dropout=0.1, feed_dropout=0.1
    )
    if kind == "seq2seq":
        return whole
    stack = replace(whole.encoder, causal=kind == "decoder")
    return DecoderOnly(stack) if kind == "decoder" else EncoderOnly(stack, head=LMHead())


def gradients(kind, mode, padded):
    """The loss and every gradient of one training pass."""
    torch.manual_seed(1)
    model = af.build(tree(kind), seed=0).double().train()
    model.recompute(mode)
    ids = torch.randint(4, VOCAB, (3, 7))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, 4:] = mask[2, 2:] = 0
    torch.manual_seed(2)
    given = {"input_ids": ids, "attention_mask": mask, "labels": ids}
    loss = model(**given).loss
    loss.backward()
    return loss, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("padded", [False, True], ids=["grid", "packed"])
@pytest.mark.parametrize("kind", ["encoder", "decoder", "seq2seq"])
@pytest.mark.parametrize("mode", MODES)
def test_what_is_made_again_is_what_was_kept(mode, kind, padded):
    wanted, hers = gradients(kind, None, padded)
    loss, mine = gradients(kind, mode, padded)
    torch.testing.assert_close(loss, wanted, rtol=0, atol=0)
    for name, grad in mine.items():
        torch.testing.assert_close(grad, hers[name], rtol=1e-12, atol=1e-14)


def kept_bytes(mode):
    """What autograd keeps of a forward pass, parameters aside."""
    model = af.build(tree("decoder"), seed=0).train()
    model.recompute(mode)
    own = {p.data_ptr() for p in model.parameters()}
    seen: dict[int, int] = {}

    def keep(x):
        if x.data_ptr() not in own:
            seen[x.data_ptr()] = x.untyped_storage().nbytes()
        return x

    ids = torch.randint(4, VOCAB, (4, 32))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        model.states(input_ids=ids)
    return sum(seen.values())


def test_a_layer_that_is_made_again_keeps_its_input_alone():
    assert kept_bytes("layers") < kept_bytes(None) / 4


def test_another_word_is_refused_with_those_that_are_known():
    with pytest.raises(ConfigError, match=r"recompute='blocks'.*'layers', 'selective'"):
        af.build(tree("decoder"), seed=0).recompute("blocks")
