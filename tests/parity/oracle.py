"""The oracle: `torch.nn.Transformer` inside a whole translation model, with our weights.

Embedding, positions, head and loss around it are written here a second time, from the paper, so
that they are compared as well.
"""

from __future__ import annotations

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer.config import Attention, Block, EncoderDecoder, Feed, Norm, Sinusoidal, Stack, Tokens
from allformer.core.attention import Attention as MultiHead
from allformer.core.block import Block as Layer
from allformer.core.model import EncoderDecoderModel

DIM, HEADS, WIDTH, VOCAB = 32, 4, 56, 41


class Oracle(nn.Module):
    """One embedding for source, target and output; sines and cosines; nn.Transformer."""

    def __init__(self, norm_at: str, act: str, final_norm: bool, layers: tuple[int, int]) -> None:
        super().__init__()
        settings = {
            "d_model": DIM, "nhead": HEADS, "dim_feedforward": WIDTH, "dropout": 0.0,
            "activation": act, "batch_first": True, "norm_first": norm_at == "pre",
        }  # fmt: skip
        # By default nn.Transformer puts a norm behind each stack, which the paper does not have.
        after = [nn.LayerNorm(DIM) if final_norm else None for _ in range(2)]
        self.embedding = nn.Embedding(VOCAB, DIM)
        self.transformer = nn.Transformer(
            d_model=DIM,
            nhead=HEADS,
            batch_first=True,
            custom_encoder=nn.TransformerEncoder(
                nn.TransformerEncoderLayer(**settings), layers[0], after[0], False
            ),
            custom_decoder=nn.TransformerDecoder(
                nn.TransformerDecoderLayer(**settings), layers[1], after[1]
            ),
        )

    def forward(self, source: Tensor, source_keep: Tensor, target: Tensor, target_keep: Tensor):
        """ids and attention masks → logits; torch's masks say True = hidden, ours True = seen."""
        ahead = torch.ones(target.shape[1], target.shape[1]).triu(1).bool()
        hidden = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=ahead,
            src_key_padding_mask=~source_keep.bool(),
            tgt_key_padding_mask=~target_keep.bool(),
            memory_key_padding_mask=~source_keep.bool(),
        )
        return hidden @ self.embedding.weight.T

    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding(ids) * DIM**0.5 + positions(ids.shape[1])

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        return F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=-100, label_smoothing=smoothing
        )


@cache
def positions(length: int) -> Tensor:
    """Section 3.5, number by number."""
    table = torch.zeros(length, DIM, dtype=torch.float64)
    for pos in range(length):
        for i in range(DIM // 2):
            angle = pos / 10_000 ** (2 * i / DIM)
            table[pos, 2 * i], table[pos, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table


def our_config(norm_at: str, act: str, final_norm: bool, layers: tuple[int, int]) -> EncoderDecoder:
    """The same model as a config."""

    def stack(cross: Attention | None, depth: int) -> Stack:
        block = Block(Attention(HEADS), Feed(WIDTH, act), cross, norm_at=norm_at, dropout=0.0)
        return Stack(
            dim=DIM,
            source=Tokens(VOCAB, scale=True, pad_id=0, bos_id=2, eos_id=3),
            position=Sinusoidal(),
            blocks=(block,) * depth,
            causal=cross is not None,
            final_norm=Norm() if final_norm else None,
            dropout=0.0,
        )

    return EncoderDecoder(stack(None, layers[0]), stack(Attention(HEADS), layers[1]))


def pairs(ours: EncoderDecoderModel, oracle: Oracle) -> list[tuple[str, nn.Parameter, Tensor]]:
    """(name, oracle's parameter, our tensor) for every parameter of the oracle.

    In a gradient comparison our tensor is replaced by the same slice of its gradient.
    """
    return [
        (name, theirs, _ours(name, lambda p: p, ours)) for name, theirs in oracle.named_parameters()
    ]


def gradients(ours: EncoderDecoderModel, oracle: Oracle) -> list[tuple[str, Tensor, Tensor]]:
    """(name, oracle's gradient, ours)."""
    return [
        (name, theirs.grad, _ours(name, lambda p: p.grad, ours))
        for name, theirs in oracle.named_parameters()
    ]


def _ours(name: str, take, ours: EncoderDecoderModel) -> Tensor:
    if name == "embedding.weight":
        return take(ours.encoder.source.embedding.weight)
    _, side, *rest = name.split(".")
    stack = ours.encoder if side == "encoder" else ours.decoder
    if rest[0] == "norm":
        return take(getattr(stack.final_norm, rest[1]))
    layer, part, kind = stack.layers[int(rest[1])], rest[2], rest[-1]
    if part in ("self_attn", "multihead_attn"):
        return attention_part(layer.attention if part == "self_attn" else layer.cross, kind, take)
    return take(getattr(_plain(layer, part), kind))


def attention_part(ours: MultiHead, kind: str, take) -> Tensor:
    """`in_proj_weight`, `in_proj_bias`, `weight` or `bias` (of out_proj) as ours has it."""
    if not kind.startswith("in_proj"):
        return take(getattr(ours.out, kind))
    kind = kind.removeprefix("in_proj_")
    fused = (ours.query, ours.memory) if ours.cross else (ours.qkv,)
    return torch.cat([take(getattr(part, kind)) for part in fused])


def _plain(layer: Layer, part: str) -> nn.Module:
    norms = ["attention_norm", *(["cross_norm"] if layer.has_cross else []), "feed_norm"]
    names = {"linear1": layer.feed.up, "linear2": layer.feed.down}
    return names[part] if part in names else getattr(layer, norms[int(part[-1]) - 1])


@torch.no_grad()
def copy_weights(ours: EncoderDecoderModel, oracle: Oracle) -> None:
    """Oracle → ours."""
    ours.encoder.source.embedding.weight.copy_(oracle.embedding.weight)
    modules = dict(oracle.named_modules())
    for side, stack in (("encoder", ours.encoder), ("decoder", ours.decoder)):
        top = modules[f"transformer.{side}"]
        if stack.final_norm is not None:
            stack.final_norm.load_state_dict(top.norm.state_dict())
        for layer, theirs in zip(stack.layers, top.layers, strict=True):
            copy_attention(layer.attention, theirs.self_attn)
            if layer.has_cross:
                copy_attention(layer.cross, theirs.multihead_attn)
            for part in ("linear1", "linear2", "norm1", "norm2", "norm3"):
                if hasattr(theirs, part):
                    _plain(layer, part).load_state_dict(getattr(theirs, part).state_dict())


@torch.no_grad()
def copy_attention(ours: MultiHead, theirs: nn.MultiheadAttention) -> None:
    """in_proj is q, k, v one below the other: our fused matrix, or `query` and `memory`."""
    ours.out.load_state_dict(theirs.out_proj.state_dict())
    width = ours.mixer.heads * ours.mixer.size
    for kind in ("weight", "bias"):
        fused = getattr(theirs, f"in_proj_{kind}")
        if ours.cross:
            getattr(ours.query, kind).copy_(fused[:width])
            getattr(ours.memory, kind).copy_(fused[width:])
        else:
            getattr(ours.qkv, kind).copy_(fused)


def oracle_trace(oracle: Oracle, *inputs: Tensor) -> dict[str, Tensor]:
    """What nn.Transformer's submodules give, under the names of our taps."""
    seen: dict[str, Tensor] = {}
    handles = []
    norms = {"encoder": ["attention", "feed"], "decoder": ["attention", "cross", "feed"]}

    def hear(module: nn.Module, name: str) -> None:
        def hook(_module: nn.Module, _inputs: object, out: object) -> None:
            seen[name] = out[0].detach() if isinstance(out, tuple) else out.detach()

        handles.append(module.register_forward_hook(hook))

    for side, steps in norms.items():
        top = getattr(oracle.transformer, side)
        for i, layer in enumerate(top.layers):
            hear(layer.self_attn, f"{side}.{i}.attention.output")
            if side == "decoder":
                hear(layer.multihead_attn, f"{side}.{i}.cross.output")
            hear(layer.linear2, f"{side}.{i}.feed.output")
            for number, step in enumerate(steps, 1):
                hear(getattr(layer, f"norm{number}"), f"{side}.{i}.{step}_norm")
        hear(top, f"{side}.output")
    with torch.no_grad():
        seen["head.logits"] = oracle(*inputs)
    for handle in handles:
        handle.remove()
    return seen
