"""Attention in chunks, by hashes and by place: against the formula written token by token."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import allformer as af
from allformer.config import (
    LSH,
    Attention,
    Axial,
    Block,
    BlockSparse,
    BucketBias,
    DecoderOnly,
    EncoderOnly,
    Feed,
    GlobalWindow,
    LMHead,
    Local,
    Stack,
    Tokens,
    cycle,
    repeat,
)
from allformer.core.chunks import Ring, filled, weigh
from allformer.core.kernels import flex
from allformer.core.kernels.rings import attend_ring, ring_blocks
from allformer.core.mixers import lsh
from allformer.core.mixers.lsh import _buckets
from allformer.core.states import Hashes
from allformer.core.taps import listen
from allformer.errors import ConfigError, LengthError
from tests.models import left_padding, loud, on_the_grid, right_padding, tokens

HASH = LSH(4, 3, buckets=(4, 2), seed=7)
NEAR = Local(4)


def tree(mixer, causal: bool = False, layers: int = 1, **changes):
    block = Block(
        Attention(2, head_dim=5, mixer=mixer, bias=False), Feed(20), norm_at="pre", dropout=0.0
    )
    stack = Stack(12, Tokens(37, pad_id=0), None, repeat(block, layers), causal, dropout=0.0)
    stack = replace(stack, **changes)
    return DecoderOnly(stack) if causal else EncoderOnly(stack, LMHead())


def contexts(model, **inputs) -> Tensor:
    (name,) = model.config.stacks
    return af.trace(model, **inputs)[f"{name}.0.attention.context"]


# --- the formulas, naively ------------------------------------------------------------------------


def naive_local(seen: dict[str, Tensor], keep: Tensor, mixer: Local, causal: bool) -> Tensor:
    """Each query by itself: the chunks around it in a ring, filled up to a multiple."""
    q, k, v = seen["q"], seen["k"], seen["v"]  # B H T D
    rows, _, width, size = q.shape
    length = filled(width, (mixer.chunk,))
    chunks = max(1, length // mixer.chunk)
    out = torch.zeros_like(q)
    for b in range(rows):
        for t in range(width):
            near = [(t // mixer.chunk + i) % chunks for i in range(-mixer.before, mixer.after + 1)]
            keys = [c * mixer.chunk + i for c in near for i in range(mixer.chunk)]
            if length <= mixer.chunk:
                keys = list(range(width))
            keys = [j for j in keys if j < width and keep[b, j] and (j <= t or not causal)]
            if not keys:
                continue
            scores = torch.einsum("hd,hjd->hj", q[b, :, t], k[b][:, keys]) / math.sqrt(size)
            out[b, :, t] = torch.einsum("hj,hjd->hd", scores.softmax(-1), v[b][:, keys])
    return out.transpose(1, 2).flatten(-2)


def naive_lsh(seen: dict[str, Tensor], keep: Tensor, mixer: LSH, causal: bool) -> Tensor:
    """Each round, head and query by itself, in the order of the buckets."""
    qk, v, buckets = seen["qk"], seen["v"], seen["buckets"]
    rows, heads, width, size = qk.shape
    length, rounds = buckets.shape[-1], buckets.shape[2]
    keys = qk / (qk.square().mean(-1, keepdim=True) + 1e-6).sqrt() / math.sqrt(size)
    out = torch.zeros_like(qk)
    for b in range(rows):
        for h in range(heads):
            line = [
                (r, t)
                for r in range(rounds)
                for t in sorted(range(length), key=lambda t: (int(buckets[b, h, r, t]), t))
            ]
            for t in range(width):
                sums, said = [], []
                for i, (_, at) in enumerate(line):
                    if at != t:
                        continue
                    first = (i // mixer.chunk - mixer.before) * mixer.chunk
                    count = mixer.chunk * (1 + mixer.before + mixer.after)
                    near = [line[(first + j) % len(line)][1] for j in range(count)]
                    near = [j for j in near if j < width and keep[b, j] and j != t]
                    near = [j for j in near if not causal or j < t]
                    scores = keys[b, h, near] @ qk[b, h, t]
                    sums.append(scores.logsumexp(0) if near else torch.tensor(-1e5).double())
                    said.append(scores.softmax(0) @ v[b, h, near] if near else v[b, h, t])
                share = torch.stack(sums).softmax(0)
                out[b, h, t] = sum(s * x for s, x in zip(share, said, strict=True))
    return out.transpose(1, 2).flatten(-2)


def check_naive(mixer, width: int, causal: bool, side: str) -> None:
    model, ids = loud(tree(mixer, causal)), tokens(2, width)
    make = left_padding if side == "left" else right_padding
    mask = make([width, width if side == "none" else width - 6], width)
    seen = af.trace(model, input_ids=ids, attention_mask=mask)
    path = f"{next(iter(model.config.stacks))}.0.attention."
    parts = {n.removeprefix(path): x for n, x in seen.items() if n.startswith(path)}
    naive = naive_lsh if isinstance(mixer, LSH) else naive_local
    keep = mask.bool()
    torch.testing.assert_close(
        parts["context"][keep], naive(parts, keep, mixer, causal)[keep], rtol=0, atol=1e-9
    )


@pytest.mark.every(2)
@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [16, 21])
@pytest.mark.parametrize("mixer", [NEAR, Local(4, 2, 0), HASH, LSH(4, 2, seed=1, before=2)])
def test_the_formula_token_by_token(mixer, width, causal, side):
    check_naive(mixer, width, causal, side)


@pytest.mark.parametrize("mixer", [Local(4, 1, 1), Local(8, 0, 0), LSH(4, 1, seed=2, after=1)])
def test_chunks_may_look_ahead_or_nowhere(mixer):
    check_naive(mixer, 21, False, "right")


# --- what must hold -------------------------------------------------------------------------------


def test_one_chunk_of_neighbours_is_full_attention():
    near, full = loud(tree(Local(32), layers=2)), loud(tree(af.config.Full(), layers=2))
    ids, mask = tokens(2, 21), right_padding([21, 9], 21)
    with torch.no_grad():
        a, b = (m(input_ids=ids, attention_mask=mask).logits for m in (near, full))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [right_padding, left_padding])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_rows_are_the_padded_grid(causal, make):
    blocks = cycle([replace(tree(m).encoder.blocks[0]) for m in (HASH, NEAR)], 4)
    model, ids = loud(tree(HASH, causal, blocks=blocks)), tokens(3, 27)
    mask = make([27, 14, 5], 27)
    with torch.no_grad():
        packed = model(input_ids=ids, attention_mask=mask).logits
        with on_the_grid():
            grid = model(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(packed[mask.bool()], grid[mask.bool()], rtol=0, atol=1e-11)


@pytest.mark.parametrize("causal", [False, True])
def test_a_row_of_a_batch_is_that_row_alone_when_both_are_as_wide(causal):
    """Of hashes, the width of the grid decides: how rows are filled, how many buckets there are."""
    model, ids = loud(tree(LSH(4, 2, seed=3), causal, layers=2)), tokens(3, 20)
    mask = right_padding([20, 13, 6], 20)
    with torch.no_grad():
        whole = model(input_ids=ids, attention_mask=mask).logits
        for i in range(3):
            row = model(input_ids=ids[i : i + 1], attention_mask=mask[i : i + 1]).logits
            torch.testing.assert_close(row[0], whole[i], rtol=0, atol=1e-11)


def test_causal_chunks_of_neighbours_do_not_mind_padding_on_the_right():
    model, ids = loud(tree(NEAR, True, layers=2)), tokens(1, 20)
    with torch.no_grad():
        whole = model(input_ids=ids).logits
        cut = model(input_ids=ids[:, :13]).logits
    torch.testing.assert_close(cut, whole[:, :13], rtol=0, atol=1e-11)


@pytest.mark.parametrize("mixer", [HASH, NEAR])
def test_what_comes_later_is_never_seen(mixer):
    """By gradients: later tokens may push earlier ones to another chunk, but say nothing there."""
    model = loud(tree(mixer, True, layers=2))
    vectors = torch.randn(1, 20, 12, dtype=torch.float64, requires_grad=True)
    model(inputs_embeds=vectors).last_hidden_state[0, 11].sum().backward()
    assert (vectors.grad[0, :12].abs().amax(-1) > 0).any()
    assert not vectors.grad[0, 12:].any()


def test_padding_is_never_seen():
    model, ids = loud(tree(HASH, layers=2)), tokens(2, 22)
    mask = right_padding([22, 9], 22)
    other = ids.masked_fill(mask == 0, 5)
    with torch.no_grad(), on_the_grid():
        a, b = (model(input_ids=x, attention_mask=mask).logits for x in (ids, other))
    torch.testing.assert_close(a[mask.bool()], b[mask.bool()], rtol=0, atol=1e-12)


def test_a_seed_hashes_alike_and_none_draws_anew_from_the_generator():
    ids = tokens(1, 20)
    for seed, same in ((3, True), (None, False)):
        model = loud(tree(LSH(4, 2, seed=seed)))
        torch.manual_seed(0)
        a, b = contexts(model, input_ids=ids), contexts(model, input_ids=ids)
        assert torch.equal(a, b) is same
        torch.manual_seed(0)
        assert torch.equal(contexts(model, input_ids=ids), a)


def test_a_seed_leaves_the_generator_alone():
    model, ids = loud(tree(HASH)), tokens(1, 20)
    before = torch.get_rng_state()
    contexts(model, input_ids=ids)
    assert torch.equal(torch.get_rng_state(), before)


def test_buckets_are_the_nearest_ends_of_rotations_and_factors_count_them():
    qk = torch.randn(1, 1, 50, 6, dtype=torch.float64)
    turns = torch.randn(1, 6, 1, 3 + 2, dtype=torch.float64)
    found = _buckets(qk, Hashes(turns, (6, 4)), None)[0, 0, 0]
    ends = [torch.cat([x, -x], -1) for x in (turns[0, :, 0, :3], turns[0, :, 0, 3:])]
    one, two = ((qk[0, 0] @ x).argmax(-1) for x in ends)
    assert torch.equal(found, one + 6 * two)


@pytest.mark.parametrize(
    ("n", "factors"), [(64, (2,)), (4096, (128,)), (8192, (256,)), (16384, (16, 32))]
)
def test_the_number_of_buckets_follows_the_length(n, factors):
    assert LSH(64, one_factor=256).factors(n) == factors


def test_recomputing_layers_draws_the_same_hashes():
    model, ids = loud(tree(LSH(4, 2), layers=2)), tokens(2, 20)

    def gradient(mode):
        model.recompute(mode)
        model.zero_grad()
        torch.manual_seed(1)
        model(input_ids=ids, labels=ids).loss.backward()
        return model.encoder.layers[0].attention.qkv.weight.grad.clone()

    torch.testing.assert_close(gradient("layers"), gradient(None), rtol=0, atol=1e-13)


def test_gradients_of_weights_and_of_what_they_are_divided_by():
    scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(weigh, (scores,))


@pytest.mark.parametrize("mixer", [HASH, NEAR])
def test_gradients_are_those_of_differences(mixer):
    model, ids = loud(tree(mixer, True)), tokens(1, 11)
    model(input_ids=ids, labels=ids).loss.backward()
    weight = model.decoder.layers[0].attention.qkv.weight
    step = 1e-6
    for i in (0, 12, weight.shape[0] - 1):
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                weight[i, 3] += sign * step
                losses.append(model(input_ids=ids, labels=ids).loss)
                weight[i, 3] -= sign * step
        slope = (losses[0] - losses[1]) / (2 * step)
        assert float(weight.grad[i, 3]) == pytest.approx(float(slope), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("mixer", [LSH(16, 2), Local(16)])
def test_no_tensor_is_as_large_as_the_square(mixer):
    """Twice the length: twice the largest tensor, not four times."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, tuple | list) else (out,):
                if isinstance(x, Tensor):
                    self.most = max(self.most, x.untyped_storage().nbytes())
            return out

    model, most = loud(tree(mixer, True)).float(), []
    for width in (512, 1024):
        with Largest() as mode:
            mode.most = 0
            model(input_ids=tokens(1, width), labels=tokens(1, width)).loss.backward()
        most.append(mode.most)
    assert most[1] < 2.5 * most[0]


# --- step by step ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize("mixer", [NEAR, Local(4, 2), LSH(32, 2, seed=1)])
def test_step_by_step_is_all_at_once(mixer, pad):
    """Neighbours always (but for rows of fewer chunks than are looked at, where the ring shows one
    twice); hashes as long as there is one chunk."""
    model, ids = loud(tree(mixer, True, layers=2)), tokens(2, 19)
    mask = left_padding([19, 19 - pad], 19)
    with torch.no_grad(), on_the_grid():
        whole = model(input_ids=ids, attention_mask=mask).logits
    with torch.no_grad():
        cache, said, at = model.new_cache(), [], 0
        for count in (9, 1, 1, 3, 1, 4):
            new = ids[:, at : at + count]
            at += count
            said.append(model(input_ids=new, attention_mask=mask[:, :at], cache=cache).logits)
    keep = mask.bool()
    torch.testing.assert_close(torch.cat(said, 1)[keep], whole[keep], rtol=0, atol=1e-11)


def test_neighbours_remember_no_more_than_their_last_chunks():
    model = loud(tree(NEAR, True))
    attention = model.config.decoder.blocks[0].attention
    for count in (5, 20):
        cache = model.new_cache()
        with torch.no_grad():
            model(input_ids=tokens(1, count), cache=cache)
        own = cache[0].own
        kept = own._keys.numel() + own._values.numel()
        assert kept == NEAR.state(attention, 12, count)


def test_beyond_a_chunk_steps_look_at_the_same_bucket_whatever_the_batch():
    check_steps()


def check_steps() -> None:
    model, ids = loud(tree(LSH(4, 2, seed=1), True, layers=2)), tokens(3, 19)

    def steps(rows):
        cache = model.new_cache()
        said = [model(input_ids=rows[:, :9], cache=cache).logits]
        said += [model(input_ids=rows[:, i : i + 1], cache=cache).logits for i in range(9, 17)]
        return torch.cat([*said, model(input_ids=rows[:, 17:], cache=cache).logits], 1)

    with torch.no_grad():
        whole = steps(ids)
        for i in range(3):
            torch.testing.assert_close(steps(ids[i : i + 1])[0], whole[i], rtol=0, atol=1e-11)


def test_a_state_is_reordered_and_cut():
    model, ids = loud(tree(LSH(4, 2, seed=1), True, layers=2)), tokens(2, 16)
    with torch.no_grad():
        cache, other = model.new_cache(), model.new_cache()
        model(input_ids=ids[:, :13], cache=cache)
        model(input_ids=ids[[1, 0], :13], cache=other)
        cache.select(torch.tensor([1, 0]))
        model(input_ids=ids[:, 13:15], cache=cache)
        cache.cut(13)
        a, b = (model(input_ids=ids[:, 13:], cache=c).logits for c in (cache, other))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@torch.no_grad()
def check_cut_before_hashing() -> None:
    """A draft that made a row longer than a chunk had it hashed; without the draft it is not."""
    model, ids = loud(tree(LSH(8, 2, seed=1), True, layers=2)), tokens(2, 20)
    cache, other = model.new_cache(), model.new_cache()
    for each in (cache, other):
        model(input_ids=ids[:, :5], cache=each)
    model(input_ids=ids[:, 9:17], cache=cache)
    cache.cut(5)
    said = []
    for each in (cache, other):
        steps = [model(input_ids=ids[:, i : i + 1], cache=each).logits for i in range(5, 14)]
        said.append(torch.cat(steps, 1))
    torch.testing.assert_close(*said, rtol=0, atol=1e-12)


def test_a_draft_that_was_cut_off_leaves_no_hashes():
    check_cut_before_hashing()


# --- what makes no sense --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: tree(LSH(after=1), True), r"LSH\.after=1 looks ahead"),
        (lambda: tree(Local(after=2), True), r"Local\.after=2 looks ahead"),
        (lambda: tree(LSH(), relative=BucketBias()), "Stack.relative=.*which are one here"),
        (lambda: tree(Local(), relative=BucketBias()), "Stack.relative=.*adds to scores"),
        (lambda: LSH(buckets=(7,)), "even number"),
        (lambda: LSH(buckets=()), "at least one factor"),
        (lambda: Axial((4, 4), (3, 5, 4)), r"Axial\.dims=.*each of the 2 axes"),
        (lambda: tree(LSH(), position=Axial((4, 4), (3, 5))), r"Axial\.dims=.*sum up to.*12"),
    ],
)
def test_what_makes_no_sense_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_key_heads_make_no_sense_where_a_key_is_its_query():
    block = Block(Attention(4, kv_heads=2, mixer=LSH()), Feed(20))
    with pytest.raises(ConfigError, match=r"Attention\.kv_heads=2 makes no sense"):
        Stack(12, Tokens(9), None, (block,))


# --- axial positions ------------------------------------------------------------------------------


def axial(**changes):
    return tree(NEAR, position=Axial((3, 8), (5, 7), **changes))


def test_an_axial_position_is_its_row_and_its_column():
    model = loud(axial())
    vectors = af.trace(model, input_ids=tokens(1, 24))["encoder.positions"]
    one, two = model.encoder.source.position.parameters()
    wanted = torch.cat([one[:, None].expand(3, 8, 5), two[None].expand(3, 8, 7)], -1)
    torch.testing.assert_close(vectors.view(24, 12), wanted.reshape(24, 12), rtol=0, atol=0)


@pytest.mark.parametrize(("length", "limit"), [(None, 24), (20, 20), (99, 24)])
def test_more_tokens_than_the_grid_has_cells_are_refused(length, limit):
    model = loud(axial(length=length))
    model(input_ids=tokens(1, limit))
    with pytest.raises(LengthError, match=f"{limit} positions"):
        model(input_ids=tokens(1, limit + 1))


def test_dropout_of_axial_positions_drops_columns_by_row():
    model = loud(axial(dropout=0.5, count="all")).train()
    mask = right_padding([24, 17], 24)
    torch.manual_seed(0)
    seen: dict[str, Tensor] = {}
    with listen(lambda name, x: seen.__setitem__(name, x)):
        model(input_ids=tokens(2, 24), attention_mask=mask)
    vectors = seen["encoder.positions"]
    whole = af.trace(model.eval(), input_ids=tokens(2, 24))["encoder.positions"]
    share = (vectors / whole)[..., 0].view(2, 3, 8).round(decimals=6)  # rows, then the grid
    assert set(share.unique().tolist()) == {0.0, 2.0}
    assert (share == share[:, :1]).all()  # a column as a whole
    assert (share[0] != share[1]).any()  # each row by itself


def test_dropout_of_axial_positions_is_the_same_in_packed_rows():
    model, ids = loud(axial(dropout=0.5)).train(), tokens(2, 24)
    mask = right_padding([24, 17], 24)
    torch.manual_seed(0)
    packed = model.states(input_ids=ids, attention_mask=mask)["encoder"][mask.bool()]
    torch.manual_seed(0)
    with on_the_grid():
        grid = model.states(input_ids=ids, attention_mask=mask)["encoder"][mask.bool()]
    torch.testing.assert_close(packed, grid, rtol=0, atol=1e-12)


# --- the feed-forward layer in chunks -------------------------------------------------------------


def test_a_feed_forward_layer_in_chunks_is_the_same_and_keeps_less():
    plain = tree(NEAR)
    block = plain.encoder.blocks[0]
    chunked = replace(
        plain, encoder=replace(plain.encoder, blocks=(replace(block, feed=Feed(20, chunk=5)),))
    )
    a, b, ids = loud(plain), loud(chunked), tokens(2, 21)
    for model in (a, b):
        model(input_ids=ids, labels=ids).loss.backward()
    for (name, x), (_, y) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=1e-12, msg=name)
    assert af.count(chunked).activation_bytes < af.count(plain).activation_bytes


# --- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.every(5)
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("chunk", [16, 96, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rounds", [0, 2])
def test_what_flex_is_told_is_the_formula(chunk, causal, rounds):
    """Blocks, mask and scores of the kernel, computed by torch without it."""
    tokens_, length = 384 * max(1, rounds), 384
    own = Ring(length, chunk, 1, 0 if causal else 1, right_padding([length, 300], length).bool())
    own = own._replace(causal=causal)
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, tokens_, 16, generator=make).double() for _ in range(3))
    places = torch.arange(length).expand(2, 2, length)
    if rounds:
        order = [torch.randperm(length, generator=make) for _ in range(2 * 2 * rounds)]
        places = torch.stack(order).view(2, 2, tokens_)
    blocks = ring_blocks(own, tokens_, q.device)
    context, total = attend_ring(q, k, v, places, own, blocks, itself=not rounds)
    cut_places = own.cut(places)
    scores = own.cut(q) @ own.look(own.cut(k)).transpose(-1, -2)
    hidden = own.hidden(cut_places, own.look(cut_places))
    scores = scores.masked_fill(hidden, -1e9)
    if rounds:
        same = cut_places[..., None] == own.look(cut_places)[..., None, :]
        scores = scores.masked_fill(same, -1e5)
    weights, wanted_total = weigh(scores)
    wanted = (weights @ own.look(own.cut(v))).flatten(2, 3)
    real = own.keep[:, None].expand(-1, 2, -1).gather(2, places)
    torch.testing.assert_close(context[real], wanted[real], rtol=0, atol=1e-9)
    torch.testing.assert_close(total[real].double(), wanted_total.flatten(2)[real])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("mixer", [LSH(64, 4, seed=1), LSH(256, 2, seed=1), Local(128), Local(64)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_the_kernel_is_the_formula(mixer, causal, padded):
    """Outputs and gradients in bf16, as near to fp32 as the plain form is."""
    model, ids = big(mixer, causal), tokens(2, 4000).cuda()
    mask = right_padding([4000, 3000 if padded else 4000], 4000).cuda()

    def both(**how):
        model.zero_grad()
        out = model.states(input_ids=ids, attention_mask=mask, **how)
        (states,) = out.values()
        states = states[mask.bool()].float()
        states.square().mean().backward()
        (stack,) = model.config.stacks
        grad = model.get_submodule(f"{stack}.layers.0.attention.qkv").weight.grad
        return states.detach(), grad.clone()

    wanted = both(dtype=torch.float32, kernel="eager")
    plain, fast = both(dtype=torch.bfloat16, kernel="eager"), both(dtype=torch.bfloat16)
    for a, b, c in zip(fast, plain, wanted, strict=True):
        assert (a - c).norm() <= 1.5 * (b - c).norm() + 0.02 * c.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "mixer", [LSH(64, 4, seed=1), Local(64), BlockSparse(64), GlobalWindow(99, 99)]
)
def test_lengths_that_share_a_kernel_are_the_formula(mixer, monkeypatch):
    """Where so many came before that none has a kernel of its own any more."""
    monkeypatch.setattr(flex, "SHAPES", 0)
    monkeypatch.setattr(flex, "_shapes", set())
    model = big(mixer, False)
    for length in (4000, 4600):
        ids, found = tokens(2, length).cuda(), []
        for how in ({"kernel": "eager"}, {}):
            (states,) = model.states(input_ids=ids, dtype=torch.bfloat16, **how).values()
            found.append(states.float())
        assert (found[0] - found[1]).norm() < 0.02 * found[0].norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_kernel_is_chosen_on_a_gpu(monkeypatch):
    called = []
    plain = lsh.attend_ring
    monkeypatch.setattr(lsh, "attend_ring", lambda *a, **b: called.append(0) or plain(*a, **b))
    with torch.no_grad():
        big(LSH(64, 2, seed=1), True).states(input_ids=tokens(1, 4096).cuda(), dtype=torch.bfloat16)
    assert called


def big(mixer, causal: bool):
    """One layer of heads that the kernel takes, without dropout, on the GPU."""
    made = tree(mixer, causal)
    (name,) = made.stacks
    attention = Attention(2, head_dim=64, mixer=mixer, bias=False)
    block = replace(made.stacks[name].blocks[0], attention=attention)
    made = replace(made, **{name: replace(made.stacks[name], blocks=(block,))})
    return af.build(made, seed=0).cuda().eval()


@pytest.mark.every(3)
@pytest.mark.parametrize("size", [16, 96, 128, 200])
@pytest.mark.parametrize(("before", "after"), [(1, 0), (1, 1), (3, 0), (0, 0), (2, 3)])
def test_blocks_that_meet_are_those_with_chunks_that_meet(size, before, after):
    for chunks in (8, 11):
        length = size * chunks
        blocks = ring_blocks(Ring(length, size, before, after), length, torch.device("cpu"))
        chunk = torch.arange(length) // size
        near = (chunk[None] - chunk[:, None] + before) % chunks <= before + after
        more, count = -length % 128, -(-length // 128)
        near = torch.nn.functional.pad(near, (0, more, 0, more))
        wanted = near.view(count, 128, count, 128).any(3).any(1)
        assert torch.equal(listed(blocks.kv_num_blocks, blocks.kv_indices, count), wanted)
        assert torch.equal(listed(blocks.q_num_blocks, blocks.q_indices, count), wanted.T)


def listed(numbers: Tensor, indices: Tensor, count: int) -> Tensor:
    dense = torch.zeros(count, count, dtype=torch.long)
    for i, number in enumerate(numbers[0, 0].tolist()):
        for j in indices[0, 0, i, :number].tolist():
            dense[i, j] += 1
    assert dense.max() == 1  # each once
    return dense.bool()
