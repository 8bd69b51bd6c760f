"""Transformer-XL's positions and memory, without an oracle that could be wrong in the same way."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import allformer as af
from allformer import config
from allformer.config import Attention, Block, DecoderOnly, Feed, Stack, Tokens, Window, XLRelative
from allformer.core.places import Places
from allformer.core.relatives.xl import picked, shifted
from allformer.core.states import SegmentMemory
from allformer.errors import ConfigError
from tests.models import loud

DIM, HEADS, SIZE, VOCAB = 12, 2, 5, 23


def tree(norm_at: str = "post", mixer: Any = None, **relative: Any) -> DecoderOnly:
    attention = Attention(HEADS, head_dim=SIZE, bias=False, mixer=mixer or config.Full())
    block = Block(attention, Feed(20, act="relu"), norm_at=norm_at, dropout=0.0)  # type: ignore[arg-type]
    stack = Stack(
        DIM, Tokens(VOCAB, scale=True), None, (block,) * 2, causal=True, dropout=0.0,
        relative=XLRelative(**relative),
    )  # fmt: skip
    return DecoderOnly(stack)


def ids(length: int, seed: int = 0, rows: int = 2) -> Tensor:
    return torch.randint(VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def naive_layer(layer: Any, x: Tensor, before: Tensor, clamp: int | None, pre: bool) -> Tensor:
    """One layer as the paper's section 3.3 has it, pair by pair, in fp64: T dim, M dim → T dim."""
    part, attention = layer.attention.relative, layer.attention
    normed = (lambda y: layer.attention_norm(y)) if pre else (lambda y: y)
    (wq, _), (wk, _), (wv, _) = (attention.qkv.part(p) for p in "qkv")
    seen = normed(torch.cat([before, x]))
    q, k, v = normed(x) @ wq.T, seen @ wk.T, seen @ wv.T
    context = torch.zeros_like(q)
    for h in range(HEADS):
        own = slice(h * SIZE, (h + 1) * SIZE)
        u, w = part.biases.u[h], part.biases.v[h]
        for i in range(len(x)):
            scores = []
            for j in range(len(before) + i + 1):
                far = len(before) + i - j
                r = sinusoid(far if clamp is None else min(far, clamp))
                there = (part.project.weight @ r)[own]
                scores.append(((q[i, own] + u) @ k[j, own] + (q[i, own] + w) @ there) / SIZE**0.5)
            weights = torch.stack(scores).softmax(0)
            context[i, own] = weights @ v[: len(scores), own]
    out = attention.out(context)
    if pre:
        x = x + out
        return x + layer.feed(layer.feed_norm(x))
    x = layer.attention_norm(x + out)
    return layer.feed_norm(x + layer.feed(x))


def sinusoid(distance: int) -> Tensor:
    """All sines, then all cosines; frequencies in fp32, as files hold them."""
    steps = [torch.tensor(10000.0).pow(torch.tensor(2.0 * i / DIM)) for i in range(DIM // 2)]
    angles = [distance * float(1 / step) for step in steps]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles]).double()


def naive(model: Any, segments: list[Tensor], size: int) -> list[Tensor]:
    """Hidden states of one row's segments."""
    c = model.config.decoder
    memory = [torch.zeros(0, DIM, dtype=torch.float64) for _ in c.blocks]
    found = []
    for segment in segments:
        x = model.decoder.source.embedding.weight[segment] * DIM**0.5
        for i, layer in enumerate(model.decoder.layers):
            y = naive_layer(layer, x, memory[i], c.relative.clamp, c.blocks[0].norm_at == "pre")
            memory[i] = torch.cat([memory[i], x])[-size:].detach()
            x = y
        found.append(x)
    return found


def check_formula(norm_at: str, untie: bool, clamp: int | None) -> None:
    """Three segments, memory shorter than they are together: states and gradients."""
    model: Any = loud(tree(norm_at, memory=5, untie=untie, clamp=clamp))
    parts = list(ids(11, rows=1).split([3, 5, 3], dim=1))
    wanted = naive(model, [part[0] for part in parts], 5)
    mems, found = None, []
    for part in parts:
        out = model(input_ids=part, mems=mems)
        mems = out.mems
        found.append(out.last_hidden_state[0])
    torch.testing.assert_close(torch.cat(found), torch.cat(wanted), rtol=1e-6, atol=1e-6)
    probe = torch.randn(11, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    names, tensors = zip(*model.decoder.named_parameters(), strict=True)
    mine = torch.autograd.grad((torch.cat(found) * probe).sum(), tensors, allow_unused=True)
    other = torch.autograd.grad((torch.cat(wanted) * probe).sum(), tensors, allow_unused=True)
    for name, a, b in zip(names, mine, other, strict=True):
        assert a is not None, name
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("norm_at", "untie", "clamp"), [("post", True, None), ("pre", False, 4), ("post", False, 3)]
)
def test_states_and_gradients_are_the_formula_pair_by_pair(norm_at, untie, clamp):
    check_formula(norm_at, untie, clamp)


def test_a_memory_that_covers_all_reads_segments_as_one_text():
    check_whole()


def check_whole() -> None:
    """Segments of unequal lengths, one of a single token, are one text."""
    model: Any = loud(tree(memory=40))
    text = ids(30)
    with torch.no_grad():
        whole = model(input_ids=text)
        mems, parts = None, []
        for part in text.split([7, 1, 13, 9], dim=1):
            out = model(input_ids=part, mems=mems)
            mems = out.mems
            parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole.logits, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(mems, whole.mems, rtol=1e-10, atol=1e-10)


def test_a_window_is_same_length():
    """With a window of M keys each token sees as many, wherever it stands in its segment."""
    model = loud(tree(memory=6, mixer=Window(5)))
    text = ids(24)
    with torch.no_grad():
        one = model(input_ids=text).logits
        mems, parts = None, []
        for part in text.split([10, 14], dim=1):
            out = model(input_ids=part, mems=mems)
            mems = out.mems
            parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1), one, rtol=1e-10, atol=1e-10)


def test_memory_carries_no_gradient_but_its_keys_and_values_do():
    check_no_gradient()


def check_no_gradient() -> None:
    """What is remembered is a constant; what looks at it learns."""
    model: Any = loud(tree(memory=8))
    first, second = ids(5, 1), ids(5, 2)
    embedded = model.decoder.source.embedding(first) * DIM**0.5
    embedded = embedded.detach().requires_grad_()
    mems = model(inputs_embeds=embedded / 1.0).mems
    assert not mems.requires_grad
    out = model(input_ids=second, mems=mems)
    key = model.decoder.layers[0].attention.qkv.weight
    with_memory = torch.autograd.grad(out.logits.square().sum(), key)[0]
    frozen = [m.clone() for m in mems]
    again = torch.autograd.grad(model(input_ids=second, mems=frozen).logits.square().sum(), key)[0]
    without = torch.autograd.grad(model(input_ids=second).logits.square().sum(), key)[0]
    assert torch.equal(with_memory, again)
    assert not torch.allclose(with_memory, without)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side):
    model = loud(tree(memory=8))
    text, mems = ids(6), model(input_ids=ids(9, 5)).mems.detach()
    alone = model(input_ids=text).logits
    pad = torch.zeros(2, 3, dtype=torch.long)
    pair = [pad, text] if side == "left" else [text, pad]
    mask = torch.cat([torch.full_like(p, p is text) for p in pair], 1)
    real = slice(3, None) if side == "left" else slice(0, 6)
    padded = model(input_ids=torch.cat(pair, 1), attention_mask=mask).logits[:, real]
    torch.testing.assert_close(padded, alone, rtol=1e-10, atol=1e-10)
    rows = [model(input_ids=text[i : i + 1], mems=mems[:, :, i : i + 1]).logits for i in range(2)]
    both = model(input_ids=text, mems=mems).logits
    torch.testing.assert_close(both, torch.cat(rows), rtol=1e-10, atol=1e-10)


def test_a_memory_of_zeros_is_looked_at_packed_or_on_a_grid():
    model = loud(tree(memory=4, blank=True))
    text = ids(6)
    mask = torch.ones(2, 6).long()
    mask[1, 4:] = 0
    with torch.no_grad():
        out = model(input_ids=text, attention_mask=mask)
        states = model.states(input_ids=text, attention_mask=mask)["decoder"]  # packed
        other = loud(replace(tree(memory=4)))(input_ids=text, attention_mask=mask)
    keep = mask.bool()
    torch.testing.assert_close(states[keep], out.last_hidden_state[keep], rtol=1e-10, atol=1e-10)
    assert out.mems.shape == (2, 4, 2, DIM)
    assert not torch.allclose(out.last_hidden_state[keep], other.last_hidden_state[keep])


def test_padding_on_the_left_does_not_move_a_memory_of_zeros():
    check_zeros_padded()


def check_zeros_padded() -> None:
    """Rows padded by 0, 2 and 5 go on as each alone, at once and step by step."""
    for norm_at in ("post", "pre"):
        model: Any = loud(tree(norm_at, memory=6, blank=True))
        text, more = ids(7, rows=3), ids(8, 1, rows=3)
        mask = torch.arange(7) >= torch.tensor([[0], [2], [5]])
        cache, alone = model.new_cache(), [model.new_cache() for _ in range(3)]
        with torch.no_grad():
            found = [model(input_ids=text, attention_mask=mask.long()).logits[:, -1]]
            found.append(model.step(text, cache, mask))
            wanted = [model.step(text[i : i + 1, mask[i]], alone[i]) for i in range(3)]
            torch.testing.assert_close(found[0], torch.cat(wanted), rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(found[1], torch.cat(wanted), rtol=1e-10, atol=1e-10)
            for part in more.split([3, 1, 1, 3], dim=1):
                mask = torch.cat([mask, torch.ones_like(part, dtype=torch.bool)], 1)
                mine = model.step(part, cache, mask)
                each = [model.step(part[i : i + 1], alone[i]) for i in range(3)]
                torch.testing.assert_close(mine, torch.cat(each), rtol=1e-10, atol=1e-10)


def test_rows_whose_memory_is_not_real_begin_anew():
    check_fresh()


def check_fresh() -> None:
    """What a reset at a document's start is."""
    model: Any = loud(tree(memory=8))
    mems, text = model(input_ids=ids(8, 4)).mems, ids(5)
    real = torch.tensor([[True] * 8, [False] * 8])
    given = [m.transpose(0, 1) for m in mems]
    cache = model.decoder.new_cache(None, given, real)
    with torch.no_grad():
        mixed = model(input_ids=text, cache=cache).logits
        carried = model(input_ids=text, mems=mems).logits[0]
        fresh = model(input_ids=text).logits[1]
    torch.testing.assert_close(mixed, torch.stack([carried, fresh]), rtol=1e-10, atol=1e-10)


def test_cached_is_uncached_and_generation_needs_no_more_than_its_memory():
    check_cached()


def check_cached() -> None:
    """Greedy and with beams; and what is kept does not grow."""
    model: Any = loud(tree(memory=50))
    prompt = ids(7)
    both = [
        model.generate(prompt, max_new_tokens=12, use_cache=use, do_sample=False, num_beams=beams)
        for beams in (1, 3)
        for use in (True, False)
    ]
    assert torch.equal(both[0], both[1])
    assert torch.equal(both[2], both[3])
    short: Any = loud(tree(memory=4))
    cache = short.new_cache()
    with torch.no_grad():
        for step in ids(20).split(1, dim=1):
            short.step(step, cache)
    state = cache[0].own
    assert isinstance(state, SegmentMemory)
    assert state.hidden.shape[1] == 4
    assert state._kept[0].shape[2] == 4


def test_shifting_is_picking_each_distance():
    x = torch.randn(2, 3, 4, 9, generator=torch.Generator().manual_seed(0))
    places = Places(torch.arange(5, 9)[None], torch.arange(9)[None])
    seen = places.distance[:, None] <= 0
    a, b = shifted(x).masked_fill(~seen, 0), picked(x, places).masked_fill(~seen, 0)
    assert torch.equal(a, b)


def test_every_part_is_counted_and_can_be_looked_at():
    model = loud(tree(memory=6))
    assert af.count(model.config).parameters == sum(p.numel() for p in model.parameters())
    trace = af.trace(model, input_ids=ids(5), mems=model(input_ids=ids(6)).mems)
    assert trace["decoder.0.attention.memory"].shape == (2, 6, DIM)
    assert trace["decoder.1.attention.scores"].shape == (2, HEADS, 5, 11)
    assert trace["decoder.relative"].shape == (11, DIM)


def test_what_makes_no_sense_is_refused_with_the_way_out():
    with pytest.raises(ConfigError, match=r"blank.*memory=0"):
        XLRelative(blank=True)
    with pytest.raises(ConfigError, match="looks back alone"):
        replace(tree().decoder, causal=False)
    plain = af.build(DecoderOnly(replace(tree().decoder, relative=None)), seed=0)
    with pytest.raises(ConfigError, match=r"mem_len=3.*remembers no earlier segments"):
        plain(input_ids=ids(4), mem_len=3)
    near = af.build(tree(memory=6, mixer=Window(5)), seed=0)
    near(input_ids=ids(4), mem_len=3)
    with pytest.raises(ConfigError, match=r"mem_len=9.*Window.left=5"):
        near(input_ids=ids(4), mem_len=9)
    with pytest.raises(ConfigError, match="mems of 1 layers"):
        af.build(tree(), seed=0)(input_ids=ids(4), mems=torch.zeros(1, 2, 2, DIM))
    layers = len(tree().decoder.blocks)
    with pytest.raises(ConfigError, match=rf"mems of the shapes .*must be alike and {DIM} wide"):
        near(input_ids=ids(4), mems=torch.zeros(layers, 2, 2, DIM + 1))
    with pytest.raises(ConfigError, match=r"what is remembered .* has 7 rows, but the input 2"):
        near(input_ids=ids(4), mems=torch.zeros(layers, 2, 7, DIM))
    with pytest.raises(ConfigError, match="mem_len=-2 must be a whole number of at least 0"):
        near(input_ids=ids(4), mem_len=-2)
    with pytest.raises(ConfigError, match="mem_len=-3"):
        near.new_cache(memory=-3)


@pytest.mark.parametrize("norm_at", ["pre", "post"])
def test_layers_that_hand_on_what_is_not_yet_added_remember_the_sum(norm_at, monkeypatch):
    """The way of the fused kernels, here by their plain forms."""
    model: Any = loud(tree(norm_at, memory=6)).train()

    def run() -> tuple[Tensor, Tensor]:
        mems, total = None, torch.zeros((), dtype=torch.float64)
        for part in ids(20).split([7, 6, 7], dim=1):
            out = model(input_ids=part, mems=mems)
            mems, total = out.mems, total + out.logits.square().mean()
        return total, mems

    plain = run()
    asked: list[bool] = []
    monkeypatch.setattr("allformer.core.stack.ready", lambda x: asked.append(True) or True)
    carried = run()
    assert len(asked) == 3
    for a, b in zip(carried, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    grads = [
        torch.autograd.grad(total, model.head.table.weight)[0] for total, _ in (carried, plain)
    ]
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)
