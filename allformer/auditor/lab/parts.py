# mypy: disable-error-code="no-untyped-call,no-any-return"
"""The parts of the lab's models: right when `bug` is empty, wrong in one named way otherwise.

Four styles: "separate" (three projections, the formula by hand), "fused" (one projection and
SDPA where it can be used), "mha" (nn.MultiheadAttention) and, for what that one does not let one
get wrong, "einsum" (bare parameters). Each bug stands at one line.

Legend: B batch, T queries, S keys, H heads, D head size, C = H·D.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head attention of `width`, with `heads` (and `kv_heads`) heads."""

    def __init__(
        self,
        width: int,
        heads: int,
        style: str,
        bug: str,
        causal: bool,
        dropout: float,
        kv_heads: int = 0,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.size, self.bug, self.style = heads, width // heads, bug, style
        self.kv_heads, self.causal, self.rate, self.rotary = (
            kv_heads or heads,
            causal,
            dropout,
            rotary,
        )
        self.drop = nn.Dropout(dropout)
        if style == "mha":
            self.inner = nn.MultiheadAttention(
                width, heads, dropout, batch_first=bug != "batch_first"
            )
            if bug == "shared_qkv":
                with torch.no_grad():
                    self.inner.in_proj_weight.copy_(self.inner.in_proj_weight[:width].repeat(3, 1))
        elif style == "fused":
            self.qkv = nn.Linear(width, width + 2 * self.kv_heads * self.size)
            self.out = nn.Linear(width, width)
        elif style == "einsum":
            small = self.kv_heads * self.size
            self.wq, self.wk, self.wv, self.wo = (
                nn.Parameter(torch.randn(width, n) * width**-0.5)
                for n in (width, small, small, width)
            )
            if bug == "shared_qkv":
                self.wk = self.wv = self.wq
        else:
            small = self.kv_heads * self.size
            self.q = nn.Linear(width, width)
            self.k = self.q if bug == "shared_qkv" else nn.Linear(width, small)
            self.v = self.q if bug == "shared_qkv" else nn.Linear(width, small)
            self.out = nn.Linear(width, width)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, keep: Tensor | None = None
    ) -> Tensor:
        """x B T C, memory B S C, keep B S (True = may be seen) → B T C."""
        source = x if memory is None else memory
        if self.style == "mha":
            return self._mha(x, source, keep, memory is None)
        if self.bug == "batch_first":  # wrong: (T, B, C) is expected here, (B, T, C) comes
            x, source, keep = x.transpose(0, 1), source.transpose(0, 1), None
        q, k, v = self._project(x, source)
        y = self._attend(q, k, v, self._mask(x, source, keep, memory is None))
        if self.bug != "merge":  # else wrong: (B, H, T, D) read as (B, T, C)
            y = y.transpose(1, 2)
        y = y.reshape(x.shape)
        if self.bug == "batch_first":
            y = y.transpose(0, 1)
        if self.bug == "no_out":
            return y
        return torch.einsum("btc,cd->btd", y, self.wo) if self.style == "einsum" else self.out(y)

    def _project(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.style == "fused":
            small = self.kv_heads * self.size
            parts = [x.shape[-1], small, small]
            if source is x:
                q, k, v = self.qkv(x).split(parts, -1)
            else:
                q = self.qkv(x).split(parts, -1)[0]
                _, k, v = self.qkv(source).split(parts, -1)
            if self.bug == "shared_qkv":
                k = q
        elif self.style == "einsum":
            q = torch.einsum("btc,cd->btd", x, self.wq)
            k, v = (torch.einsum("bsc,cd->bsd", source, w) for w in (self.wk, self.wv))
        else:
            q, k, v = self.q(x), self.k(source), self.v(source)
        q, k, v = (
            self._split(q, self.heads),
            self._split(k, self.kv_heads),
            self._split(v, self.kv_heads),
        )
        if self.rotary:
            q, k = rotate(q, self.bug), k if self.bug == "rotary_q_only" else rotate(k, self.bug)
        if self.kv_heads != self.heads:
            times = self.heads // self.kv_heads
            if self.bug == "grouped":
                k, v = k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)
            else:
                k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        return q, k, v

    def _split(self, x: Tensor, heads: int) -> Tensor:
        rows, length, _ = x.shape
        if self.bug == "split":
            return x.reshape(rows, heads, length, self.size)  # wrong: cuts the sequence
        return x.view(rows, length, heads, self.size).transpose(1, 2)

    def _mask(self, x: Tensor, source: Tensor, keep: Tensor | None, own: bool) -> Tensor | None:
        """B or 1, 1, T or 1, S: True = may be seen."""
        t, s = x.shape[1], source.shape[1]
        mask = None
        if own and self.causal and self.bug != "no_mask":
            mask = torch.ones(t, s, dtype=torch.bool, device=x.device).tril(
                {"ahead": 1, "behind": -1}.get(self.bug, 0)
            )[None, None]
            if self.bug == "inverted":
                mask = ~mask | torch.eye(t, dtype=torch.bool, device=x.device)
        if keep is not None and not self._forgets(own):
            pad = keep[:, None, :, None] if self.bug == "pad_query" else keep[:, None, None, :]
            if self.bug == "pad_inverted":
                pad = ~pad
            mask = pad if mask is None else mask & pad
        return mask

    def _forgets(self, own: bool) -> bool:
        return self.bug == "pad_ignored" or (self.bug == "cross_mask" and not own)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scale = {
            "no_scale": 1.0, "scale_model": (self.heads * self.size) ** -0.5,
            "scale_twice": 1 / self.size, "scale_inverted": math.sqrt(self.size),
        }.get(self.bug, self.size**-0.5)  # fmt: skip
        rate = self.rate if self.training or self.bug == "dropout_eval" else 0.0
        rate = 0.0 if self.bug == "dropout_train" else rate
        plain = self.bug not in (
            "finite",
            "fp16",
            "softmax_axis",
            "mask_late",
            "nan_rows",
        )  # SDPA has no such switch
        if self.style == "fused" and plain:
            return F.scaled_dot_product_attention(q, k, v, mask, rate, scale=scale)
        if self.style == "einsum":
            scores = torch.einsum("bhtd,bhsd->bhts", q * scale, k)
        else:
            scores = q @ k.transpose(-2, -1) * scale  # B H T S
        if mask is not None and self.bug == "finite":
            scores = scores + (~mask) * -1e4
        elif mask is not None and self.bug == "fp16":
            scores = scores.masked_fill(~mask, -1e9)
        elif mask is not None and self.bug == "nan_rows":
            scores = scores.masked_fill(~mask, float("-inf"))
        elif mask is not None and self.bug != "mask_late":
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-2 if self.bug == "softmax_axis" else -1)
        if mask is not None and self.bug == "mask_late":
            weights = weights * mask
        weights = F.dropout(weights, rate)
        return (
            torch.einsum("bhts,bhsd->bhtd", weights, v) if self.style == "einsum" else weights @ v
        )

    def _mha(self, x: Tensor, source: Tensor, keep: Tensor | None, own: bool) -> Tensor:
        mask = self._mask(x, source, None, own)
        if self._forgets(own) or self.bug == "batch_first":  # torch would refuse its mask
            keep = None
        blocked = None if mask is None else ~mask[0, 0]
        pad = None if keep is None else ~keep
        if self.bug == "pad_inverted" and keep is not None:
            pad = keep
        if self.bug == "finite" and blocked is not None:
            blocked = blocked.to(x.dtype) * -1e4
            pad = None if pad is None else pad.to(x.dtype) * -1e4
        if self.bug == "dropout_eval":
            self.inner.train()
        return self.inner(
            x,
            source,
            source,
            key_padding_mask=pad,
            attn_mask=blocked,
            need_weights=self.bug == "nan_rows",
        )[0]


def rotate(x: Tensor, bug: str) -> Tensor:
    """Rotary positions on B H T D, pairs (i, i + D/2)."""
    half = x.shape[-1] // 2
    positions = torch.arange(x.shape[2], device=x.device, dtype=x.dtype)
    steps = torch.arange(half, device=x.device, dtype=x.dtype)
    angle = positions[:, None] * 10000 ** -(steps / half)  # T D/2
    if bug == "rotary_layout":  # wrong: angles for neighbours, rotation for halves
        angle = angle.repeat_interleave(2, -1)
    else:
        angle = torch.cat([angle, angle], -1)
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * angle.cos() + turned * angle.sin()


class LayerNorm(nn.Module):
    """LayerNorm by its formula."""

    def __init__(self, width: int, bug: str = "") -> None:
        super().__init__()
        self.gain, self.shift, self.bug = (
            nn.Parameter(torch.ones(width)),
            nn.Parameter(torch.zeros(width)),
            bug,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Each position by itself: (x − mean)/√(var + ε)."""
        axis = 1 if self.bug == "norm_axis" else -1
        mean = x.mean(axis, keepdim=True)
        variance = x.var(axis, keepdim=True, unbiased=self.bug == "norm_unbiased")
        eps = 0.1 if self.bug == "norm_eps" else 1e-5
        return (x - mean) / (variance + eps).sqrt() * self.gain + self.shift


class Sinusoidal(nn.Module):
    """The paper's positions, added to B T C."""

    pe: Tensor

    def __init__(self, width: int, bug: str = "", length: int = 256) -> None:
        super().__init__()
        self.bug = bug
        two_i = torch.arange(0, width, 2).float()
        power = {"frequencies": two_i * 2, "frequencies_half": two_i / 2}.get(bug, two_i) / width
        angle = torch.arange(length).float()[:, None] / 10000**power
        pe = torch.zeros(length, width)
        pe[:, 0::2] = angle.sin()
        pe[:, 1::2] = (angle / 10000 ** (1 / width) if bug == "pairs" else angle).cos()
        if bug == "buffer":
            self.pe = pe
        else:
            self.register_buffer("pe", pe, persistent=False)

    def forward(self, x: Tensor, where: Tensor) -> Tensor:
        """x + PE[where], `where` B T."""
        if self.bug == "batch_axis":
            return x + self.pe[: x.shape[0], None]
        return x + self.pe[where]
