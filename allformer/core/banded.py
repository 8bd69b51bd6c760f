"""Softmax attention inside a band: a query meets the keys within its reach, chunk by chunk.

    out = banded(q, k, v, left=256, right=256, scale=0.125, keep=attention_mask.bool())

What is held at a time is the scores of one chunk of queries, C × (C + left + right): memory grows
with the length, not with its square. The backward pass makes the scores of each chunk again.

Legend: B rows, H heads, G key/value heads, T queries, S keys (the queries are the last T of them),
D head size, W = left + 1 + right places of the band, E keys that everybody sees, C a chunk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.fused.random import draw, kept
from allformer.core.precision import widen

CHUNK = {"cpu": 128}  # queries at a time; wider is slower on a CPU, whose caches are small
WIDE = 512  # elsewhere


class Seen(NamedTuple):
    """Keys and values (B G E D) that every query also sees, inside the same softmax; `mask` (B E)
    is False where there is none."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None = None


class _Band(NamedTuple):
    left: int
    right: int
    scale: float
    dropout: float
    chunk: int


class _Chunk(NamedTuple):
    """Queries first … last of all, and the keys low … high that they may look at; `skipped`
    columns of the band's pattern lie before the first key there is."""

    number: int
    first: int
    last: int
    low: int
    high: int
    skipped: int


def banded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    left: int,
    right: int,
    *,
    scale: float,
    keep: Tensor | None = None,
    dilation: int = 1,
    bias: Tensor | None = None,
    extra: Seen | None = None,
    rows: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """q B H T D, k and v B G S D → B H T D: `banded(q, k, v, 256, 0, scale=0.125)` looks back.

    A query looks at `left` keys before it and `right` after it, every `dilation`-th, and at itself.
    `keep` (B S) is False where no key stands. `bias` (B or 1, H or 1, T or 1, W) is added to the
    scores of each query's band, from the left to the right. `rows` (B S) numbers texts that lie end
    to end: each sees itself alone. A query that sees nobody gets zeros.
    """
    if dilation > 1:
        classes = _Classes(q.shape[2], k.shape[2], dilation)
        q, k, v, keep, bias = classes.split(q, k, v, keep, bias)
        extra = None if extra is None else classes.repeat(extra)
        rows = None if rows is None else classes.deal(rows[:, None, :, None], 0)[:, 0, :, 0]
        options: Any = {"keep": keep, "bias": bias, "extra": extra, "rows": rows}
        out = banded(q, k, v, left, right, scale=scale, dropout=dropout, **options)
        return classes.join(out)
    targets, sources = q.shape[2], k.shape[2]
    near, far = min(left, sources - 1), min(right, targets - 1)
    if bias is not None:  # places beyond the row's ends are nobody's
        bias = bias[..., left - near : left + far + 1]
    if extra is not None and extra.keys.shape[2] == 0:
        extra = None
    keys, values, mask = (None, None, None) if extra is None else extra
    seed = draw(1, q.device)[0] if dropout else None
    band = _Band(near, far, scale, dropout, CHUNK.get(q.device.type, WIDE))
    apply: Any = _Banded.apply
    found: Tensor = apply(q, k, v, keys, values, bias, keep, mask, rows, seed, band)
    return found


class _Classes:
    """Dilation d: places that differ by multiples of d see each other alone, so that each class of
    places is a row of its own, with a band without holes."""

    def __init__(self, targets: int, sources: int, dilation: int) -> None:
        self.targets, self.dilation = targets, dilation
        self.before = (sources - targets) % dilation  # so that queries and keys are cut alike
        self.behind = -sources % dilation

    def split(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        if keep is None and self.behind:
            keep = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
        if keep is not None:
            keep = self.deal(keep[:, None, :, None], 0)[:, 0, :, 0]
        if bias is not None:
            if bias.shape[2] > 1:
                bias = self.deal(bias.expand(q.shape[0], -1, -1, -1), self.before)
            elif bias.shape[0] > 1:
                bias = bias.repeat_interleave(self.dilation, 0)
        return self.deal(q, self.before), self.deal(k, 0), self.deal(v, 0), keep, bias

    def deal(self, x: Tensor, before: int) -> Tensor:
        """B H T D → B·d H T/d D."""
        d = self.dilation
        x = F.pad(x, (0, 0, before, self.behind))
        rows, heads, length, size = x.shape
        x = x.view(rows, heads, length // d, d, size)
        return x.permute(0, 3, 1, 2, 4).reshape(rows * d, heads, length // d, size)

    def repeat(self, extra: Seen) -> Seen:
        keys, values, mask = (
            None if x is None else x.repeat_interleave(self.dilation, 0) for x in extra
        )
        assert keys is not None
        assert values is not None
        return Seen(keys, values, mask)

    def join(self, x: Tensor) -> Tensor:
        """B·d H T/d D → B H T D."""
        many, heads, length, size = x.shape
        d = self.dilation
        x = x.view(many // d, d, heads, length, size).permute(0, 2, 3, 1, 4)
        whole = x.reshape(many // d, heads, length * d, size)
        return whole[:, :, self.before : self.before + self.targets]


class _Banded(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keys: Tensor | None,
        values: Tensor | None,
        bias: Tensor | None,
        keep: Tensor | None,
        mask: Tensor | None,
        rows: Tensor | None,
        seed: Tensor | None,
        band: _Band,
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, keys, values, bias, keep, mask, rows, seed)
        ctx.band = band
        work = _Work(band, q, k, v, keys, values, bias, keep, mask, rows, seed)
        out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype, device=q.device)
        for chunk in work.chunks():
            _, thin = work.weights(chunk)
            mixed = _fold(thin) @ work.values(chunk)  # B G share·C D
            out[:, :, chunk.first : chunk.last] = _heads(mixed, chunk)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        """With P the weights and dP = dO Vᵀ: dV = Pᵀ dO, dS = P (dP − Σ P dP), dQ = dS K · scale,
        dK = dSᵀ Q · scale; what is added to scores gets dS."""
        work = _Work(ctx.band, *ctx.saved_tensors)
        tensors = (work.q, work.k, work.v, work.extra_k, work.extra_v)
        dq, dk, dv, dek, dev = (None if x is None else torch.zeros_like(x) for x in tensors)
        wants_bias = ctx.needs_input_grad[5]
        dbias = torch.zeros_like(widen(work.bias)) if wants_bias else None  # type: ignore[arg-type]
        assert dq is not None
        for chunk in work.chunks():
            weights, thin = work.weights(chunk)
            given = work.grouped(grads[0], chunk)  # B G share·C D
            work.give(dv, dev, chunk, _fold(thin).transpose(-2, -1) @ given)
            pull = widen((given @ work.values(chunk).transpose(-2, -1)).view_as(weights))
            if ctx.band.dropout:
                pull = work.thin(pull, chunk)
            pull = weights * (pull - (weights * pull).sum(-1, keepdim=True))  # B G share C S+E
            if dbias is not None:
                work.give_bias(dbias, chunk, pull)
            pull = _fold(pull).to(work.q.dtype) * ctx.band.scale
            dq[:, :, chunk.first : chunk.last] = _heads(pull @ work.keys(chunk), chunk)
            queries = work.grouped(work.q, chunk)
            work.give(dk, dek, chunk, pull.transpose(-2, -1) @ queries)
        if dbias is not None and work.bias is not None:
            dbias = dbias.to(work.bias.dtype)
        return dq, dk, dv, dek, dev, dbias, None, None, None, None, None


class _Work:
    """What both passes make again of each chunk."""

    def __init__(
        self,
        band: _Band,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keys: Tensor | None,
        values: Tensor | None,
        bias: Tensor | None,
        keep: Tensor | None,
        mask: Tensor | None,
        rows: Tensor | None,
        seed: Tensor | None,
    ) -> None:
        self.q, self.k, self.v, self.extra_k, self.extra_v = q, k, v, keys, values
        self.bias, self.rows, self.seed, self.band = bias, rows, seed, band
        self.groups, self.share = k.shape[1], q.shape[1] // k.shape[1]
        self.dtype = torch.promote_types(q.dtype, torch.float32)
        self.chunk = min(band.chunk, q.shape[2])
        # Nobody gets this much less than another by scores alone, and it is finite: a query that
        # sees nobody makes no NaN.
        self.never = torch.finfo(self.dtype).min / 4
        row = torch.arange(self.chunk, device=q.device)[:, None]
        column = torch.arange(self.chunk + band.left + band.right, device=q.device)
        self.at = column - row  # C S: the place in the band, if 0 ≤ at < W
        self.pattern = self._closed((self.at >= 0) & (self.at <= band.left + band.right))  # C S
        self.there = None if keep is None else self._closed(keep[:, None, None, None])  # B 1 1 1 S
        self.extra_there = None if mask is None else self._closed(mask[:, None, None, None])
        self.sees = None if mask is None else mask.any(-1)[:, None, None, None, None]
        self.may_be_blind = keep is not None and (keys is None or mask is not None)

    def _closed(self, may: Tensor) -> Tensor:
        """0 where one may look, far below zero where not."""
        zero = torch.zeros(may.shape, dtype=self.dtype, device=may.device)
        return zero.masked_fill_(~may, self.never)

    def chunks(self) -> list[_Chunk]:
        (_, _, targets, _), sources = self.q.shape, self.k.shape[2]
        offset = sources - targets
        found = []
        for number, first in enumerate(range(0, targets, self.chunk)):
            last = min(first + self.chunk, targets)
            begin = first + offset - self.band.left
            low, high = max(0, begin), min(sources, last + offset + self.band.right)
            found.append(_Chunk(number, first, last, low, high, low - begin))
        return found

    def keys(self, chunk: _Chunk) -> Tensor:
        return _with(self.k[:, :, chunk.low : chunk.high], self.extra_k)

    def values(self, chunk: _Chunk) -> Tensor:
        return _with(self.v[:, :, chunk.low : chunk.high], self.extra_v)

    def grouped(self, x: Tensor, chunk: _Chunk) -> Tensor:
        """Rows of a chunk, the heads that share keys end to end: B H T D → B G share·C D."""
        x = x[:, :, chunk.first : chunk.last]
        return x.reshape(x.shape[0], self.groups, -1, x.shape[3])

    def weights(self, chunk: _Chunk) -> tuple[Tensor, Tensor]:
        """B G share C S+E: of the formula, and with dropout in the dtype of the values."""
        rows, seen = chunk.last - chunk.first, chunk.high - chunk.low
        queries = self.grouped(self.q, chunk) * self.band.scale
        scores = widen(queries @ self.keys(chunk).transpose(-2, -1))
        scores = scores.view(-1, self.groups, self.share, rows, scores.shape[-1])
        near = scores[..., :seen]
        columns = slice(chunk.skipped, chunk.skipped + seen)
        near += self.pattern[:rows, columns]
        if self.there is not None:
            near += self.there[..., chunk.low : chunk.high]
        if self.rows is not None:
            near += self._same_text(self.rows, chunk)
        if self.bias is not None:
            near += self._bias(chunk, columns)
        if self.extra_there is not None:
            scores[..., seen:] += self.extra_there
        weights = scores.softmax(-1)
        if self.may_be_blind:
            weights = weights.masked_fill_(self._blind(chunk, columns), 0.0)
        thin = self.thin(weights, chunk) if self.band.dropout else weights
        return weights, thin.to(self.v.dtype)

    def _same_text(self, rows: Tensor, chunk: _Chunk) -> Tensor:
        """B 1 1 C S."""
        offset = rows.shape[1] - self.q.shape[2]
        mine = rows[:, chunk.first + offset : chunk.last + offset]
        same = mine[:, :, None] == rows[:, None, chunk.low : chunk.high]
        return self._closed(same)[:, None, None]

    def _blind(self, chunk: _Chunk, columns: slice) -> Tensor:
        """B 1 1 C 1: queries that nobody stands near."""
        assert self.there is not None
        rows = chunk.last - chunk.first
        closed = self.pattern[:rows, columns] + self.there[..., chunk.low : chunk.high]
        blind = closed.amax(-1, keepdim=True) < 0
        return blind if self.sees is None else blind & ~self.sees

    def thin(self, x: Tensor, chunk: _Chunk) -> Tensor:
        """Dropout: the same mask in both passes."""
        assert self.seed is not None
        keep = kept(self.seed, chunk.number, tuple(x.shape), self.band.dropout)
        return x * keep / (1 - self.band.dropout)

    def _bias(self, chunk: _Chunk, columns: slice) -> Tensor:
        """From the band's places to the chunk's columns: B G share C S."""
        assert self.bias is not None
        rows = chunk.last - chunk.first
        bias = self.bias if self.bias.shape[2] == 1 else self.bias[:, :, chunk.first : chunk.last]
        at = self.at[:rows, columns].clamp(0, self.band.left + self.band.right)
        spread = bias.expand(-1, -1, rows, -1).gather(3, at.expand(*bias.shape[:2], -1, -1))
        return self._over_groups(spread)

    def _over_groups(self, x: Tensor) -> Tensor:
        """B, H or 1, C, S → B, G or 1, share or 1, C, S."""
        return x[:, None] if x.shape[1] == 1 else x.view(-1, self.groups, self.share, *x.shape[2:])

    def give_bias(self, dbias: Tensor, chunk: _Chunk, pull: Tensor) -> None:
        """The gradient of the scores, from columns back to the band's places."""
        rows, seen = chunk.last - chunk.first, chunk.high - chunk.low
        missing = self.at.shape[1] - seen - chunk.skipped
        whole = F.pad(pull[..., :seen], (chunk.skipped, missing)).flatten(1, 2)  # B H C S
        place = torch.arange(self.band.left + 1 + self.band.right, device=pull.device)
        column = place + torch.arange(rows, device=pull.device)[:, None]  # C W
        found = whole.gather(3, column.expand(*whole.shape[:2], -1, -1))
        one = dbias.shape[2] == 1
        part = dbias if one else dbias[:, :, chunk.first : chunk.last]
        part += found.sum_to_size(part.shape)

    @staticmethod
    def give(near: Tensor | None, extra: Tensor | None, chunk: _Chunk, grad: Tensor) -> None:
        """A chunk's share of the gradient of keys or values."""
        assert near is not None
        seen = chunk.high - chunk.low
        near[:, :, chunk.low : chunk.high] += grad[:, :, :seen]
        if extra is not None:
            extra += grad[:, :, seen:]


def _with(near: Tensor, extra: Tensor | None) -> Tensor:
    return near if extra is None else torch.cat([near, extra], dim=2)


def _fold(x: Tensor) -> Tensor:
    """B G share C S → B G share·C S."""
    return x.flatten(2, 3)


def _heads(x: Tensor, chunk: _Chunk) -> Tensor:
    """B G share·C D → B H C D."""
    return x.reshape(x.shape[0], -1, chunk.last - chunk.first, x.shape[3])
