"""Flash attention's window joined with global tokens: the formula, dropout and gradients too.

The kernel runs on a GPU alone; here the formula of a window, with the kernel's own normaliser and
its own backward pass, stands in for it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import allformer as af
from allformer.config import Attention, GlobalWindow
from allformer.core.kernels import flash_global as flash
from allformer.core.kernels.ragged import RaggedFlash
from allformer.core.layout import Grid, pack
from tests.models import PAPER, encoder_only, left_padding, loud, right_padding, tokens

WIDTH, ROWS = 24, 3
CPU = torch.device("cpu")
MASKS = {
    "none": None,
    "right": right_padding([24, 17, 1], WIDTH).bool(),
    "left": left_padding([24, 17, 1], WIDTH).bool(),
}


def own_row(rows: flash.Rows) -> torch.Tensor:
    return torch.repeat_interleave(rows.starts.diff().long())  # N


def number(rows: flash.Rows) -> torch.Tensor:
    row = own_row(rows)
    return torch.arange(len(row), device=row.device) - rows.starts.long()[row]


class Kernel:
    """Stands in for the kernel: over all pairs, with a mask of dropout that it makes again."""

    calls = 0

    def allowed(self, rows, window):
        row, place = own_row(rows), number(rows)
        far = place - place[:, None]
        near = (far >= -window.left) & (far <= window.right)
        return near & (row == row[:, None])

    def kept(self, shape, dropout):
        make = torch.Generator().manual_seed(7)
        return (torch.rand(shape, generator=make) >= dropout) / (1 - dropout)

    def scores(self, q, k, rows, window):
        share = q.shape[1] // k.shape[1]
        k = k.repeat_interleave(share, 1)
        scores = torch.einsum("nhd,mhd->hnm", q, k) * window.scale
        return scores.masked_fill(~self.allowed(rows, window), float("-inf"))

    def forward(self, q, k, v, rows, window):
        self.calls += 1
        scores = self.scores(q, k, rows, window)
        lse = scores.logsumexp(-1)
        weights = (scores - lse[..., None]).exp()
        weights = weights * self.kept(weights.shape, window.dropout)
        v = v.repeat_interleave(q.shape[1] // k.shape[1], 1)
        out = torch.einsum("hnm,mhd->nhd", weights, v)
        return out, lse, torch.zeros(2), torch.zeros(())

    def backward(self, grad, parts, found, rows, window):
        (q, k, v), (out, lse, *_) = parts, found
        share = q.shape[1] // k.shape[1]
        wide_k, wide_v = (x.repeat_interleave(share, 1) for x in (k, v))
        weights = (self.scores(q, k, rows, window) - lse[..., None]).exp()
        keep = self.kept(weights.shape, window.dropout)
        dv = torch.einsum("hnm,nhd->mhd", weights * keep, grad)
        pull = torch.einsum("nhd,mhd->hnm", grad, wide_v) * keep
        pull = weights * (pull - (grad * out).sum(-1).T[..., None]) * window.scale
        dq = torch.einsum("hnm,mhd->nhd", pull, wide_k)
        dk = torch.einsum("hnm,nhd->mhd", pull, q)
        dk, dv = (x.view(len(x), -1, share, x.shape[-1]).sum(2) for x in (dk, dv))
        return dq, dk, dv

    def whole(self, parts, rows, marked, scale, dropout):
        q, k, v = parts
        share = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(share, 1) for x in (k, v))
        mine = torch.repeat_interleave(marked.starts.diff().long())
        scores = torch.einsum("lhd,mhd->hlm", q, k) * scale
        scores = scores.masked_fill(mine[:, None] != own_row(rows), float("-inf"))
        return torch.einsum("hlm,mhd->lhd", scores.softmax(-1), v)


@pytest.fixture
def kernel(monkeypatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(flash, "_forward", made.forward)
    monkeypatch.setattr(flash, "_backward", made.backward)
    monkeypatch.setattr("allformer.core.mixers.global_window.flash_whole", made.whole)
    return made


def layout_of(mask):
    return Grid(ROWS, WIDTH) if mask is None else pack(mask)


def marked_of(layout, marks, mask):
    marks = marks if mask is None else marks & mask
    most = int(marks.sum(1).max())
    columns = torch.argsort(marks.int(), dim=1, descending=True, stable=True)[:, :most]
    real = torch.arange(most, device=marks.device) < marks.sum(1, keepdim=True)
    return flash.marked_tokens(layout, marks, columns, real, marks.flatten().nonzero()[:, 0])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("mask", MASKS)
def test_joined_parts_are_one_softmax_with_its_gradients(mask, dropout, kernel, monkeypatch):
    keep = MASKS[mask]
    layout = layout_of(keep)
    rows = flash.rows_of(layout, CPU)
    marks = torch.zeros(ROWS, WIDTH).bool()
    marks[0, [0, 3, 20]] = marks[1, [8, 22]] = True
    marked, reach = marked_of(layout, marks, keep), (3, 2)
    n = len(own_row(rows))
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(n, heads, 6, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)
    )
    window = flash._Window(*reach, 0.4, dropout)
    thin = torch.rand(ROWS, 4, WIDTH, marked.real.shape[1]) >= dropout
    if dropout:
        monkeypatch.setattr(flash._Others, "draw", lambda self: thin)
    out = flash.flash_global((q, k, v), rows, marked, reach, 0.4, dropout)

    same = own_row(rows) == own_row(rows)[:, None]
    chosen = torch.zeros(n).bool()
    chosen[marked.tokens] = True
    near = kernel.allowed(rows, window)
    scores = torch.einsum("nhd,mhd->hnm", q, k.repeat_interleave(2, 1)) * 0.4
    scores = scores.masked_fill(~(near | (same & chosen)), float("-inf"))
    factor = kernel.kept(scores.shape, dropout).double()
    place = number(rows) if keep is None else layout.cells % WIDTH
    for row, column in marked.real.nonzero().tolist():  # the other part's own mask
        token = marked.tokens[: marked.real[:row].sum() + column + 1][-1]
        mine = (own_row(rows) == row) & ~near[:, token]
        factor[:, mine, token] = thin[row, :, place[mine], column].double() / (1 - dropout)
    wanted = torch.einsum("hnm,mhd->nhd", scores.softmax(-1) * factor, v.repeat_interleave(2, 1))
    torch.testing.assert_close(out, wanted)
    push = torch.randn_like(out)
    mine, hers = (torch.autograd.grad(x, (q, k, v), push) for x in (out, wanted))
    for a, b in zip(mine, hers, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("some", ["marked", "none"])
def test_a_model_that_learns_by_it_is_the_formula(mask, some, kernel, monkeypatch):
    monkeypatch.setattr(RaggedFlash, "fits", lambda self, case: True)
    model = loud(encoder_only(replace(PAPER, attention=Attention(4, mixer=GlobalWindow(3, 2)))))
    ids, marks = tokens(ROWS, WIDTH), torch.zeros(ROWS, WIDTH).long()
    if some == "marked":
        marks[0, [0, 3, 20]] = marks[1, [8, 23]] = marks[2, 0] = 1
    keep = MASKS[mask]
    inputs = {"attention_mask": None if keep is None else keep.long()}
    inputs["global_attention_mask"] = marks
    found = []
    for way in ("fast", "eager"):
        kernel.calls = 0
        model.zero_grad()
        out = model(ids, kernel=way, **inputs).logits
        out = out if keep is None else out[keep]
        (out.square().sum() / 1000).backward()
        assert bool(kernel.calls) == (way == "fast")
        found.append([out, *(p.grad.clone() for p in model.parameters())])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_rows_with_padding_inside_are_left_to_others():
    whole = pack(MASKS["left"])
    assert flash.unbroken(whole)
    assert flash.unbroken(Grid(2, 5))
    assert not flash.unbroken(Grid(2, 5, torch.ones(2, 5).bool()))
    hole = MASKS["right"].clone()
    hole[0, 5] = False
    assert not flash.unbroken(pack(hole))


on_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="flash attention runs on a GPU here"
)


@on_gpu
@pytest.mark.parametrize("some", [True, False], ids=["marked", "none"])
@pytest.mark.parametrize("mask", MASKS)
def test_on_a_gpu_the_kernel_gives_the_formula_and_its_gradients(mask, some):
    keep, gpu = MASKS[mask], torch.device("cuda")
    layout = layout_of(None if keep is None else keep.repeat_interleave(9, 1)[:, : 9 * WIDTH])
    layout = Grid(ROWS, 9 * WIDTH) if keep is None else type(layout)(*(x.to(gpu) for x in layout))
    rows = flash.rows_of(layout, gpu)
    n = int(rows.starts[-1])
    marks = torch.zeros(ROWS, 9 * WIDTH, device=gpu).bool()
    marks[0, [0, 30, 190]] = marks[1, [70, 200]] = True
    real = None if keep is None else layout.keep
    marked = marked_of(layout, marks, real) if some else None
    parts = [
        torch.randn(n, heads, 64, device=gpu, dtype=torch.bfloat16, requires_grad=True)
        for heads in (4, 2, 2)
    ]
    out = flash.flash_global(tuple(parts), rows, marked, (31, 22), 0.2)
    push = torch.randn_like(out)
    grads = torch.autograd.grad(out, parts, push)

    q, k, v = (x.detach().float().requires_grad_() for x in parts)
    row, place = own_row(rows), number(rows)
    far = place - place[:, None]
    may = (far >= -31) & (far <= 22)
    if marked is not None:
        chosen = torch.zeros(n, device=gpu).bool()
        chosen[marked.tokens] = True
        may = may | chosen
    scores = torch.einsum("nhd,mhd->hnm", q, k.repeat_interleave(2, 1)) * 0.2
    scores = scores.masked_fill(~(may & (row == row[:, None])), float("-inf"))
    wanted = torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v.repeat_interleave(2, 1))
    hers = torch.autograd.grad(wanted, (q, k, v), push.float())
    for a, b in zip((out, *grads), (wanted, *hers), strict=True):
        assert (a.float() - b).norm() <= 0.02 * b.norm()


@on_gpu
@pytest.mark.parametrize("mask", ["none", "right", "left"])
def test_on_a_gpu_training_with_dropout_is_the_formula_on_average(mask):
    width, device = 700, torch.device("cuda")
    block = replace(PAPER, attention=Attention(2, mixer=GlobalWindow(60, 40), dropout=0.3))
    tree = encoder_only(block, dim=64, blocks=(block,))
    ids, marks = tokens(2, width).to(device), torch.zeros(2, width).long().to(device)
    marks[0, [0, 300]] = marks[1, 350] = 1
    keep = None if mask == "none" else right_padding([width, 500], width).to(device)
    keep = keep.flip(-1) if mask == "left" else keep
    model = af.build(tree, seed=0, device=device).train()
    inputs = {"attention_mask": keep, "global_attention_mask": marks}
    real = slice(None) if keep is None else keep.bool()

    def run(kernel, dtype):
        model.zero_grad()
        states = model(ids, kernel=kernel, dtype=dtype, **inputs).last_hidden_state[real].float()
        (states * torch.linspace(-1, 1, 64, device=device)).mean().backward()
        return states.detach(), model.encoder.layers[0].attention.qkv.weight.grad.clone()

    torch.manual_seed(0)
    draws = [run("fast", torch.bfloat16) for _ in range(64)]
    formula = [run("eager", torch.float32) for _ in range(64)]
    for index, near in ((0, 0.05), (1, 0.3)):  # gradients differ more from draw to draw
        a, b = (torch.stack([x[index] for x in each]).mean(0) for each in (draws, formula))
        assert (a - b).norm() <= near * b.norm()
