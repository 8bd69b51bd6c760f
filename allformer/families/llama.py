"""LLaMA 1, 2, 3 and 3.1 (Touvron et al., 2023): RMSNorm, rotary positions, gated SiLU, no biases.

Both dialects of config.json are read: `rope_theta` + `rope_scaling`, and `rope_parameters`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from allformer.config import (
    Attention,
    Block,
    DecoderOnly,
    Feed,
    Llama3Scaling,
    LMHead,
    Norm,
    Rotary,
    Stack,
    Tokens,
    repeat,
)
from allformer.core.rotary import frequencies
from allformer.families import activation, pieces, rope
from allformer.families.family import Family, expect, head_kind, one
from allformer.families.fields import Fields
from allformer.families.weights import Derived, Op, Same, WeightMap

ARCHITECTURES = {
    "LlamaForCausalLM": "words",
    "LlamaModel": "bare",
    "LlamaForSequenceClassification": "class",
    "LlamaForTokenClassification": "token",
    "LlamaForQuestionAnswering": "span",
}


def llama(
    dim: int, layers: int, heads: int, kv_heads: int, feed: int, vocab: int, length: int,
    *, theta: float = 10_000.0, scaling: Llama3Scaling | None = None, eps: float = 1e-5,
    tied: bool = False, bos: int = 1, eos: int = 2,
) -> DecoderOnly:  # fmt: skip
    """`llama(4096, 32, 32, 32, 11008, 32000, 4096)` is LLaMA-2 7B."""
    block = Block(
        Attention(heads, kv_heads, bias=False),
        Feed(feed, act="silu", gated=True, bias=False),
        norm=Norm("rms", eps), norm_at="pre", dropout=0.0,
    )  # fmt: skip
    return DecoderOnly(
        Stack(
            dim, Tokens(vocab, bos_id=bos, eos_id=eos, pad_fixed=True), None, repeat(block, layers),
            causal=True, final_norm=Norm("rms", eps), relative=Rotary(theta, scaling, length),
            dropout=0.0,
        ),
        LMHead(tied),
    )  # fmt: skip


_V3: Any = {"theta": 500_000.0, "bos": 128_000, "eos": 128_001}
_V31: Any = {**_V3, "scaling": Llama3Scaling(8.0)}
_V32: Any = {**_V3, "scaling": Llama3Scaling(32.0), "tied": True}
PRESETS = {
    "llama-7b": lambda: llama(4096, 32, 32, 32, 11008, 32000, 2048, eps=1e-6),
    "llama-13b": lambda: llama(5120, 40, 40, 40, 13824, 32000, 2048, eps=1e-6),
    "llama-30b": lambda: llama(6656, 60, 52, 52, 17920, 32000, 2048, eps=1e-6),
    "llama-65b": lambda: llama(8192, 80, 64, 64, 22016, 32000, 2048, eps=1e-5),
    "llama-2-7b": lambda: llama(4096, 32, 32, 32, 11008, 32000, 4096),
    "llama-2-13b": lambda: llama(5120, 40, 40, 40, 13824, 32000, 4096),
    "llama-2-70b": lambda: llama(8192, 80, 64, 8, 28672, 32000, 4096),
    "llama-3-8b": lambda: llama(4096, 32, 32, 8, 14336, 128_256, 8192, **_V3),
    "llama-3-70b": lambda: llama(8192, 80, 64, 8, 28672, 128_256, 8192, **_V3),
    "llama-3.1-8b": lambda: llama(4096, 32, 32, 8, 14336, 128_256, 131_072, **_V31),
    "llama-3.1-70b": lambda: llama(8192, 80, 64, 8, 28672, 128_256, 131_072, **_V31),
    "llama-3.2-1b": lambda: llama(2048, 16, 32, 8, 8192, 128_256, 131_072, **_V32),
    "llama-3.2-3b": lambda: llama(3072, 28, 24, 8, 8192, 128_256, 131_072, **_V32),
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> DecoderOnly:
    """config.json → the tree."""
    dim, heads = fields.take("hidden_size"), fields.take("num_attention_heads")
    head_dim = fields.take("head_dim", None)
    fields.must("pretraining_tp", 1)  # slices of the same product: another order of rounding
    norm = Norm("rms", float(fields.take("rms_norm_eps", 1e-6)))
    block = Block(
        Attention(
            heads,
            fields.take("num_key_value_heads", heads),
            head_dim=None if head_dim == dim / heads else head_dim,
            bias=fields.take("attention_bias", False),
            dropout=fields.take("attention_dropout", 0.0),
        ),
        Feed(
            fields.take("intermediate_size"),
            act=fields.choice("hidden_act", activation.READ, "silu"),
            gated=True,
            bias=fields.take("mlp_bias", False),
        ),
        norm=norm,
        norm_at="pre",
        dropout=0.0,
    )
    vocab = fields.take("vocab_size")
    stack = Stack(
        dim,
        Tokens(
            vocab,
            pad_id=fields.token("pad_token_id", vocab),
            bos_id=fields.token("bos_token_id", vocab, 1),
            eos_id=fields.token("eos_token_id", vocab, 2),
            pad_fixed=True,
        ),
        None,
        repeat(block, fields.take("num_hidden_layers")),
        causal=True,
        final_norm=norm,
        relative=rope.read(fields),
        dropout=0.0,
    )
    kind = ARCHITECTURES[architecture]
    if kind == "words":
        return DecoderOnly(stack, LMHead(fields.take("tie_word_embeddings", False)))
    return DecoderOnly(stack, pieces.decoder_head(fields, kind))


def write(model: DecoderOnly) -> dict[str, Any]:
    """The tree → config.json, as transformers 5 writes it."""
    expect(isinstance(model, DecoderOnly), "is not a decoder")
    stack, block = model.decoder, one(model.decoder.blocks, "shape")
    rotary, attention, feed = stack.relative, block.attention, block.feed
    expect(isinstance(rotary, Rotary), "has no rotary positions")
    assert isinstance(rotary, Rotary)
    return {
        "vocab_size": stack.source.vocab,
        "hidden_size": stack.dim,
        "num_hidden_layers": len(stack.blocks),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.groups,
        "head_dim": attention.size(stack.dim),
        "intermediate_size": feed.width,
        "hidden_act": activation.WRITE[feed.act],
        "attention_bias": attention.bias,
        "attention_dropout": attention.dropout,
        "mlp_bias": feed.bias,
        "rms_norm_eps": block.norm.eps,
        "max_position_embeddings": rotary.length or 2048,
        "rope_parameters": rope.write(rotary),
        **pieces.write_head(model.head),
        **pieces.write_tokens(stack.source),
    }


def weights(model: DecoderOnly, architecture: str) -> WeightMap:
    """The map of a LLaMA file."""
    stack, kind = model.decoder, head_kind(model)
    base = {"bare": "", "span": "transformer."}.get(kind, "model.")
    ops: list[Op] = [Same("decoder.embedding.weight", f"{base}embed_tokens.weight")]
    rotary, size = stack.relative, stack.blocks[0].attention.size(stack.dim)
    assert isinstance(rotary, Rotary)
    for i, block in enumerate(stack.blocks):
        a, ours, theirs = block.attention, f"decoder.layers.{i}", f"{base}layers.{i}"
        parts = tuple(f"{theirs}.self_attn.{x}_proj" for x in "qkv")
        ops += pieces.fused(f"{ours}.attention.qkv", parts, pieces.head_sizes(a, stack.dim), a.bias)
        ops += pieces.dense(f"{ours}.attention.out", f"{theirs}.self_attn.o_proj", a.bias)
        for part in ("gate", "up", "down"):
            name = f"{theirs}.mlp.{part}_proj"
            ops += pieces.dense(f"{ours}.feed.{part}", name, block.feed.bias)
        ops += pieces.norm(f"{ours}.attention_norm", f"{theirs}.input_layernorm", block.norm)
        ops += pieces.norm(f"{ours}.feed_norm", f"{theirs}.post_attention_layernorm", block.norm)
        stored = f"{theirs}.self_attn.rotary_emb.inv_freq"  # by old versions
        ops.append(Derived(stored, lambda: frequencies(rotary, size), tolerance=1e-2))
    ops.append(Same("decoder.final_norm.weight", f"{base}norm.weight"))
    if isinstance(model.head, LMHead):
        ops.append(pieces.output(model.head, f"{base}embed_tokens.weight"))
    return ops + pieces.small_head(kind, "score", "score", bias=False)


FAMILY = Family("llama", PRESETS, ARCHITECTURES, read, write, weights, prefix="model.")
