"""Reversible layers: the plain form in value and gradient, and memory that does not grow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import allformer as af
from allformer.config import (
    LSH,
    Attention,
    Axial,
    Block,
    BucketBias,
    DecoderOnly,
    EncoderOnly,
    Features,
    Feed,
    Full,
    LMHead,
    Local,
    Norm,
    Reversible,
    Rotary,
    Stack,
    Tokens,
    Window,
    XLRelative,
    cycle,
    repeat,
)
from allformer.core.flows.reversible import Reversible as Flow
from allformer.core.mixers import lsh
from allformer.errors import ConfigError
from tests.models import crossed, loud, tokens

FULL = Block(Attention(3, dropout=0.2), Feed(40, dropout=0.1), norm_at="pre", dropout=0.3)
HASHED = replace(FULL, attention=Attention(3, dropout=0.2, mixer=LSH(4, 2), bias=False))
NEAR = replace(FULL, attention=Attention(3, dropout=0.2, mixer=Local(4)))


def stack(block: Block = FULL, layers: int = 3, **changes) -> Stack:
    blocks = repeat(block, layers)
    plain = Stack(24, Tokens(37), None, blocks, final_norm=Norm(), dropout=0.0, flow=Reversible())
    return replace(plain, **changes)


def model(block: Block = FULL, **changes):
    return loud(EncoderOnly(stack(block, **changes), LMHead(tied=False)))


def gradients(made, ids, seed=5):
    """The logits of a training step, and every gradient."""
    made.zero_grad()
    torch.manual_seed(seed)
    out = made.train()(input_ids=ids, labels=ids)
    out.loss.backward()
    return out.logits.detach(), {name: p.grad.clone() for name, p in made.named_parameters()}


def plainly(self, x, runs, draws):
    """As if autograd did it all."""
    return torch.cat(self.plain((x, x), runs, x.dtype), -1)


def check_reversed(block: Block, **changes) -> None:
    made, ids = model(block, **changes), tokens(2, 13)
    logits, found = gradients(made, ids)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flow, "forward", plainly)
        wanted_logits, wanted = gradients(made, ids)
    torch.testing.assert_close(logits, wanted_logits, rtol=0, atol=1e-12)
    for name, grad in wanted.items():
        assert grad.abs().max() > 0, name
        torch.testing.assert_close(found[name], grad, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize(
    "block", [FULL, HASHED, NEAR, replace(FULL, feed=Feed(40, dropout=0.1, chunk=5))]
)
def test_values_and_gradients_are_those_of_the_plain_form_with_the_same_dropout(block):
    check_reversed(block)


def test_layers_that_are_shared_gather_the_gradients_of_all_their_runs():
    check_reversed(FULL, layers=4, share=(0, 1, 0, 1))


def test_layers_of_several_kinds_are_joined():
    check_reversed(FULL, blocks=cycle((NEAR, HASHED, FULL), 4))


def check_behind_a_cache(mixer) -> None:
    """The tokens behind others are learnt from: a layer that runs twice would write twice."""
    block = replace(FULL, attention=Attention(3, mixer=mixer), dropout=0.0, feed=Feed(40))
    made = loud(DecoderOnly(stack(block, causal=True, layers=2), LMHead(tied=False)))
    ids, found = tokens(2, 29), []
    for forward in (Flow.forward, plainly):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Flow, "forward", forward)
            cache = made.new_cache()
            with torch.no_grad():
                made(input_ids=ids[:, :13], cache=cache)
            made.zero_grad()
            made(input_ids=ids[:, 13:], cache=cache, labels=ids[:, 13:]).loss.backward()
        found.append({name: p.grad.clone() for name, p in made.named_parameters()})
    for name, grad in found[1].items():
        assert grad.abs().max() > 0, name
        torch.testing.assert_close(found[0][name], grad, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize(
    "mixer", [Full(), Window(5), Local(4), LSH(4, 2, seed=1), Features("elu")], ids=str
)
def test_behind_a_cache_gradients_are_those_of_the_plain_form(mixer):
    check_behind_a_cache(mixer)


def test_a_memory_of_earlier_segments_is_learnt_with():
    block = replace(FULL, attention=Attention(3), dropout=0.0, feed=Feed(40))
    tree = stack(block, causal=True, layers=2, relative=XLRelative(10))
    made, ids = loud(DecoderOnly(tree, LMHead(tied=False))), tokens(2, 13)
    made(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in made.parameters())


def check_decided_once() -> None:
    made, ids, asked = model(HASHED, layers=2), tokens(2, 13), []
    plain = lsh._buckets
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lsh, "_buckets", lambda *args: asked.append(0) or plain(*args))
        loss = made.train()(input_ids=ids, labels=ids).loss
        assert len(asked) == 2
        loss.backward()
    assert len(asked) == 2


def test_buckets_are_not_decided_again_by_states_that_are_computed_again():
    check_decided_once()


def test_the_generator_goes_on_as_if_nothing_were_computed_again():
    made, ids = model(), tokens(2, 13)
    gradients(made, ids)
    after = torch.rand(1)
    torch.manual_seed(5)
    with torch.no_grad():
        made(input_ids=ids)
    assert torch.equal(torch.rand(1), after)


def test_a_second_backward_gives_the_same():
    made, ids = model(), tokens(2, 13)
    loss = made.train()(input_ids=ids, labels=ids).loss
    loss.backward(retain_graph=True)
    first = {name: p.grad.clone() for name, p in made.named_parameters()}
    made.zero_grad()
    loss.backward()
    for name, p in made.named_parameters():
        assert torch.equal(p.grad, first[name]), name


def test_frozen_weights_get_no_gradient_and_others_the_same():
    made, ids = model(), tokens(2, 13)
    wanted = gradients(made, ids)[1]
    frozen = made.encoder.layers[1].attention.qkv.weight.requires_grad_(False)
    frozen.grad = None
    torch.manual_seed(5)
    made.zero_grad()
    made(input_ids=ids, labels=ids).loss.backward()
    assert frozen.grad is None
    other = made.encoder.layers[0].feed.up.weight
    torch.testing.assert_close(other.grad, wanted["encoder.layers.0.feed.up.weight"])


def kept_bytes(layers: int, flow) -> int:
    """What a forward pass keeps for the backward pass, weights not counted."""
    made = model(HASHED, layers=layers, flow=flow).train()
    weights = {p.untyped_storage().data_ptr() for p in made.parameters()}
    seen: dict[int, int] = {}

    def keep(x):
        where = x.untyped_storage()
        if where.data_ptr() not in weights:
            seen[where.data_ptr()] = where.nbytes()
        return x

    with saved_tensors_hooks(keep, lambda x: x):
        made.states(input_ids=tokens(2, 64))["encoder"]
    return sum(seen.values())


def test_what_is_kept_does_not_grow_with_the_depth():
    two, eight = (kept_bytes(layers, Reversible()) for layers in (2, 8))
    assert eight <= 1.05 * two
    assert kept_bytes(8, None) > 3 * kept_bytes(2, None)
    assert kept_bytes(8, None) > 20 * eight


def test_one_sub_layer_is_alive_at_a_time_in_the_backward_pass():
    made, ids = model(layers=6).train(), tokens(2, 13)
    out = made(input_ids=ids, labels=ids).loss
    alive, most = [0], [0]

    class Held:
        def __init__(self, x):
            self.x = x
            alive[0] += 1
            most[0] = max(most[0], alive[0])

        def __del__(self):
            alive[0] -= 1

    with saved_tensors_hooks(Held, lambda held: held.x):
        out.backward()
    assert 0 < most[0] < 30  # of one attention; all six layers have some 200


def test_tracing_changes_no_number_and_names_both_streams():
    made, ids = model(NEAR), tokens(2, 13)
    seen = af.trace(made.eval(), input_ids=ids)
    with torch.no_grad():
        states = made.states(input_ids=ids)["encoder"]
    torch.testing.assert_close(seen["encoder.output"], states, rtol=0, atol=0)
    last = torch.cat([seen["encoder.2.attention_added"], seen["encoder.2.feed_added"]], -1)
    torch.testing.assert_close(made.encoder.final_norm(last), states, rtol=0, atol=0)


def test_a_decoder_generates_step_by_step_what_it_says_at_once():
    tree = DecoderOnly(stack(causal=True, relative=Rotary()), LMHead(tied=False))
    made, ids = loud(tree), tokens(2, 11)
    with torch.no_grad():
        whole = made(input_ids=ids).logits
        cache = made.new_cache()
        steps = [made(input_ids=ids[:, i : i + 1], cache=cache).logits for i in range(11)]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=1e-10)


def test_half_precision_reverses_what_it_added():
    made, ids = model().float(), tokens(2, 13)

    def gradient(flow):
        with pytest.MonkeyPatch.context() as patch:
            if flow is not None:
                patch.setattr(Flow, "forward", flow)
            made.zero_grad()
            out = made.eval()(input_ids=ids, labels=ids, dtype=torch.bfloat16).loss
            out.backward()
        return made.encoder.layers[0].feed.up.weight.grad.clone()

    def plain(self, x, runs, draws):
        wide = x.float(), x.float()
        return torch.cat(self.plain(wide, runs, x.dtype), -1).to(x.dtype)

    a, b = gradient(None), gradient(plain)
    assert (a - b).norm() < 0.02 * b.norm()


def test_the_count_is_what_is_built():
    tree = EncoderOnly(stack(position=Axial((4, 8), (4, 20))), LMHead(tied=False))
    assert af.count(tree).parameters == sum(p.numel() for p in af.build(tree).parameters())
    deep = replace(tree, encoder=replace(tree.encoder, blocks=repeat(FULL, 24)))
    assert af.count(deep).activation_bytes == af.count(tree).activation_bytes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"blocks": repeat(replace(FULL, norm_at="post"), 2)}, 'norm_at="pre"'),
        ({"blocks": repeat(crossed(FULL), 2)}, "cross=None"),
        ({"relative": BucketBias()}, "Rotary"),
    ],
)
def test_what_cannot_be_reversed_is_refused(changes, says):
    with pytest.raises(ConfigError, match=r"^Stack\.flow=Reversible\(\)") as refused:
        stack(**changes)
    assert says in str(refused.value)
