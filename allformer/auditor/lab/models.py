# mypy: disable-error-code="no-untyped-call,no-any-return"
"""The lab's models: a decoder, an encoder and an encoder-decoder in four styles of code.

build("decoder", bug="no_scale", style="fused")
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer.auditor.lab.parts import Attention, LayerNorm, Sinusoidal

PAD, EOS = 0, 3


class Block(nn.Module):
    """Pre-norm: x + attention(norm(x)), [+ cross-attention,] + feed(norm(x))."""

    def __init__(
        self,
        width: int,
        heads: int,
        style: str,
        bug: str,
        causal: bool,
        cross: bool,
        dropout: float,
        **more: object,
    ) -> None:
        super().__init__()
        self.bug = bug
        norm_bug = bug if bug.startswith("norm_") else ""
        self.norm1, self.norm2 = LayerNorm(width, norm_bug), LayerNorm(width, norm_bug)
        self.attention = Attention(width, heads, style, bug, causal, dropout, **more)  # type: ignore[arg-type]
        self.cross = Attention(width, heads, style, bug, False, dropout) if cross else None
        self.norm3 = LayerNorm(width, norm_bug) if cross else None
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.drop = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        keep: Tensor | None = None,
        memory: Tensor | None = None,
        source_keep: Tensor | None = None,
    ) -> Tensor:
        """B T C → B T C."""
        y = self.norm1(x)
        if self.bug == "residual_norm":
            x = y  # wrong: the stream itself is normalised
        out = self._drop(self.attention(y, keep=keep))
        x = out if self.bug == "no_residual" else x + out
        if self.cross is not None and self.norm3 is not None:
            x = x + self._drop(self.cross(self.norm3(x), memory, source_keep))
        return x + self._drop(self.feed(self.norm2(x)))

    def _drop(self, x: Tensor) -> Tensor:
        if self.bug == "dropout_eval":
            return F.dropout(x, self.drop.p)  # wrong: training=True is the default
        return x if self.bug == "dropout_train" else self.drop(x)


class Stack(nn.Module):
    """Embedding, positions and blocks."""

    def __init__(
        self,
        vocab: int,
        width: int,
        heads: int,
        layers: int,
        style: str,
        bug: str,
        causal: bool,
        cross: bool = False,
        dropout: float = 0.1,
        positions: str = "sinusoidal",
        **more: object,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        nn.init.normal_(self.embed.weight, std=1.0 if bug == "loud_start" else width**-0.5)
        self.scale = 1.0 if bug == "loud_start" else width**0.5
        self.positions: nn.Module | None = None
        self.kind = positions
        if positions == "learned" and bug != "no_positions":
            self.positions = nn.Embedding(256, width)
        elif positions == "sinusoidal" and bug != "no_positions":
            self.positions = Sinusoidal(width, bug)
        rotary = positions == "rotary" and bug != "no_positions"

        def block() -> Block:
            return Block(width, heads, style, bug, causal, cross, dropout, rotary=rotary, **more)

        if bug == "reused":
            self.blocks = nn.ModuleList([block()] * layers)
        elif bug == "identical":
            self.blocks = nn.ModuleList(
                [copy.deepcopy(b) for b in [block()] for _ in range(layers)]
            )
        else:
            self.blocks = nn.ModuleList([block() for _ in range(layers)])
        self.norm = LayerNorm(width)
        self.bug = bug

    def forward(
        self,
        ids: Tensor,
        keep: Tensor | None = None,
        memory: Tensor | None = None,
        source_keep: Tensor | None = None,
    ) -> Tensor:
        """ids B T → B T C."""
        x = self.embed(ids) * self.scale
        where = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        if keep is not None and self.bug != "left_padding":
            where = (keep.long().cumsum(-1) - 1).clamp(min=0)
        if self.kind == "learned" and self.positions is not None:
            x = x + self.positions(where)
        elif self.positions is not None:
            x = self.positions(x, where)
        for b in self.blocks:
            x = b(x, keep, memory, source_keep)
        return self.norm(x)


class Decoder(nn.Module):
    """A language model: forward(idx, targets) → logits, loss."""

    def __init__(
        self, vocab: int, width: int, heads: int, layers: int, style: str, bug: str, **more: object
    ) -> None:
        super().__init__()
        self.stack = Stack(vocab, width, heads, layers, style, bug, True, **more)  # type: ignore[arg-type]
        self.head = nn.Linear(width, vocab, bias=False)
        self.bug = bug
        if bug == "unused":
            self.extra = nn.Linear(width, width)
        if bug == "copied_tie":
            self.head.weight.data = self.stack.embed.weight.data
        else:
            self.head.weight = self.stack.embed.weight

    def forward(
        self, idx: Tensor, targets: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """idx B T, targets B T (already shifted)."""
        keep = None if attention_mask is None else attention_mask.bool()
        logits = self.head(self.stack(idx, keep))
        if self.bug == "softmax_loss":
            logits = logits.softmax(-1)
        if targets is None:
            return logits, None
        left, right = logits, targets
        if self.bug == "shifted_twice":
            left, right = logits[:, :-1], targets[:, 1:]
        ignore = {"pad_loss": -100}.get(self.bug, PAD)
        if self.bug == "eos_loss":
            right = right.masked_fill(right == EOS, PAD)
        return logits, F.cross_entropy(left.flatten(0, 1), right.flatten(), ignore_index=ignore)


class Encoder(nn.Module):
    """A masked language model: forward(ids, keep) → logits."""

    def __init__(
        self, vocab: int, width: int, heads: int, layers: int, style: str, bug: str, **more: object
    ) -> None:
        super().__init__()
        self.stack = Stack(vocab, width, heads, layers, style, bug, False, **more)  # type: ignore[arg-type]
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        """ids B T, keep B T boolean."""
        return self.head(self.stack(ids, keep))


class Seq2Seq(nn.Module):
    """The original shape: forward(source, target, source_keep) → logits."""

    def __init__(
        self, vocab: int, width: int, heads: int, layers: int, style: str, bug: str, **more: object
    ) -> None:
        super().__init__()
        inner = "" if bug in ("cross_mask", "cross_unread") else bug
        self.encoder = Stack(vocab, width, heads, layers, style, inner, False, **more)  # type: ignore[arg-type]
        self.decoder = Stack(vocab, width, heads, layers, style, bug, True, cross=True, **more)  # type: ignore[arg-type]
        self.head = nn.Linear(width, vocab)
        self.bug = bug

    def forward(self, source: Tensor, target: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """source B S, target B T, source_mask B S boolean."""
        keep = source_mask
        memory = self.encoder(source, keep)
        if self.bug == "cross_unread":
            memory = self.encoder.embed(target[:, :1]).expand(memory.shape)
        return self.head(self.decoder(target, None, memory, keep))


SHAPES = {"decoder": Decoder, "encoder": Encoder, "seq2seq": Seq2Seq}


def build(
    shape: str,
    bug: str = "",
    style: str = "separate",
    *,
    vocab: int = 61,
    width: int = 48,
    heads: int = 4,
    layers: int = 2,
    seed: int = 0,
    **more: object,
) -> nn.Module:
    """A model of the lab; without `bug` it is sound."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SHAPES[shape](vocab, width, heads, layers, style, bug, **more)
