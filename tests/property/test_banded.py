"""Attention in a band, chunk by chunk: the same numbers and gradients as pair by pair."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from allformer.core import banded as room
from allformer.core.banded import Seen, banded
from allformer.core.fused.random import kept


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Several chunks, the last one not full, in rows that a formula can go through."""
    monkeypatch.setitem(room.CHUNK, "cpu", 5)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).mul(1.5).requires_grad_()


def formula(q, k, v, left, right, keep, dilation, bias=None, extra=None, scale=0.7):
    """Query by query: the scores of those who are seen, their softmax, their values."""
    rows, heads, targets, _ = q.shape
    sources, share = k.shape[2], heads // k.shape[1]
    out = torch.zeros_like(q) + 0 * (q.sum() + k.sum() + v.sum())
    for b in range(rows):
        for h in range(heads):
            for t in range(targets):
                g, here = h // share, t + sources - targets
                steps = [
                    j
                    for j in range(-left, right + 1)
                    if 0 <= here + j * dilation < sources
                    and (keep is None or keep[b, here + j * dilation])
                ]
                at = [here + j * dilation for j in steps]
                scores = k[b, g, at] @ q[b, h, t] * scale
                values = v[b, g, at]
                if bias is not None:
                    whole = bias.expand(rows, heads, targets, -1)
                    scores = scores + whole[b, h, t, [j + left for j in steps]]
                if extra is not None:
                    mask = extra.mask
                    some = torch.ones(extra.keys.shape[2]).bool() if mask is None else mask[b]
                    scores = torch.cat([scores, extra.keys[b, g, some] @ q[b, h, t] * scale])
                    values = torch.cat([values, extra.values[b, g, some]])
                if len(scores):
                    out[b, h, t] = scores.softmax(0) @ values
    return out


def check(wanted_by: dict, tensors: list[Tensor], q, k, v, left, right, **options) -> None:
    mine = banded(q, k, v, left, right, scale=0.7, **options)
    wanted = formula(q, k, v, left, right, **wanted_by)
    torch.testing.assert_close(mine, wanted, rtol=1e-11, atol=1e-11)
    push = torch.randn_like(wanted)
    mine_grads = torch.autograd.grad(mine, tensors, push)
    for x, y in zip(mine_grads, torch.autograd.grad(wanted, tensors, push), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


KEEPS = {
    "all": None,
    "left": torch.tensor([[True] * 13, [False] * 9 + [True] * 4]),
    "right": torch.tensor([[True] * 7 + [False] * 6, [True] * 13]),
    "holes": torch.tensor([[True, False, True, True, False] * 2 + [True] * 3, [False] * 13]),
}


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("reach", [(2, 3), (4, 0), (0, 0), (30, 30)], ids=str)
@pytest.mark.parametrize("keep", KEEPS)
def test_it_is_the_formula_with_its_gradients(keep, reach, dilation):
    q, k, v = numbers(2, 4, 13, 3), numbers(2, 2, 13, 3), numbers(2, 2, 13, 3)
    options = {"keep": KEEPS[keep], "dilation": dilation}
    check(options, [q, k, v], q, k, v, *reach, **options)


@pytest.mark.parametrize("dilation", [1, 2, 4])
def test_queries_may_be_the_last_of_the_keys(dilation):
    q, k, v = numbers(2, 2, 7, 3), numbers(2, 1, 18, 3), numbers(2, 1, 18, 3)
    keep = torch.ones(2, 18).bool()
    keep[1, :14] = False
    options = {"keep": keep, "dilation": dilation}
    check(options, [q, k, v], q, k, v, 3, 1, **options)


@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("shape", [(1, 4, 1), (2, 1, 13), (2, 4, 1), (1, 4, 13)], ids=str)
def test_a_bias_goes_with_the_places_of_the_band(shape, dilation):
    q, k, v = numbers(2, 4, 13, 3), numbers(2, 2, 13, 3), numbers(2, 2, 13, 3)
    bias = numbers(*shape, 6)
    options = {"keep": KEEPS["left"], "dilation": dilation, "bias": bias}
    check(options, [q, k, v, bias], q, k, v, 2, 3, **options)


def test_a_band_wider_than_the_row_takes_its_part_of_the_bias():
    q, k, v = numbers(1, 2, 4, 3), numbers(1, 2, 4, 3), numbers(1, 2, 4, 3)
    bias = numbers(1, 2, 1, 16)
    options = {"keep": None, "dilation": 1, "bias": bias}
    check(options, [q, k, v, bias], q, k, v, 9, 6, **options)


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("keep", ["all", "holes"])
def test_what_everybody_sees_is_in_the_same_softmax(keep, masked, dilation):
    q, k, v = numbers(2, 4, 13, 3), numbers(2, 2, 13, 3), numbers(2, 2, 13, 3)
    mask = torch.tensor([[True, False, True], [False] * 3]) if masked else None
    extra = Seen(numbers(2, 2, 3, 3), numbers(2, 2, 3, 3), mask)
    options = {"keep": KEEPS[keep], "dilation": dilation, "extra": extra}
    check(options, [q, k, v, extra.keys, extra.values], q, k, v, 1, 2, **options)


@pytest.mark.parametrize("dilation", [1, 2])
def test_texts_end_to_end_see_themselves_alone(dilation):
    """As one row each."""
    lengths = (6, 1, 9, 4)
    q, k, v = numbers(1, 4, 20, 3), numbers(1, 2, 20, 3), numbers(1, 2, 20, 3)
    rows = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None]
    mine = banded(q, k, v, 3, 2, scale=0.7, rows=rows, dilation=dilation)
    parts = zip(*(x.split(lengths, dim=2) for x in (q, k, v)), strict=True)
    wanted = torch.cat([formula(*part, 3, 2, None, dilation) for part in parts], dim=2)
    torch.testing.assert_close(mine, wanted, rtol=1e-11, atol=1e-11)
    push = torch.randn_like(wanted)
    grads = (torch.autograd.grad(x, (q, k, v), push) for x in (mine, wanted))
    for x, y in zip(*grads, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


def test_nobody_that_everybody_sees_is_no_difference():
    q, k, v = numbers(1, 2, 9, 3), numbers(1, 2, 9, 3), numbers(1, 2, 9, 3)
    none = Seen(k[:, :, :0], v[:, :, :0], torch.zeros(1, 0).bool())
    keep = torch.zeros(1, 9).bool()
    out = banded(q, k, v, 2, 2, scale=1.0, keep=keep, extra=none)
    assert (out == 0).all()


def test_it_is_full_attention_where_the_band_covers_all():
    q, k, v = (torch.randn(2, 3, 23, 8) for _ in range(3))
    plain = torch.nn.functional.scaled_dot_product_attention
    for right, causal in ((0, True), (22, False)):
        wanted = plain(q, k, v, is_causal=causal)
        torch.testing.assert_close(banded(q, k, v, 22, right, scale=8**-0.5), wanted)


def test_dropout_drops_the_same_weights_in_both_passes(monkeypatch):
    """The masks of all chunks, laid out, make it a formula again."""
    seed = torch.tensor(12345)
    monkeypatch.setattr(room, "draw", lambda count, device: seed[None])
    q, k, v = numbers(1, 1, 8, 3), numbers(1, 1, 8, 3), numbers(1, 1, 8, 3)
    mine = banded(q, k, v, 7, 7, scale=0.7, dropout=0.4)
    keep = torch.cat([kept(seed, i, (rows, 8), 0.4) for i, rows in enumerate((5, 3))])
    weights = (q @ k.transpose(-2, -1) * 0.7).softmax(-1) * keep / 0.6
    wanted = weights @ v
    torch.testing.assert_close(mine, wanted)
    push = torch.randn_like(wanted)
    grads = torch.autograd.grad(mine, (q, k, v), push)
    for x, y in zip(grads, torch.autograd.grad(wanted, (q, k, v), push), strict=True):
        torch.testing.assert_close(x, y)


def test_dropout_draws_anew_in_every_call():
    q, k, v = (torch.randn(1, 2, 40, 4) for _ in range(3))
    first, second = (banded(q, k, v, 9, 9, scale=0.5, dropout=0.5) for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_full(dtype):
    q, k, v = (torch.randn(2, 2, 40, 16).to(dtype).requires_grad_() for _ in range(3))
    keep = torch.ones(2, 40).bool()
    keep[1, :35] = False
    out = banded(q, k, v, 6, 6, scale=0.25, keep=keep)
    wide = banded(q.double(), k.double(), v.double(), 6, 6, scale=0.25, keep=keep)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), wide, rtol=2e-2, atol=2e-2)
    grads = (torch.autograd.grad(x.double().square().sum(), (q, k, v)) for x in (out, wide))
    for x, y in zip(*grads, strict=True):
        torch.testing.assert_close(x, y, rtol=5e-2, atol=5e-2)


def test_no_chunk_holds_more_than_its_own_band(monkeypatch):
    """Twice the length: twice the chunks, none wider."""
    widths: list[list[int]] = []
    plain = Tensor.softmax

    def noted(x: Tensor, *args, **more) -> Tensor:
        widths[-1].append(x.shape[-1])
        return plain(x, *args, **more)

    monkeypatch.setattr(Tensor, "softmax", noted)
    for length in (100, 200):
        widths.append([])
        q = torch.randn(1, 1, length, 2)
        banded(q, q, q, 3, 4, scale=1.0)
    assert [len(x) for x in widths] == [20, 40]
    assert max(widths[1]) == 5 + 3 + 4
