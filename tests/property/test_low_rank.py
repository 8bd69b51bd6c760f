"""Linformer: keys and values projected along the length."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import allformer as af
from allformer.config import (
    Attention,
    BucketBias,
    DecoderOnly,
    EncoderDecoder,
    LowRank,
    Rotary,
    config_from_json,
)
from allformer.core.layout import Grid
from allformer.core.mixers.mixer import Scene
from allformer.core.starts import decay_groups
from allformer.errors import ConfigError
from tests.largest import Largest
from tests.models import (
    MODERN,
    PAPER,
    encoder_only,
    left_padding,
    loud,
    on_the_grid,
    right_padding,
    stack,
    tokens,
)

SHARES = ("none", "heads", "keys-values", "layers")
shares = pytest.mark.parametrize("share", SHARES)


def block(share, rank=7, length=24, base=MODERN):
    return replace(base, attention=replace(base.attention, mixer=LowRank(rank, length, share)))


def naive(mixer, q, k, v):
    """One row without padding, as the paper writes it: q H T D, k and v G T D → H T D."""
    heads = []
    for h in range(mixer.heads):
        g = h * mixer.groups // mixer.heads
        e = mixer.along.keys[g if mixer.config.share == "none" else 0, :, : k.shape[1]]
        f = e
        if mixer.along.values is not None:
            f = mixer.along.values[g if mixer.config.share == "none" else 0, :, : k.shape[1]]
        weights = (q[h] @ (e @ k[g]).T * mixer.scale).softmax(-1)
        heads.append(weights @ (f @ v[g]))
    return torch.stack(heads)


def check_formula(share: str) -> None:
    model = loud(encoder_only(block(share)))
    mixer = model.encoder.layers[0].attention.mixer
    ids = tokens(1, 17)
    trace = af.trace(model, input_ids=ids)
    q, k, v = (trace[f"encoder.0.attention.{name}"][0] for name in "qkv")
    k, v = k.transpose(0, 1), v.transpose(0, 1)  # G T D
    context = naive(mixer, q, k, v).transpose(0, 1).flatten(-2)
    torch.testing.assert_close(trace["encoder.0.attention.context"][0], context)
    assert trace["encoder.0.attention.low_weights"].shape == (1, 6, 17, 7)
    assert "encoder.0.attention.weights" not in trace

    parts = {n: x.transpose(0, 1).flatten(-2)[None] for n, x in (("q", q), ("k", k), ("v", v))}
    parts = {n: x.detach().requires_grad_() for n, x in parts.items()}
    learned = list(mixer.along.parameters())
    plan = mixer.plan(_scene(17))
    noise = torch.randn(17, 30, generator=torch.Generator().manual_seed(0)).double()
    found = torch.autograd.grad(
        (mixer(parts, plan, None, None)[0] * noise).sum(), [*parts.values(), *learned]
    )
    q, k, v = (parts[n][0].view(17, -1, 5).transpose(0, 1) for n in "qkv")
    out = naive(mixer, q, k, v).transpose(0, 1).flatten(-2)
    wanted = torch.autograd.grad((out * noise).sum(), [*parts.values(), *learned])
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


@shares
def test_context_and_gradients_are_the_formulas(share):
    check_formula(share)


def _scene(width):
    grid = Grid(1, width)
    return Scene(grid, grid, torch.device("cpu"), torch.float64)


@shares
def test_the_identity_is_full_attention(share):
    made = loud(encoder_only(block(share, 20, 20)))
    for parameter in (p for n, p in made.named_parameters() if ".along." in n):
        parameter.data.copy_(torch.eye(20).expand(parameter.shape))
    plain = loud(encoder_only(MODERN))
    plain.load_state_dict({n: x for n, x in made.state_dict().items() if ".along." not in n})
    ids = tokens(2, 20)
    torch.testing.assert_close(made(input_ids=ids).logits, plain(input_ids=ids).logits)


def check_padding(share: str, relative: Rotary | None = None) -> None:
    base = replace(MODERN, attention=Attention(6, kv_heads=2, head_dim=4))
    model = loud(encoder_only(block(share, base=base), relative=relative))
    ids = tokens(3, 19)
    alone = [
        model(input_ids=row[None, :n]).logits[0] for row, n in zip(ids, (19, 8, 13), strict=True)
    ]
    for pad in (right_padding, left_padding):
        mask = pad([19, 8, 13], 19)
        rows = torch.full_like(ids, 5)  # padding that would be seen
        for i, n in enumerate((19, 8, 13)):
            rows[i, mask[i].bool()] = ids[i, :n]
        found = [model(input_ids=rows, attention_mask=mask).logits]
        with on_the_grid():
            found.append(model(input_ids=rows, attention_mask=mask).logits)
        found.append(model(input_ids=rows, attention_mask=mask, kernel="eager").logits)
        for logits in found:
            for i, wanted in enumerate(alone):
                near = 1e-10 if relative is None else 1e-4  # angles are fp32
                mine = logits[i, mask[i].bool()]
                torch.testing.assert_close(mine, wanted, rtol=near, atol=near)


@shares
@pytest.mark.parametrize("relative", [None, Rotary()])
def test_padding_on_either_side_and_a_shorter_row_change_nothing(share, relative):
    check_padding(share, relative)


@shares
def test_parameters_are_as_many_as_the_paper_says(share, tmp_path):
    tree = encoder_only(block(share))
    model = loud(tree)
    own = {n: p for n, p in model.named_parameters() if ".along." in n}
    wanted = {"none": 2 * 2 * 2, "heads": 2 * 2, "keys-values": 2, "layers": 1}[share]
    assert sum(p.numel() for p in own.values()) == wanted * 7 * 24
    assert af.count(tree).parameters == sum(p.numel() for p in model.parameters())
    decaying = {id(p) for p in decay_groups(model, 0.1)[0]["params"]}
    assert not any(id(p) in decaying for p in own.values())
    assert config_from_json(tree.to_json()) == tree
    af.save(model, tmp_path, family="allformer")
    again = af.load(tmp_path).eval()
    ids = tokens(1, 9)
    assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits)
    mixers = [layer.attention.mixer for layer in again.encoder.layers]
    assert (mixers[0].along is mixers[1].along) == (share == "layers")


def test_costs_are_by_rank():
    attention = Attention(6, kv_heads=2, head_dim=5, mixer=LowRank(7, 24))
    for n in (24, 1_000_000):
        assert attention.mixer.keys(n, causal=False) == 7
        assert attention.mixer.flops(attention, 30, n, causal=False) == 4 * 7 * 5 * (6 + 2)
    assert encoder_only(block("heads")).encoder.longest == 24


def test_no_tensor_is_as_large_as_the_square():
    tree = encoder_only(block("layers", 32, 8192, PAPER), layers=1)
    model = af.build(replace(tree, head=None), device="meta")
    with Largest() as largest:
        ids = torch.zeros(1, 8192, dtype=torch.long, device="meta")
        model(input_ids=ids).last_hidden_state.sum().backward()
    assert largest.numbers <= 8192 * 32 * 4


def test_an_input_beyond_the_length_is_refused():
    model = loud(encoder_only(block("layers")))
    with pytest.raises(ConfigError, match=r"25 tokens wide, but LowRank.length=24; cut it to 24"):
        model(input_ids=tokens(1, 25))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LowRank(9, 8), r"LowRank.rank=9 must be at most length=8"),
        (lambda: LowRank(2, 8, "all"), r"LowRank.share='all' is not a choice; try 'none', 'heads'"),
        (
            lambda: DecoderOnly(stack(block("none"), causal=True)),
            r"LowRank.rank=7 projects later tokens into every key.*; try Features\(.elu.\)",
        ),
        (
            lambda: encoder_only(block("none"), relative=BucketBias()),
            r"leaves no key at its place, so relative=BucketBias.*; try relative=Rotary\(\)",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_way_out(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_an_encoder_of_a_pair_may_have_it():
    decoder = stack(replace(MODERN, cross=MODERN.attention), causal=True)
    model = loud(EncoderDecoder(stack(block("layers")), decoder))
    mask = right_padding([9, 4], 9)
    model(input_ids=tokens(2, 9), attention_mask=mask, labels=tokens(2, 7, seed=1)).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_rows_cut_among_processes_are_refused():
    mixer = loud(encoder_only(block("layers"))).encoder.layers[0].attention.mixer
    with pytest.raises(ConfigError, match="LowRank projects whole rows"):
        mixer.plan(_scene(9)._replace(cached=True))
