# mypy: disable-error-code="no-untyped-call,no-any-return"
"""The lab's right models: a decoder, an encoder and an encoder-decoder in four styles of code.

"separate" has three projections and the formula by hand, "fused" one projection and SDPA, "einsum"
bare parameters, "mha" is nn.MultiheadAttention. The bugs of `bugs.py` are changes of this text.

Legend: B batch, T queries, S keys, H heads, D head size, C = H·D.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PAD, EOS = 0, 3


def triangle(x: Tensor, source: Tensor) -> Tensor:
    """T S: True = may be seen."""
    t, s = x.shape[1], source.shape[1]
    return torch.ones(t, s, dtype=torch.bool, device=x.device).tril()


def rotate(x: Tensor, where: Tensor) -> Tensor:
    """Rotary positions `where` (B T) on B H T D, pairs (i, i + D/2)."""
    half = x.shape[-1] // 2
    steps = torch.arange(half, device=x.device, dtype=x.dtype)
    angle = where[:, None, :, None].to(x.dtype) * 10000 ** -(steps / half)  # B 1 T D/2
    angle = torch.cat([angle, angle], -1)
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * angle.cos() + turned * angle.sin()


class Separate(nn.Module):
    """Multi-head attention of `width`, with `heads` (and `kv_heads`) heads."""

    def __init__(
        self, width: int, heads: int, causal: bool, dropout: float, kv_heads: int, rotary: bool
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads or heads, width // heads
        self.causal, self.rotary, self.drop = causal, rotary, nn.Dropout(dropout)
        self.make(width, self.kv_heads * self.size)

    def make(self, width: int, small: int) -> None:
        """The projections."""
        self.q, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.v = nn.Linear(width, small), nn.Linear(width, small)

    def forward(
        self, x: Tensor, memory: Tensor | None, keep: Tensor | None, where: Tensor
    ) -> Tensor:
        """x B T C, memory B S C, keep B S (True = may be seen), where B T → B T C."""
        source = x if memory is None else memory
        q, k, v = self.project(x, source)
        q, k, v = (
            self.split(q, self.heads),
            self.split(k, self.kv_heads),
            self.split(v, self.kv_heads),
        )
        if self.rotary and memory is None:
            q, k = rotate(q, where), rotate(k, where)
        times = self.heads // self.kv_heads
        k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        look = triangle(x, source) if self.causal and memory is None else None
        if keep is not None:
            pad = keep[:, None, None, :]
            look = pad if look is None else look & pad
        y = self.attend(q, k, v, look)
        y = y.transpose(1, 2).reshape(x.shape)
        return self.join(y)

    def project(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, keys and values of the source."""
        return self.q(x), self.k(source), self.v(source)

    def split(self, x: Tensor, heads: int) -> Tensor:
        """B T C → B H T D."""
        rows, length, _ = x.shape
        return x.view(rows, length, heads, self.size).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, look: Tensor | None) -> Tensor:
        """B H T D; look B or 1, 1, T or 1, S."""
        return self.mix(q @ k.mT / math.sqrt(self.size), v, look)

    def mix(self, scores: Tensor, v: Tensor, look: Tensor | None) -> Tensor:
        """The formula, from the scores on."""
        look = torch.ones_like(scores, dtype=torch.bool) if look is None else look
        weights = scores.masked_fill(~look, torch.finfo(scores.dtype).min).softmax(-1)
        return self.drop(weights) @ v

    def join(self, y: Tensor) -> Tensor:
        """The output projection."""
        return self.out(y)


class Fused(Separate):
    """One projection for all three, and SDPA."""

    def make(self, width: int, small: int) -> None:
        """The projections."""
        self.parts = [width, small, small]
        self.qkv, self.out = nn.Linear(width, sum(self.parts)), nn.Linear(width, width)

    def project(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, keys and values of the source."""
        q, k, v = self.qkv(x).split(self.parts, -1)
        if source is not x:
            _, k, v = self.qkv(source).split(self.parts, -1)
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, look: Tensor | None) -> Tensor:
        """B H T D; look B or 1, 1, T or 1, S."""
        rate = self.drop.p if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, look, rate)


class Einsum(Separate):
    """Bare parameters and einsum."""

    def make(self, width: int, small: int) -> None:
        """The projections."""

        def matrix(size: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(width, size) * width**-0.5)

        self.wq, self.wo = matrix(width), matrix(width)
        self.wk, self.wv = matrix(small), matrix(small)

    def project(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, keys and values of the source."""
        pairs = ((x, self.wq), (source, self.wk), (source, self.wv))
        q, k, v = (torch.einsum("btc,cd->btd", given, w) for given, w in pairs)
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, look: Tensor | None) -> Tensor:
        """B H T D; look B or 1, 1, T or 1, S."""
        return self.mix(torch.einsum("bhtd,bhsd->bhts", q / math.sqrt(self.size), k), v, look)

    def join(self, y: Tensor) -> Tensor:
        """The output projection."""
        return torch.einsum("btc,cd->btd", y, self.wo)


class Mha(nn.Module):
    """torch's own."""

    def __init__(self, width: int, heads: int, causal: bool, dropout: float, *_: Any) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        self.causal = causal

    def forward(
        self, x: Tensor, memory: Tensor | None, keep: Tensor | None, where: Tensor
    ) -> Tensor:
        """x B T C, memory B S C, keep B S (True = may be seen) → B T C."""
        source = x if memory is None else memory
        look = triangle(x, source) if self.causal and memory is None else None
        blocked = None if look is None else ~look
        padding = None if keep is None else ~keep
        out = self.inner(x, source, source, padding, need_weights=False, attn_mask=blocked)
        return out[0]


STYLES: dict[str, Any] = {"separate": Separate, "fused": Fused, "einsum": Einsum, "mha": Mha}


class LayerNorm(nn.Module):
    """LayerNorm by its formula."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Each position by itself: (x − mean)/√(var + ε)."""
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / (variance + 1e-5).sqrt() * self.gain + self.shift


class Sinusoidal(nn.Module):
    """The paper's positions: where B T → B T C."""

    pe: Tensor

    def __init__(self, width: int, length: int = 256) -> None:
        super().__init__()
        angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        pe = torch.zeros(length, width)
        pe[:, 0::2] = angle.sin()
        pe[:, 1::2] = angle.cos()
        self.register_buffer("pe", pe, persistent=False)

    def forward(self, where: Tensor) -> Tensor:
        """PE[where]."""
        return self.pe[where]


class Block(nn.Module):
    """Pre-norm: x + attention(norm(x)), [+ cross-attention,] + feed(norm(x))."""

    def __init__(
        self, width: int, heads: int, style: str, causal: bool, cross: bool, dropout: float,
        kv_heads: int, rotary: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)
        self.attention = STYLES[style](width, heads, causal, dropout, kv_heads, rotary)
        self.cross, self.norm3 = None, None
        if cross:
            self.cross = STYLES[style](width, heads, False, dropout, 0, False)
            self.norm3 = LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.drop = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, keep: Tensor | None, memory: Tensor | None, source_keep: Tensor | None,
        where: Tensor,
    ) -> Tensor:  # fmt: skip
        """B T C → B T C."""
        x = x + self.dropped(self.attention(self.norm1(x), None, keep, where))
        if self.cross is not None and self.norm3 is not None:
            x = x + self.dropped(self.cross(self.norm3(x), memory, source_keep, where))
        return x + self.dropped(self.feed(self.norm2(x)))

    def dropped(self, x: Tensor) -> Tensor:
        """With dropout."""
        return self.drop(x)


class Stack(nn.Module):
    """Embedding, positions and blocks."""

    def __init__(
        self, vocab: int, width: int, heads: int, layers: int, style: str, *, causal: bool,
        cross: bool = False, dropout: float = 0.1, positions: str = "sinusoidal", kv_heads: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        nn.init.normal_(self.embed.weight, std=width**-0.5)
        self.scale = width**0.5
        self.positions: nn.Module | None = None
        if positions != "rotary":
            learned = positions == "learned"
            self.positions = nn.Embedding(256, width) if learned else Sinusoidal(width)

        def block() -> Block:
            rotary = positions == "rotary"
            return Block(width, heads, style, causal, cross, dropout, kv_heads, rotary)

        self.blocks = nn.ModuleList([block() for _ in range(layers)])
        self.norm = LayerNorm(width)

    def forward(
        self,
        ids: Tensor,
        keep: Tensor | None = None,
        memory: Tensor | None = None,
        source_keep: Tensor | None = None,
    ) -> Tensor:
        """ids B T → B T C."""
        real = torch.ones_like(ids) if keep is None else keep.long()
        where = (real.cumsum(-1) - 1).clamp(min=0)
        x = self.embed(ids) * self.scale
        if self.positions is not None:
            x = x + self.positions(where)
        for b in self.blocks:
            x = b(x, keep, memory, source_keep, where)
        return self.norm(x)


class Decoder(nn.Module):
    """A language model: forward(idx, targets) → logits, loss."""

    def __init__(self, vocab: int, width: int, *sizes: Any, **more: Any) -> None:
        super().__init__()
        self.stack = Stack(vocab, width, *sizes, causal=True, **more)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.stack.embed.weight

    def forward(
        self, idx: Tensor, targets: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """idx B T, targets B T (already shifted)."""
        keep = None if attention_mask is None else attention_mask.bool()
        logits = self.head(self.stack(idx, keep))
        if targets is None:
            return logits, None
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)
        return logits, loss


class Encoder(nn.Module):
    """A masked language model: forward(ids, keep) → logits."""

    def __init__(self, vocab: int, width: int, *sizes: Any, **more: Any) -> None:
        super().__init__()
        self.stack = Stack(vocab, width, *sizes, causal=False, **more)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        """ids B T, keep B T boolean."""
        return self.head(self.stack(ids, keep))


class Seq2Seq(nn.Module):
    """The original shape: forward(source, target, source_mask) → logits."""

    def __init__(self, vocab: int, width: int, *sizes: Any, **more: Any) -> None:
        super().__init__()
        self.encoder = Stack(vocab, width, *sizes, causal=False, **more)
        self.decoder = Stack(vocab, width, *sizes, causal=True, cross=True, **more)
        self.head = nn.Linear(width, vocab)

    def forward(self, source: Tensor, target: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """source B S, target B T, source_mask B S boolean."""
        memory = self.encoder(source, source_mask)
        return self.head(self.decoder(target, None, memory, source_mask))


SHAPES: dict[str, Any] = {"decoder": Decoder, "encoder": Encoder, "seq2seq": Seq2Seq}
