"""LLaMA 1, 2, 3 and 3.1 (Touvron et al., 2023): RMSNorm, rotary positions, gated SiLU, no biases.

Both dialects of config.json are read: `rope_theta` + `rope_scaling`, and `rope_parameters`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from allformer.config import (
    Attention,
    Block,
    DecoderOnly,
    Feed,
    Full,
    Mixer,
    Norm,
    Rotary,
    Stack,
    repeat,
)
from allformer.core.relatives.rates import frequencies
from allformer.families import activation, layer_map, rope
from allformer.families.family import Family, architectures, expect, fit, head_kind, named, one
from allformer.families.fields import Fields
from allformer.families.heads import decoder_head, head_weights, write_decoder_head
from allformer.families.kinds import LAYERS, SIZE
from allformer.families.tokens import read_tokens, write_tokens
from allformer.families.weights import Derived, Op, Same, WeightMap

ARCHITECTURES = architectures(
    "Llama", "ForCausalLM", "Model", "ForSequenceClassification", "ForTokenClassification",
    "ForQuestionAnswering",
)  # fmt: skip
FULL = Full()
USUAL = {
    "attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
sizes = partial(
    named,
    "hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size "
    "vocab_size max_position_embeddings",
)
_V2 = {"rms_norm_eps": 1e-5}
_V3 = {**_V2, "rope_theta": 500_000.0, "bos_token_id": 128_000, "eos_token_id": 128_001}
_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
_V31 = {**_V3, "rope_scaling": _ROPE}
_V32 = {**_V3, "rope_scaling": {**_ROPE, "factor": 32.0}, "tie_word_embeddings": True}
PRESETS = {
    "llama-7b": sizes(4096, 32, 32, 32, 11008, 32000, 2048),
    "llama-13b": sizes(5120, 40, 40, 40, 13824, 32000, 2048),
    "llama-30b": sizes(6656, 60, 52, 52, 17920, 32000, 2048),
    "llama-65b": sizes(8192, 80, 64, 64, 22016, 32000, 2048) | _V2,
    "llama-2-7b": sizes(4096, 32, 32, 32, 11008, 32000, 4096) | _V2,
    "llama-2-13b": sizes(5120, 40, 40, 40, 13824, 32000, 4096) | _V2,
    "llama-2-70b": sizes(8192, 80, 64, 8, 28672, 32000, 4096) | _V2,
    "llama-3-8b": sizes(4096, 32, 32, 8, 14336, 128_256, 8192) | _V3,
    "llama-3-70b": sizes(8192, 80, 64, 8, 28672, 128_256, 8192) | _V3,
    "llama-3.1-8b": sizes(4096, 32, 32, 8, 14336, 128_256, 131_072) | _V31,
    "llama-3.1-70b": sizes(8192, 80, 64, 8, 28672, 128_256, 131_072) | _V31,
    "llama-3.2-1b": sizes(2048, 16, 32, 8, 8192, 128_256, 131_072) | _V32,
    "llama-3.2-3b": sizes(3072, 28, 24, 8, 8192, 128_256, 131_072) | _V32,
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> DecoderOnly:
    """config.json → the tree."""
    fields.inert(SIZE, "pretraining_tp")  # slices of the same product, in older versions
    biases = fields.take("attention_bias"), fields.take("mlp_bias")
    groups = fields.take("num_key_value_heads", fields.take("num_attention_heads"))
    return read_like(fields, ARCHITECTURES[architecture], groups, biases)


def read_like(
    fields: Fields,
    kind: str,
    groups: int,
    biases: tuple[bool, bool] = (False, False),
    mixer: Mixer = FULL,
    length: int = 2048,
) -> DecoderOnly:
    """The tree of a family that is LLaMA in its shape; `length` where config.json says none."""
    dim, heads = fields.take("hidden_size"), fields.take("num_attention_heads")
    head_dim = fields.take("head_dim", None, kind=SIZE)
    fields.causal()
    norm = Norm("rms", float(fields.take("rms_norm_eps")))
    attention = Attention(
        heads,
        groups,
        head_dim=None if head_dim == dim / heads else head_dim,
        bias=biases[0],
        dropout=fields.take("attention_dropout"),
        mixer=mixer,
    )
    feed = Feed(
        fields.take("intermediate_size"),
        act=fields.choice("hidden_act", activation.READ),
        gated=True,
        bias=biases[1],
    )
    block = Block(attention, feed, norm=norm, norm_at="pre", dropout=0.0)
    stack = Stack(
        dim,
        read_tokens(fields, pad_fixed=True),
        None,
        repeat(block, fields.take("num_hidden_layers", kind=LAYERS)),
        causal=True,
        final_norm=norm,
        relative=rope.read(fields, length),
        dropout=0.0,
    )
    return DecoderOnly(stack, decoder_head(fields, kind))


def write(model: DecoderOnly) -> dict[str, Any]:
    """The tree → config.json, as transformers 5 writes it."""
    stack = fit(model, DecoderOnly, "is not a decoder").decoder
    block = one(stack.blocks, "shape")
    rotary = fit(stack.relative, Rotary, "has no rotary positions")
    expect(isinstance(block.attention.bias, bool), "has a bias on some projections only")
    return {
        **write_tokens(stack.source),
        "hidden_size": stack.dim,
        "num_hidden_layers": len(stack.blocks),
        "num_attention_heads": block.attention.heads,
        "num_key_value_heads": block.attention.groups,
        "head_dim": block.attention.size(stack.dim),
        "intermediate_size": block.feed.width,
        "hidden_act": activation.WRITE[block.feed.act],
        "attention_bias": block.attention.bias,
        "attention_dropout": block.attention.dropout,
        "mlp_bias": block.feed.bias,
        "rms_norm_eps": block.norm.eps,
        "max_position_embeddings": rotary.length or 2048,
        "rope_parameters": rope.write(rotary),
        **write_decoder_head(model.head),
    }


LAYER: layer_map.Names = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": "self_attn.o_proj",
    "attention_norm": "input_layernorm",
    "feed.gate": "mlp.gate_proj",
    "feed.up": "mlp.up_proj",
    "feed.down": "mlp.down_proj",
    "feed_norm": "post_attention_layernorm",
}


def weights(model: DecoderOnly, architecture: str, answers: str = "transformer.") -> WeightMap:
    """The map of a LLaMA file; `answers`: what stands before the body below a head for answers."""
    base = {"bare": "", "span": answers}.get(head_kind(model), "model.")
    stack, table = model.decoder, f"{base}embed_tokens.weight"
    rotary, size = stack.relative, stack.blocks[0].attention.size(stack.dim)
    assert isinstance(rotary, Rotary)
    ops: list[Op] = [
        Same("decoder.source.embedding.weight", table),
        *layer_map.layers(stack, "decoder", f"{base}layers", LAYER),
        Same("decoder.final_norm.weight", f"{base}norm.weight"),
    ]
    # Stored by old versions, which scaled positions and not these: then they tell nothing.
    for i in range(len(stack.blocks) if rotary.scaling is None else 0):
        stored = f"{base}layers.{i}.self_attn.rotary_emb.inv_freq"
        ops.append(Derived(stored, lambda: frequencies(rotary, size), tolerance=1e-2))
    return ops + head_weights(model.head, table, "score", "score")


FAMILY = Family("llama", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="model.")
