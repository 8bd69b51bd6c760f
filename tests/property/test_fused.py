"""Fused kernels compute what their plain forms compute, gradients and masks included.

On a GPU as they are; without one in Triton's interpreter, where Triton is installed and
TRITON_INTERPRET=1 is set; else they are skipped, and only the plain forms are tested.
"""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

import allformer as af
from allformer import config
from allformer.core import fused
from allformer.core import stack as core_stack
from allformer.core.activation import ACT
from allformer.core.fused import feed, has_triton, norm
from allformer.core.fused.linear import linear
from allformer.core.fused.norm import Thinning, add_norm, norm_of_sum
from allformer.core.fused.random import draw, kept, thin
from allformer.core.fused.rotary import turn_fused
from allformer.core.graph import Captured, on_side_stream
from allformer.core.kernels import short
from allformer.core.loss import IGNORE, linear_cross_entropy
from allformer.core.norm import LayerNorm, RMSNorm
from allformer.core.relatives.rotary import Turn
from allformer.families.original import transformer
from tests.loud import make_loud
from tests.models import VOCAB

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
kernels = pytest.mark.skipif(
    not has_triton() or not (CUDA or os.environ.get("TRITON_INTERPRET") == "1"),
    reason="no CUDA device, nor Triton's interpreter (TRITON_INTERPRET=1)",
)
on_gpu = pytest.mark.skipif(not (CUDA and has_triton()), reason="no CUDA device with Triton")
FP32, BF16 = pytest.param(torch.float32, id="fp32"), pytest.param(torch.bfloat16, id="bf16")
DTYPES = [FP32, BF16] if CUDA else [FP32]
SEED = torch.tensor([0x1234_5678_9ABC_DEF], device=DEVICE)


def random(*shape, dtype=torch.float32):
    return torch.randn(shape, device=DEVICE).to(dtype)


def close(mine, hers, dtype, factor=1.0):
    """Relative to the whole: half precision rounds each number by itself."""
    limit = factor * (1e-5 if dtype == torch.float32 else 1e-2)
    error = (mine.double() - hers.double()).norm() / hers.double().norm().clamp_min(1e-9)
    assert error < limit, f"{error:.2e}"


# --- masks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_masks_keep_their_share_and_know_no_neighbours(dropout):
    rows = 300
    masks = [kept(SEED[0], site, (rows, rows), dropout).float() - (1 - dropout) for site in (1, 2)]
    deviation = (dropout * (1 - dropout)) ** 0.5
    for mask in masks:
        assert abs(mask.mean()) < 4 * deviation / rows
        for shifted in (mask[:, 1:] * mask[:, :-1], mask[1:] * mask[:-1]):
            assert abs(shifted.mean()) < 5 * deviation**2 / rows
    assert abs((masks[0] * masks[1]).mean()) < 5 * deviation**2 / rows


def test_seeds_are_new_each_time_and_follow_torchs_generator():
    torch.manual_seed(3)
    first, second = draw(2, torch.device("cpu"))
    assert first != second
    torch.manual_seed(3)
    assert torch.equal(draw(2, torch.device("cpu"))[0], first)


def test_dropping_keeps_the_mean():
    x = torch.ones(200, 200)
    out = thin(x, SEED[0].cpu(), 0, 0.25)
    assert out.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert abs(out.mean() - 1) < 0.02


# --- norm + residual + dropout --------------------------------------------------------------------


def a_norm(kind, features):
    made = LayerNorm(features, 1e-5) if kind == "layer" else RMSNorm(features, 1e-5)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made.to(DEVICE)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_the_plain_form_adds_and_norms(kind):
    made = a_norm(kind, 12)
    x, h = random(3, 5, 12), random(3, 5, 12)
    total, y = add_norm(x, h, made)
    torch.testing.assert_close(total, x + h)
    torch.testing.assert_close(y, made(x + h))
    torch.testing.assert_close(norm_of_sum(x, h, made), made(x + h))
    torch.testing.assert_close(norm_of_sum(x, None, made), made(x))


@kernels
@pytest.mark.parametrize("both", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_and_residual_are_the_plain_ones(dtype, kind, dropout, both):
    made, thinning = a_norm(kind, 48), Thinning(dropout, SEED[0], 3)
    x, h = (random(37, 48, dtype=dtype).requires_grad_() for _ in range(2))
    wanted = list(add_norm(x, h, made, thinning))
    mine = norm._run(x, h, made, thinning, both)
    mine, wanted = (list(mine), wanted) if both else ([mine], wanted[1:])
    grads = [torch.randn_like(y) for y in wanted]
    inputs = [x, h, *made.parameters()]
    for a, b in zip(mine, wanted, strict=True):
        close(a, b, dtype)
    for a, b in zip(
        torch.autograd.grad(mine, inputs, grads),
        torch.autograd.grad(wanted, inputs, grads),
        strict=True,
    ):
        close(a, b, dtype)


@kernels
def test_a_frozen_product_keeps_neither_its_input_nor_a_copy_of_its_weight():
    x, weight = random(5, 16, dtype=torch.bfloat16).requires_grad_(), random(7, 16)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = linear(x, weight, None)
    assert all(t is weight for t in kept)
    grad = torch.randn_like(out)
    (dx,) = torch.autograd.grad(out, x, grad)
    close(dx, grad.double() @ weight.bfloat16().double(), torch.bfloat16)


# --- feed-forward ---------------------------------------------------------------------------------


@kernels
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("act", feed.KNOWN)
@pytest.mark.parametrize("dtype", DTYPES)
def test_feed_forward_is_the_plain_one(dtype, act, gated, dropout):
    """In double precision: rounded before a ReLU, numbers near zero would change sides."""
    up, gate = random(21, 300, dtype=dtype), random(21, 300, dtype=dtype) if gated else None
    biases = random(300), random(300) if gated else None
    parts = [up, gate, *biases, random(16, 300).to(dtype).float(), random(16)]
    mine, hers = ([None if x is None else x.to(kind or x.dtype).requires_grad_() for x in parts]
                  for kind in (None, torch.float64))  # fmt: skip
    thinning = Thinning(dropout, SEED[0], 4)
    inner = feed._inner(*hers[:2], (hers[2], hers[3]), act)
    wanted = F.linear(thinning(inner), *hers[4:])
    out = feed._Tail.apply(*mine, act, SEED[0], 4, dropout)
    close(out, wanted, dtype)
    grad = torch.randn_like(out)
    for a, b in zip(
        torch.autograd.grad(out, [x for x in mine if x is not None], grad),
        torch.autograd.grad(wanted, [x for x in hers if x is not None], grad.double()),
        strict=True,
    ):
        close(a, b, dtype)


@kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_does_not_see_that_gelu_is_approximated(dtype):
    from allformer.core.fused.gpu.feed import feed_inner, feed_inner_backward

    x = torch.linspace(-9, 9, 4096, device=DEVICE).to(dtype)[None]
    wide = x.double().requires_grad_()
    wanted = F.gelu(wide)
    (slope,) = torch.autograd.grad(wanted.sum(), wide)
    fine = torch.finfo(dtype).eps
    out = feed_inner(x, None, None, None, "gelu", None, 0, 0.0)
    torch.testing.assert_close(out.double(), wanted.detach(), rtol=fine, atol=1e-6)
    ones = torch.ones_like(x)
    _, back, *_ = feed_inner_backward(ones, x, None, None, None, "gelu", None, 0, 0.0)
    torch.testing.assert_close(back.double(), slope, rtol=fine, atol=1e-6)


@kernels
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_middle_of_a_tuned_feed_forward_layer_is_its_plain_form(
    dtype, gated, dropout, monkeypatch
):
    monkeypatch.setattr(feed, "ready", lambda *tensors: tensors[0].dtype != torch.float64)
    thinning = Thinning(dropout, SEED[0], 4) if dropout else Thinning()
    mine = [random(9, 40, dtype=dtype).requires_grad_() for _ in range(1 + gated)]
    hers = [x.detach().double().requires_grad_() for x in mine]
    out = feed.feed_inner(mine[0], mine[1] if gated else None, "silu", thinning)
    wanted = feed.feed_inner(hers[0], hers[1] if gated else None, "silu", thinning)
    close(out, wanted, dtype)
    grad = torch.randn_like(out)
    for a, b in zip(
        torch.autograd.grad(out, mine, grad),
        torch.autograd.grad(wanted, hers, grad.double()),
        strict=True,
    ):
        close(a, b, dtype)


@pytest.mark.parametrize("act", feed.KNOWN)
def test_the_plain_tail_is_act_gate_and_product(act):
    up, gate, bias = random(4, 6), random(4, 6), random(6)
    weight = random(3, 6)
    out = feed.feed_tail(up, gate, (bias, None), act, weight, None)
    torch.testing.assert_close(out, (ACT[act](gate) * (up + bias)) @ weight.t())


# --- cross-entropy --------------------------------------------------------------------------------


@kernels
@pytest.mark.parametrize(("smoothing", "z"), [(0.0, 0.0), (0.1, 0.0), (0.1, 0.01)])
@pytest.mark.parametrize("vocab", [7, 701, 9000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy_is_the_plain_one_in_chunks(dtype, vocab, smoothing, z):
    from allformer.core.fused.gpu.entropy import linear_entropy

    hidden, weight, bias = random(11, 16, dtype=dtype), random(vocab, 16), random(vocab)
    targets = torch.randint(0, vocab, (11,), device=DEVICE)
    targets[3] = IGNORE
    wide = [x.double().requires_grad_() for x in (hidden, weight.to(dtype), bias.to(dtype))]
    wanted, nll = linear_cross_entropy(*wide, targets, smoothing, z=z)
    mine = linear_entropy(
        hidden, weight.to(dtype), bias.to(dtype), targets, smoothing, z, 4, [True] * 3
    )
    close(mine[0], wanted, dtype)
    close(mine[1], nll, dtype)
    for a, b in zip(mine[2:], torch.autograd.grad(wanted, wide), strict=True):
        close(a, b, dtype, 2)


# --- attention of short rows ----------------------------------------------------------------------


def by_rows(q, k, v, starts, starts_k, causal, mask, dropout):
    """Row by row as the formula stands: N H D → N H·D."""
    rows = []
    for r in range(len(starts) - 1):
        at, at_k = slice(starts[r], starts[r + 1]), slice(starts_k[r], starts_k[r + 1])
        scores = torch.einsum("thd,shd->hts", q[at], k[at_k]) * 0.25
        if causal:
            later = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        weights = scores.softmax(-1) if scores.shape[-1] else scores
        keep = mask[at, :, : scores.shape[-1]].transpose(0, 1)
        weights = torch.where(keep, weights / (1 - dropout), 0.0)
        rows.append(torch.einsum("hts,shd->thd", weights, v[at_k]).flatten(1))
    return torch.cat(rows)


@kernels
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("way", ["within", "causal", "across"])
@pytest.mark.parametrize("block", [32, 64, 128] if CUDA else [16, 32])
@pytest.mark.parametrize("dtype", DTYPES[-1:])
def test_attention_of_short_rows_is_the_formula(dtype, block, way, dropout):
    from allformer.core.kernels.short import _ShortRows

    heads, size, width = 2, 16, 48
    lengths = torch.tensor([5, 0, 17, 1, 40, 9], device=DEVICE)
    keys = torch.tensor([7, 3, 0, 2, 20, 35], device=DEVICE) if way == "across" else lengths
    starts, starts_k = (F.pad(n.cumsum(0), (1, 0)).int() for n in (lengths, keys))
    wide = heads * size
    x = random(int(starts[-1]), wide * (1 if way == "across" else 3), dtype=dtype)
    memory = random(int(starts_k[-1]), 2 * wide, dtype=dtype) if way == "across" else None
    inputs = [t.requires_grad_() for t in (x, memory) if t is not None]
    q, k, v = (x, *memory.split(wide, 1)) if memory is not None else x.split(wide, 1)
    cut = [t.unflatten(1, (heads, size)).float() for t in (q, k, v)]
    mask = kept(SEED[0], 5, (len(x), heads, width), dropout)
    wanted = by_rows(*cut, starts, starts_k, way == "causal", mask, dropout)
    numbers = (heads, size, way == "causal", 0.25, width, block)
    seed = SEED[0] if dropout else None
    mine = _ShortRows.apply(x, memory, starts, starts_k, numbers, seed, 5, dropout)
    close(mine, wanted, dtype)
    grad = torch.randn_like(mine)
    for a, b in zip(
        torch.autograd.grad(mine, inputs, grad),
        torch.autograd.grad(wanted, inputs, grad.float()),
        strict=True,
    ):
        close(a, b, dtype)


# --- whole models ---------------------------------------------------------------------------------


def trained(model, ids, mask, dtype=None):
    """Loss and gradients of one pass."""
    model.zero_grad()
    torch.manual_seed(5)
    given = {"input_ids": ids, "attention_mask": mask, "labels": ids}
    loss = model(**given, dtype=dtype).loss
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()]


def a_batch(padded):
    ids = torch.randint(4, VOCAB, (6, 20), device=DEVICE)
    mask = torch.ones_like(ids)
    if padded:
        mask[0, 4:] = mask[2, 2:] = 0
    return ids, mask


@kernels
@pytest.mark.parametrize("mode", [None, "layers", "selective"])
@pytest.mark.parametrize("padded", [False, True], ids=["grid", "packed"])
@pytest.mark.parametrize("norm_at", ["pre", "post"])
def test_a_model_learns_the_same_with_the_same_masks(norm_at, padded, mode, monkeypatch):
    """In fp32, which the kernels are not used for: both ways are forced."""
    options = {"dropout": 0.1, "feed_dropout": 0.1, "norm_at": norm_at}
    model = af.build(transformer(32, 2, 48, 2, vocab=VOCAB, **options), device=DEVICE, seed=0)
    batch, ways = a_batch(padded), []
    for forced in (True, False):
        model.train().recompute(mode if forced else None)
        for place in (norm, feed):
            name = "_serves" if place is norm else "feed_serves"
            monkeypatch.setattr(place, name, lambda *_, forced=forced: forced)
        monkeypatch.setattr("allformer.core.feed_forward.feed_serves", lambda *_: True)
        monkeypatch.setattr(core_stack, "ready", lambda *_: True)
        fits = short.LONGEST if forced else 0
        monkeypatch.setattr(short.ShortRows, "fits", lambda _, case, n=fits: 0 < case.length <= n)
        ways.append(trained(model, *batch))
    (loss, mine), (wanted, hers) = ways
    assert abs(loss - wanted) < 1e-2
    for a, b in zip(mine, hers, strict=True):
        close(a, b, torch.float32, 3000 if CUDA else 1)  # products of fp32 are tf32 there


@on_gpu
@pytest.mark.parametrize("padded", [False, True], ids=["grid", "packed"])
@pytest.mark.parametrize("norm_at", ["pre", "post"])
def test_half_precision_by_kernels_is_no_further_from_the_truth(norm_at, padded, monkeypatch):
    model = af.build(
        transformer(64, 2, 96, 2, vocab=VOCAB, dropout=0.0, norm_at=norm_at), device="cuda", seed=0
    )
    batch = a_batch(padded)
    _, truth = trained(model, *batch)
    _, mine = trained(model, *batch, torch.bfloat16)
    monkeypatch.setattr(core_stack, "ready", lambda *_: False)
    monkeypatch.setattr("allformer.core.feed_forward.feed_serves", lambda *_: False)
    monkeypatch.setattr(short, "LONGEST", 0)
    _, plain = trained(model, *batch, torch.bfloat16)

    def off(found):
        far = sum((a - b).double().square().sum() for a, b in zip(found, truth, strict=True))
        return far.sqrt()

    assert off(mine) < 1.3 * off(plain)


@on_gpu
def test_a_step_in_a_cuda_graph_draws_new_masks_each_time():
    tree = transformer(64, 4, 96, 2, vocab=VOCAB, dropout=0.3, attention_dropout=0.3)
    model = af.build(tree, device="cuda", seed=0).train()
    ids = torch.randint(4, VOCAB, (6, 20), device="cuda")

    def step():
        found = model.states(input_ids=ids, decoder_input_ids=ids, dtype=torch.bfloat16)
        out = found["decoder"].float().sum()
        out.backward()
        return out.detach()

    on_side_stream(step)
    model.zero_grad(set_to_none=True)
    captured = Captured(step)
    assert len({captured.replay().item() for _ in range(4)}) == 4


@on_gpu
def test_a_compiled_model_takes_the_plain_way():
    model = af.build(transformer(32, 2, 48, 1, vocab=VOCAB), device="cuda", seed=0).train()
    ids = torch.randint(4, VOCAB, (6, 20), device="cuda")
    call = torch.compile(lambda: model(input_ids=ids, labels=ids, dtype=torch.bfloat16).loss)
    call().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@kernels
@pytest.mark.parametrize("rows", [7, 21])
@pytest.mark.parametrize("dtype", DTYPES)
def test_turned_heads_are_the_plain_ones(dtype, rows):
    """Angles for each of 7 places, or for each of 21 tokens; 3 heads turn, 2 stay."""
    angles = random(rows, 8)
    cos, sin = angles.cos(), angles.sin()
    x = random(21, 5 * 16, dtype=dtype).requires_grad_()
    wanted = x.double().unflatten(1, (5, 16))
    turn = Turn(*(t.double().repeat(21 // rows, 1) for t in (cos, sin)))
    wanted = torch.cat([turn.turn(wanted[:, :3]), wanted[:, 3:]], 1).flatten(1)
    mine = turn_fused(x, cos, sin, 3)
    close(mine, wanted, dtype)
    grad = torch.randn_like(mine)
    (a,), (b,) = torch.autograd.grad(mine, x, grad), torch.autograd.grad(wanted, x, grad.double())
    close(a, b, dtype)


@kernels
def test_one_pass_of_adamw_is_torchs():
    from allformer.core.fused.gpu.adamw import adamw_

    p, m, v = random(5000), *torch.zeros(2, 5000, device=DEVICE)
    other = torch.nn.Parameter(p.clone())
    options = {"betas": (0.9, 0.95), "eps": 1e-8}
    hers = torch.optim.AdamW([other], lr=1e-2, weight_decay=0.1, **options)
    rate, step, three, zero = (torch.tensor(x, device=DEVICE) for x in (1e-2, 0.0, 3.0, 0.0))
    for _ in range(4):
        grad = random(5000)
        step += 1
        adamw_(p, grad * 3, m, v, step, rate, three, zero, *options.values(), 0.1)
        other.grad = grad
        hers.step()
        close(p, other, torch.float32)
    before = p.clone()
    adamw_(p, grad, m, v, step, rate, None, zero + 1, *options.values(), 0.1)
    assert torch.equal(p, before)


@on_gpu
def test_its_optimiser_goes_on_where_torchs_stopped():
    from allformer.core.fused.adamw import LARGE, OnePassAdamW

    starts = [random(LARGE // 512, 512), random(30)]
    rate, found = torch.tensor(1e-2, device="cuda"), []
    for kinds in ((OnePassAdamW, torch.optim.AdamW), (torch.optim.AdamW, torch.optim.AdamW)):
        params, state = [torch.nn.Parameter(x.clone()) for x in starts], None
        torch.manual_seed(0)
        for kind in kinds:
            more = {} if kind is OnePassAdamW else {"fused": True, "capturable": True}
            optimizer = kind(params, lr=rate, weight_decay=0.1, **more)
            if state is not None:
                optimizer.load_state_dict(state)
            for _ in range(3):
                for p in params:
                    p.grad = torch.randn_like(p)
                optimizer.step()
            state = optimizer.state_dict()
        found.append(params)
    for mine, hers in zip(*found, strict=True):
        close(mine, hers, torch.float32)


def test_a_cpu_runs_the_plain_way(monkeypatch):
    def never(*args):
        raise AssertionError("a kernel was asked for")

    monkeypatch.setattr(core_stack, "draw", never)
    model = af.build(transformer(16, 2, 24, 1, vocab=VOCAB), seed=0).train()
    ids = torch.randint(4, VOCAB, (2, 5))
    assert model(input_ids=ids, labels=ids).loss.isfinite()


@kernels
@pytest.mark.parametrize("shape", [(3, 5), (700, 130)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_are_summed(dtype, shape):
    from allformer.core.fused.gpu.columns import column_sums

    x = random(*shape, dtype=dtype)
    close(column_sums(x), x.double().sum(0), torch.float32)


@kernels
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_linear_layer_gives_gradients_of_its_master_weights(dtype):
    x, weight, bias = random(40, 16, dtype=dtype), random(24, 16).to(dtype).float(), random(24)
    mine = [t.detach().requires_grad_() for t in (x, weight, bias)]
    hers = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    out, wanted = linear(*mine), F.linear(*hers)
    close(out, wanted, dtype)
    grad = torch.randn_like(out)
    found = torch.autograd.grad(out, mine, grad), torch.autograd.grad(wanted, hers, grad.double())
    for a, b in zip(*found, strict=True):
        close(a, b, dtype)


# --- inference that is captured -------------------------------------------------------------------


def test_without_gradients_the_kernels_serve_where_a_graph_is_captured_alone(monkeypatch):
    monkeypatch.setattr(fused, "trains", lambda device, dtype: True)
    x = torch.zeros(2)
    assert fused.ready(x)
    with torch.no_grad():
        assert not fused.ready(x)
        with fused.capturing():
            assert fused.ready(x)
        assert not fused.ready(x)


@kernels
@pytest.mark.parametrize("norm_at", ["pre", "post"])
def test_captured_inference_by_kernels_is_as_near_as_without_them(norm_at, monkeypatch):
    monkeypatch.setattr(fused, "trains", lambda device, dtype: dtype == torch.bfloat16)
    source = config.Patches(4, image=(8, 12))
    block = config.Block(config.Attention(2), config.Feed(24, act="gelu"), norm_at=norm_at)
    place = config.LearnedPlane(source.shape, source.placed)
    stack = config.Stack(16, source, place, (block,) * 2, final_norm=config.Norm())
    tree = config.EncoderOnly(stack, config.ClassHead(("a", "b", "c"), at="first"))
    model = make_loud(af.build(tree, seed=0, device=DEVICE)).eval()
    images = random(6, 3, 8, 12)
    with torch.inference_mode():
        wanted = model(pixel_values=images).logits
        model.bfloat16()
        plain = model(pixel_values=images).logits
        with fused.capturing():
            found = [model(pixel_values=images, states=states).logits for states in (True, False)]
    limit = 3 * (plain - wanted).norm()
    assert all((x - wanted).norm() < limit for x in found)
