"""One formula, several kernels: eager = fast, grouped = repeated, blind queries stay finite."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from allformer import config
from allformer.core.attend import attention_scores, attention_weights, mix
from allformer.core.attention import Attention
from allformer.core.kernels import Case, attend, sdpa
from allformer.core.kernels.ragged import RaggedFlash
from allformer.core.layout import Grid, pack
from allformer.core.look import Look, blind_rows
from allformer.core.look import make_look as look_of
from allformer.core.mixers.mixer import Scene
from allformer.core.trace import trace
from tests.diverge import assert_same
from tests.loud import make_loud
from tests.models import KINDS, MODERN, decoder_only, left_padding, loud, right_padding, tokens
from tests.property.test_padding import hidden


def make_look(mask: Tensor) -> Look:
    return look_of(mask, blind=blind_rows(mask))


def queries(rows: int, heads: int, groups: int, targets: int, sources: int, size: int):
    """q, k, v that want gradients; large enough that attention is far from uniform."""
    shapes = [(heads, targets), (groups, sources), (groups, sources)]
    return [
        torch.randn(rows, h, n, size, dtype=torch.float64).mul(2).requires_grad_()
        for h, n in shapes
    ]


def formula(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """softmax(Q Kᵀ · scale + mask) V, head by head and query by query."""
    rows, heads, targets, _ = q.shape
    share = heads // k.shape[1]
    out = torch.zeros_like(q) + 0 * (q.sum() + k.sum() + v.sum())  # keeps the graph when all blind
    for b in range(rows):
        for h in range(heads):
            for t in range(targets):
                sees = torch.ones(k.shape[2]).bool()
                if mask is not None:
                    sees = mask.expand(rows, heads, targets, -1)[b, h, t]
                if sees.any():
                    keys, values = k[b, h // share, sees], v[b, h // share, sees]
                    out[b, h, t] = (keys @ q[b, h, t] * scale).softmax(0) @ values
    return out


def check_attend(sizes: tuple[int, ...], mask: str, seed: int = 0) -> None:
    """Eager = fast = the formula, with the gradients of q, k and v."""
    torch.manual_seed(seed)
    rows, heads, groups, targets, sources, size = sizes
    if mask == "causal":
        sources = targets
    q, k, v = queries(rows, heads, groups, targets, sources, size)
    looks = {"none": Look(), "causal": Look(causal=True)}
    if mask == "random":  # some queries may look at nothing
        looks["random"] = make_look(torch.rand(rows, 1, targets, sources) < 0.4)
    if mask == "keys":
        keep = torch.rand(rows, sources) < 0.6
        looks["keys"] = make_look(keep[:, None, None, :])
    look = looks[mask]
    outs = [attend(q, k, v, look, scale=0.7, kernel=kernel) for kernel in ("eager", "fast")]
    wanted = formula(q, k, v, look.full_mask(targets, sources, q.device), 0.7)
    push = torch.randn_like(wanted)
    grads = [torch.autograd.grad(out, (q, k, v), push) for out in (*outs, wanted)]
    for kernel, out, grad in zip(("eager", "fast"), outs, grads[:2], strict=True):
        _close(f"{kernel} output", out, wanted)
        for name, mine, hers in zip("qkv", grad, grads[2], strict=True):
            _close(f"{kernel} gradient of {name}", mine, hers)


def _close(what: str, mine: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-10, msg=lambda m: f"{what}: {m}")


@pytest.mark.parametrize("mask", ["none", "causal", "random", "keys"])
@given(
    rows=st.integers(1, 3),
    groups=st.integers(1, 3),
    share=st.integers(1, 3),
    targets=st.integers(1, 6),
    sources=st.integers(1, 6),
    size=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_both_kernels_are_the_formula_with_its_gradients(
    mask, rows, groups, share, targets, sources, size, seed
):
    check_attend((rows, groups * share, groups, targets, sources, size), mask, seed)


def check_eager_is_fast(kind: str) -> None:
    """Tap by tap through a whole model on a padded batch, and the output without a listener."""
    model, ids = loud(KINDS[kind]), tokens(3, 50)
    mask = left_padding([50, 31, 8], 50)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if kind.startswith("seq2seq"):
        inputs |= {"decoder_input_ids": tokens(3, 48, 4)}
    traces = [trace(model, **inputs, kernel=kernel) for kernel in ("eager", "fast")]
    assert_same(*traces)
    fast, eager = (model(**inputs, kernel=kernel).last_hidden_state for kernel in ("fast", "eager"))
    _close("hidden state", eager, fast)


@pytest.mark.parametrize("kind", KINDS)
def test_the_eager_kernel_gives_what_the_fast_one_gives(kind):
    check_eager_is_fast(kind)


@pytest.mark.parametrize(("targets", "wider"), [(40, True), (sdpa.FEW, False)])
@pytest.mark.parametrize("amd", [True, False])
def test_short_rows_in_bf16_are_attended_to_in_fp32_where_that_is_faster(
    monkeypatch, targets, wider, amd
):
    """And what comes of it is bf16 again, with its gradients."""
    monkeypatch.setattr(sdpa, "onednn_is_faster", lambda: amd)
    torch.manual_seed(0)
    shapes = (2, 4, targets, 8), (2, 2, 40, 8), (2, 2, 40, 8)
    q, k, v = ((3 * torch.randn(shape)).bfloat16().requires_grad_() for shape in shapes)
    mask = torch.rand(2, 1, targets, 40) < 0.5
    mask[0, 0, 3] = False  # one that may look at nothing
    out = attend(q, k, v, make_look(mask), scale=0.7, kernel="fast")
    wide = formula(q.double(), k.double(), v.double(), mask, 0.7)
    assert out.dtype == torch.bfloat16
    off = (out != wide.bfloat16()).double().mean()
    assert off < 0.01 if wider and amd else off > 0.05
    push = torch.randn(out.shape).bfloat16()
    found, wanted = (torch.autograd.grad(y, (q, k, v), push.to(y.dtype)) for y in (out, wide))
    for mine, right in zip(found, wanted, strict=True):
        assert (mine - right).abs().max() < 0.05 * right.abs().max()


# --- grouped queries ------------------------------------------------------------------------------


def check_grouped_is_repeated(kernel: str) -> None:
    """6 heads over 2 key/value heads = 6 over 6 whose weights are repeated in a row: 000111."""
    few = loud(decoder_only(MODERN))
    attention = replace(MODERN.attention, kv_heads=6)
    many = loud(decoder_only(replace(MODERN, attention=attention)))
    state = few.state_dict()
    for name, weight in state.items():
        if name.endswith("qkv.weight"):
            q, k, v = weight.split([30, 10, 10])
            k, v = (x.view(2, 5, -1).repeat_interleave(3, 0).flatten(0, 1) for x in (k, v))
            state[name] = torch.cat([q, k, v])
    many.load_state_dict(state)
    ids = tokens(2, 48)
    _close("hidden", *(m(ids, kernel=kernel).last_hidden_state for m in (few, many)))


def check_key_head_serves_its_own(kernel: str) -> None:
    """Disturb key/value head 1: of six query heads, 3, 4 and 5 move and 0, 1 and 2 do not."""
    q, k, v = queries(2, 6, 2, 7, 9, 5)
    with torch.no_grad():
        before = attend(q, k, v, Look(), scale=0.5, kernel=kernel)
        v[:, 1] += 1.0
        moved = (attend(q, k, v, Look(), scale=0.5, kernel=kernel) - before).abs().amax((0, 2, 3))
    assert moved[:3].max() == 0
    assert moved[3:].min() > 0.5


@pytest.mark.parametrize("kernel", ["eager", "fast"])
def test_grouped_queries_equal_repeated_key_heads(kernel):
    check_grouped_is_repeated(kernel)
    check_key_head_serves_its_own(kernel)


# --- the ragged kernel of a GPU -------------------------------------------------------------------


def check_flash_fits() -> None:
    """Half precision, heads of 8n ≤ 256, an Ampere or later; the kernel refuses all else."""

    def fits(size=64, dtype=torch.bfloat16, device="cuda", chip=(8, 0), **more) -> bool:
        case = Case("fast", torch.device(device), dtype, size, packed=True)._replace(**more)
        with pytest.MonkeyPatch.context() as patcher:
            patcher.setattr(torch.cuda, "get_device_capability", lambda device: chip)
            return RaggedFlash().fits(case)

    assert fits()
    assert fits(dtype=torch.float16)
    assert fits(chip=(9, 0))
    assert [size for size in range(1, 400) if fits(size)] == list(range(8, 257, 8))
    assert not fits(dtype=torch.float32)
    assert not fits(dtype=torch.float64)
    assert not fits(device="cpu")
    assert not fits(chip=(7, 5))
    assert not fits(asked="eager")
    assert not fits(packed=False)
    assert not fits(full=False)  # a window, or something added to the scores


def check_ragged_kernel() -> None:
    """The flash kernel runs only where it fits and the fast kernel is asked for; else the grid."""
    layout, x = pack(left_padding([7, 2, 4], 7)), torch.randn(13, 24).double()
    attention = Attention(config.Attention(4, kv_heads=2), 24, "a")
    make_loud(attention.double(), 1)
    flash = torch.randn(13, 4, 6).double()
    for fits in (False, True):
        for kernel in ("fast", "eager"):
            with pytest.MonkeyPatch.context() as patcher:
                patcher.setattr(RaggedFlash, "fits", lambda s, c, on=fits: on and c.asked == "fast")
                patcher.setattr(RaggedFlash, "__call__", lambda *_, **__: flash)
                scene = Scene(layout, layout, x.device, x.dtype, True, kernel)
                out = attention(x, attention.mixer.plan(scene))
            if fits and kernel == "fast":
                _close("flash", out, attention.out(flash.flatten(1)))
                continue
            for row in range(3):
                part = slice(*layout.starts[row : row + 2].tolist())
                grid = Grid(1, part.stop - part.start)
                alone = Scene(grid, grid, x.device, x.dtype, True, kernel)
                mine = attention(x[None, part], attention.mixer.plan(alone))[0]
                _close(f"row {row}", out[part], mine)


def test_the_ragged_gpu_kernel_is_given_only_what_it_takes():
    check_flash_fits()
    check_ragged_kernel()


# --- queries that may look at nothing -------------------------------------------------------------


def check_blind(kernel: str) -> None:
    """A query with every key masked gets zeros, and its gradient is zero, not NaN."""
    q, k, v = queries(2, 4, 2, 5, 6, 3)
    mask = torch.ones(2, 1, 5, 6).bool()
    mask[0, :, 2] = False
    mask[1] = False
    out = attend(q, k, v, make_look(mask), scale=1.0, kernel=kernel)
    assert (out[0, :, 2] == 0).all()
    assert (out[1] == 0).all()
    assert (out[0, :, :2].abs().amax(-1) > 0).all()
    out.sum().backward()
    for x in (q, k, v):
        assert x.grad.isfinite().all()
        assert (x.grad[1] == 0).all()
    if kernel == "eager":
        weights = attention_weights(attention_scores(q, k, scale=1.0), make_look(mask))
        assert (weights[1] == 0).all()
        sums = mask.any(-1).double().expand(2, 4, 5)
        _close("row sums", weights.sum(-1), sums)
        _close("weights · v", mix(weights, v), out)


def check_empty_rows(kind: str, route: str) -> None:
    """A sentence that is all padding: finite everywhere, and its batch mates do not notice."""
    model = loud(KINDS[kind])
    ids, mask = tokens(3, 48), right_padding([48, 0, 12], 48)
    inputs = (ids, mask)
    if kind.startswith("seq2seq"):
        inputs = (ids, mask, tokens(3, 50, 2), left_padding([50, 50, 20], 50))
    out = hidden(model, route, *inputs)
    assert out.isfinite().all()
    mates = torch.tensor([0, 2])
    without = hidden(model, route, *(x[mates] for x in inputs))
    real = inputs[-1][mates].bool()
    _close("batch mates", out[mates][real], without[real])
    model(*inputs, kernel="eager" if route == "eager" else "fast").logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("kernel", ["eager", "fast"])
def test_a_query_that_may_look_at_nothing_gets_zeros(kernel):
    check_blind(kernel)


@pytest.mark.parametrize("route", ["packed", "grid", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_sentence_in_the_batch_is_harmless(kind, route):
    check_empty_rows(kind, route)
