"""Attention by features: chunks, the recurrence and the formula for each pair are one."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import allformer as af
from allformer.config import (
    Attention,
    BucketBias,
    EncoderDecoder,
    Features,
    Rotary,
    config_from_json,
)
from allformer.core.fused.linear_attention import CHUNK, causal_attention, whole_attention
from allformer.core.layout import Grid
from allformer.core.mixers.features import Features as Mixer
from allformer.core.mixers.features import Plan, orthogonal, redraw
from allformer.core.states import Cache, Growing
from allformer.errors import ConfigError
from tests.largest import Largest
from tests.models import (
    MODERN,
    PAPER,
    SPREAD,
    decoder_only,
    encoder_only,
    left_padding,
    loud,
    on_the_grid,
    right_padding,
    stack,
    tokens,
)

ELU, FAVOR = Features("elu"), Features("favor", 24, seed=3)
KINDS = {"elu": ELU, "favor": FAVOR}
LENGTH = 2 * CHUNK + 45
both = pytest.mark.parametrize("kind", KINDS)


def block(mixer, base=MODERN):
    return replace(base, attention=replace(base.attention, mixer=mixer))


def mixer_of(kind, heads=6, groups=2, size=5):
    """A mixer alone, in fp64."""
    attention = Attention(heads, kv_heads=groups, head_dim=size, mixer=KINDS[kind])
    mixer = Mixer(attention, heads * size, "decoder.0.attention").double()
    mixer.reset_parameters()
    return mixer


def projections(rows=2, heads=6, groups=2, length=LENGTH, size=5, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(rows, n, length, size, generator=generator, dtype=torch.float64).to(dtype)
        for n in (heads, groups, groups)
    )


def naive(mixer, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, causal: bool) -> Tensor:
    """Each pair's weight as the papers write it: nothing stabilised, nothing summed ahead."""
    k, v = (x.repeat_interleave(mixer.heads // mixer.groups, 1) for x in (k, v))

    def phi(x):
        if not mixer.favor:
            return torch.where(x > 0, x + 1, x.exp())
        x = x * mixer.scale**0.5
        return (x @ mixer.draws.T - x.square().sum(-1, keepdim=True) / 2).exp()

    weights = torch.einsum("bhtf,bhsf->bhts", phi(q), phi(k)) * keep[:, None, None]
    if causal:
        places = torch.arange(q.shape[2])
        weights = weights * (places[None] <= places[:, None])
    mass = weights.sum(-1, keepdim=True)
    return weights / torch.where(mass > 0, mass, 1.0) @ v


def fast(mixer, q, k, v, keep, causal):
    q, k, top = mixer.features(q, k, keep[:, None])
    return causal_attention(q, k, v, top)[0] if causal else whole_attention(q, k, v, top)


def check_formula(kind: str, causal: bool) -> None:
    mixer = mixer_of(kind)
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    keep[0, : CHUNK + 11], keep[1, 270:], keep[1, 9] = False, False, False  # a chunk of nobody
    results = []
    for form in (naive, fast):
        q, k, v = (x.requires_grad_() for x in projections())
        out = form(mixer, q, k, v, keep, causal)
        loss = (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(1))).sum()
        results.append([out, *torch.autograd.grad(loss, (q, k, v))])
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@both
@pytest.mark.parametrize("causal", [True, False])
def test_chunks_give_the_values_and_gradients_of_the_formula(kind, causal):
    check_formula(kind, causal)


def check_steps(kind: str) -> None:
    mixer = mixer_of(kind)
    q, k, v = projections()
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    keep[0, :5] = False
    q, k, top = mixer.features(q, k, keep[:, None])
    whole, last = causal_attention(q, k, v, top)
    sums, steps = None, []
    for begin, end in pairwise([0, 150, 151, 152, 290, *range(291, LENGTH + 1)]):
        part = slice(begin, end)
        mine = None if top is None else top[:, :, part]
        out, sums = causal_attention(q[:, :, part], k[:, :, part], v[:, :, part], mine, sums)
        steps.append(out)
    torch.testing.assert_close(torch.cat(steps, 2), whole, rtol=1e-12, atol=1e-12)
    for found, wanted in zip(sums, last, strict=True):
        if wanted is not None:
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@both
def test_token_by_token_is_all_at_once(kind):
    check_steps(kind)


def check_future(kind: str) -> None:
    mixer = mixer_of(kind)
    q, k, v = projections(length=150)
    keep = torch.ones(2, 150, dtype=torch.bool)
    before = fast(mixer, q, k, v, keep, causal=True)
    k[:, :, 97:] *= 9  # these keys would raise a common stabiliser
    v[:, :, 97:] += 5
    after = fast(mixer, q, k, v, keep, causal=True)
    assert torch.equal(before[:, :, :97], after[:, :, :97])
    assert not torch.equal(before[:, :, 97:], after[:, :, 97:])


@both
def test_what_comes_later_changes_no_bit(kind):
    check_future(kind)


def check_huge() -> None:
    mixer = mixer_of("favor", 1, 1, 16).float()
    q, k, v = projections(1, 1, 1, 200, 16, dtype=torch.float32)
    k[:, :, 0] *= 40  # exp(−|k|²/2) is far below any float: alone, it still is all there is
    keep = torch.ones(1, 200, dtype=torch.bool)
    out = fast(mixer, q, k, v, keep, causal=True)
    torch.testing.assert_close(out[:, :, 0], v[:, :, 0])
    wanted = fast(mixer.double(), q.double(), k.double(), v.double(), keep, causal=True)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)


def test_huge_keys_neither_overflow_nor_vanish():
    check_huge()


def test_favor_is_softmax_on_average_and_errs_as_one_over_the_root():
    generator = torch.Generator().manual_seed(0)
    size, tries = 8, 4000
    q, k = (torch.randn(5, size, generator=generator, dtype=torch.float64) * 0.2 for _ in "qk")
    wanted = (q @ k.T).exp()

    def estimates(draws: Tensor) -> Tensor:
        a, b = ((x @ draws.mT - x.square().sum(-1, keepdim=True) / 2).exp() for x in (q, k))
        return a @ b.mT / draws.shape[1]

    errors = {}
    for count in (8, 32, 128):  # whole blocks: each try has draws of its own
        found = estimates(orthogonal(tries * count, size, generator).view(tries, count, size))
        sure = found.std(0) / math.sqrt(tries)
        assert ((found.mean(0) - wanted).abs() < 4 * sure).all()  # each of 25 pairs
        errors[count] = ((found - wanted) / wanted).square().mean().sqrt()
    for few, many in ((8, 32), (32, 128)):
        assert 1.85 < errors[few] / errors[many] < 2.15  # √4
    free = torch.randn(tries, 8, size, generator=generator, dtype=torch.float64)
    assert errors[8] < 0.96 * ((estimates(free) - wanted) / wanted).square().mean().sqrt()


def test_a_model_with_many_features_gives_what_softmax_gives():
    gentle = replace(PAPER.attention, scale=0.05)
    plain = af.build(encoder_only(replace(PAPER, attention=gentle)), seed=0).double().eval()
    ids = tokens(2, 20)
    wanted = plain(input_ids=ids).last_hidden_state
    errors = []
    for count in (64, 4096):
        own = replace(PAPER, attention=replace(gentle, mixer=Features("favor", count)))
        made = af.build(encoder_only(own), seed=0).double().eval()
        errors.append((made(input_ids=ids).last_hidden_state - wanted).std().item())
    assert errors[1] < 0.01 < 4 * errors[1] < errors[0]


def check_draws() -> None:
    w = orthogonal(4000, 16, torch.Generator().manual_seed(0))
    first = w[:16] / w[:16].norm(dim=-1, keepdim=True)
    torch.testing.assert_close(first @ first.T, torch.eye(16, dtype=torch.float64))
    assert abs(w.square().sum(-1).mean() - 16) < 0.4
    assert abs(w.mean()) < 0.02
    torch.testing.assert_close(
        w.T @ w / 4000, torch.eye(16, dtype=torch.float64), rtol=0, atol=0.06
    )


def test_orthogonal_draws_are_orthogonal_and_as_long_as_gaussian_ones():
    check_draws()


@both
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_full(kind, dtype):
    mixer = mixer_of(kind, 2, 1, 16)
    q, k, v = (x.to(dtype) for x in projections(1, 2, 1, 3000, 16))
    v = v + 1  # a mean far from zero: lost in half precision after some hundred tokens
    keep = torch.ones(1, 3000, dtype=torch.bool)
    wanted = fast(mixer, q.double(), k.double(), v.double(), keep, causal=True)
    parts = {n: x.transpose(1, 2).flatten(-2) for n, x in zip("qkv", (q, k, v), strict=True)}
    found = mixer.float()(parts, Plan(Grid(1, 3000), True), None, None)
    found = found.view(1, 3000, 2, 16).transpose(1, 2)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=4e-3 * float(v.abs().max()))


@both
@pytest.mark.parametrize("causal", [True, False])
def test_no_tensor_is_as_large_as_the_square(kind, causal):
    mixer = block(KINDS[kind], replace(PAPER, attention=Attention(2)))
    tree = (decoder_only if causal else encoder_only)(mixer, layers=1)
    model = af.build(replace(tree, head=None), device="meta")
    found = []
    for length in (4096, 8192):
        ids = torch.zeros(1, length, dtype=torch.long, device="meta")
        with Largest() as largest:
            model(input_ids=ids).last_hidden_state.sum().backward()
        found.append(largest.numbers)
    assert found[0] <= 4096 * 512
    assert found[1] <= 2.1 * found[0]


TREES = {
    "elu": decoder_only(block(ELU)),
    "favor": decoder_only(block(FAVOR)),
    "elu turned": decoder_only(
        replace(MODERN, attention=Attention(4, mixer=ELU)), position=None, relative=Rotary()
    ),
    "favor encoder": encoder_only(block(FAVOR)),
    "elu encoder": encoder_only(block(ELU, PAPER)),
}


def check_padding(name: str) -> None:
    model = loud(TREES[name])
    ids = tokens(3, 19)
    alone = [
        model(input_ids=row[None, :n]).logits[0] for row, n in zip(ids, (19, 8, 13), strict=True)
    ]
    for pad in (right_padding, left_padding):
        mask = pad([19, 8, 13], 19)
        rows = torch.zeros_like(ids)
        for i, n in enumerate((19, 8, 13)):
            rows[i, mask[i].bool()] = ids[i, :n]
        found = [model(input_ids=rows, attention_mask=mask).logits]
        with on_the_grid():
            found.append(model(input_ids=rows, attention_mask=mask).logits)
        found.append(model(input_ids=rows, attention_mask=mask, kernel="eager").logits)
        for logits in found:
            for i, wanted in enumerate(alone):
                torch.testing.assert_close(logits[i, mask[i].bool()], wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", TREES)
def test_padding_on_either_side_changes_nothing(name):
    check_padding(name)


def check_cached(name: str) -> None:
    model = loud(TREES[name])
    ids, mask = tokens(3, 15), left_padding([15, 6, 11], 15)
    cache = model.new_cache()
    steps = [model(input_ids=ids[:, :7], attention_mask=mask[:, :7], cache=cache).logits]
    for i in range(7, 15):
        out = model(input_ids=ids[:, i : i + 1], attention_mask=mask[:, : i + 1], cache=cache)
        steps.append(out.logits)
    whole = model(input_ids=ids, attention_mask=mask).logits
    kept = mask.bool()
    torch.testing.assert_close(torch.cat(steps, 1)[kept], whole[kept], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["elu", "favor", "elu turned"])
def test_cached_is_uncached_with_padding_on_the_left(name):
    check_cached(name)


@both
def test_what_is_remembered_does_not_grow_and_beams_move_it(kind):
    model = loud(TREES[kind])
    ids = tokens(2, 6)
    cache = model.new_cache()
    sizes = []
    for i in range(6):
        model.step(ids[:, i : i + 1], cache)
        sizes.append(sum(x.numel() for x in cache[0].own.values.values()))
    assert len(set(sizes)) == 1
    cache.select(torch.tensor([1, 1]))
    wanted = model(input_ids=torch.cat([ids, ids[:1, :1].expand(2, 1)], 1)).logits[1, -1]
    found = model.step(ids[:1, :1].expand(2, 1), cache)
    torch.testing.assert_close(found[0], wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[1], wanted, rtol=1e-9, atol=1e-9)


@both
def test_generating_with_a_state_is_generating_without(kind):
    model = loud(TREES[kind])
    ids, mask = tokens(2, 5), left_padding([5, 3], 5)
    options = {"attention_mask": mask, "max_new_tokens": 9, "num_beams": 2}
    with_state, without = (model.generate(ids, **options, use_cache=x) for x in (True, False))
    assert torch.equal(with_state, without)


@both
def test_an_encoder_decoder_trains(kind):
    own = block(KINDS[kind])
    tree = EncoderDecoder(stack(own), stack(replace(own, cross=Attention(4)), causal=True))
    model = loud(tree)
    mask = right_padding([9, 4], 9)
    loss = model(input_ids=tokens(2, 9), attention_mask=mask, labels=tokens(2, 7, seed=1)).loss
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@both
def test_a_trace_shows_the_weights_and_changes_no_number(kind):
    model = loud(TREES[kind])
    ids = tokens(1, 9)
    trace = af.trace(model, input_ids=ids)
    weights = trace["decoder.0.attention.weights"]
    assert weights.shape == (1, 6, 9, 9)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 6, 9).double())
    assert weights.triu(1).abs().max() == 0
    assert torch.equal(trace.output.logits, model(input_ids=ids).logits)


def test_layers_draw_differently_by_the_seed_and_again_on_demand(tmp_path):
    tree = decoder_only(block(FAVOR))
    model, again = af.build(tree, seed=0), af.build(tree, seed=1)
    first, second = (layer.attention.mixer.draws.clone() for layer in model.decoder.layers)
    assert torch.equal(first, again.decoder.layers[0].attention.mixer.draws)
    assert not torch.equal(first, second)
    assert redraw(model, seed=3) == 2
    assert torch.equal(model.decoder.layers[0].attention.mixer.draws, first)
    assert redraw(model, seed=4) == 2
    assert not torch.equal(model.decoder.layers[0].attention.mixer.draws, first)
    af.save(model, tmp_path, family="allformer")
    ids = tokens(1, 8)
    model.eval()
    assert torch.equal(af.load(tmp_path)(input_ids=ids).logits, model(input_ids=ids).logits)
    assert redraw(af.build(decoder_only(block(ELU))), seed=1) == 0


def test_costs_do_not_grow_with_the_length():
    for mixer, times in ((ELU, 5), (FAVOR, 2 * 24)):
        attention = Attention(6, kv_heads=2, head_dim=5, mixer=mixer)
        work = {mixer.flops(attention, 24, n, causal=True) for n in (1_000, 1_000_000)}
        assert work == {2 * (6 + 2) * times * 5}
        assert mixer.cached(attention, 24) == 0
        tree = decoder_only(block(mixer))
        model = af.build(tree, device="meta")
        assert af.count(tree).parameters == sum(p.numel() for p in model.parameters())
        assert af.count(tree).cache_bytes_per_token == 0
        assert config_from_json(tree.to_json()) == tree


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Features("favor"), r"Features.count=None says how many .*; the paper has 256"),
        (lambda: Features("elu", 8), r"Features.count=8 is of .favor.: .*; drop it"),
        (lambda: Features("elu", seed=2), r"Features.seed=2 is of .favor."),
        (lambda: Features("relu"), r"Features.kind='relu' is not a choice; try 'elu', 'favor'"),
        (
            lambda: decoder_only(block(ELU), relative=BucketBias()),
            r"Features.kind='elu' cannot go with relative=BucketBias.*; try relative=Rotary\(\)",
        ),
        (
            lambda: decoder_only(replace(PAPER, attention=Attention(4, mixer=ELU, dropout=0.1))),
            r"Attention.dropout=0.1 cannot go with Features: there are no attention weights",
        ),
        (
            lambda: decoder_only(replace(PAPER, attention=Attention(4, mixer=ELU, scale=1.0))),
            r"Attention.scale=1.0 belongs to softmax",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_way_out(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_state_of_keys_is_refused():
    model = loud(TREES["elu"])
    with pytest.raises(ConfigError, match="remembers sums, not keys"):
        model(input_ids=tokens(1, 4), cache=Cache([Growing(), Growing()]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "random features", "low rank"])
def test_a_compiled_graph_gives_the_same_loss_and_gradients(name):
    model = loud(SPREAD[name])
    ids, mask = tokens(2, 20), left_padding([20, 13], 20)
    found = []
    for call in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        model.zero_grad()
        loss = call(input_ids=ids, attention_mask=mask, labels=ids).loss
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for mine, hers in zip(*found, strict=True):
        torch.testing.assert_close(mine, hers, rtol=1e-9, atol=1e-9)
