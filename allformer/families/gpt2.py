"""GPT-2 (Radford et al., 2019): pre-norm, learned positions, tied output.

Its files hold each matrix transposed, inputs × outputs (its `Conv1D`), and q, k, v in one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from allformer.config import Attention, Block, DecoderOnly, Feed, Learned, Norm, Stack, repeat
from allformer.families import activation, layer_map
from allformer.families.family import Family, architectures, fit, named, one
from allformer.families.fields import Fields
from allformer.families.heads import decoder_head, head_weights, write_decoder_head
from allformer.families.kinds import FLAG, LAYERS, NUMBER, SIZE, TEXT
from allformer.families.tokens import read_tokens, write_tokens
from allformer.families.weights import Same, WeightMap

ARCHITECTURES = architectures(
    "GPT2", "LMHeadModel", "Model", "ForSequenceClassification", "ForTokenClassification",
    "ForQuestionAnswering",
)  # fmt: skip
USUAL = {
    "vocab_size": 50_257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
    "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5, "scale_attn_weights": True, "bos_token_id": 50_256,
    "eos_token_id": 50_256, "tie_word_embeddings": True,
}  # fmt: skip
_sizes = partial(named, "n_embd n_layer n_head")
PRESETS = {
    "gpt2": _sizes(768, 12, 12),
    "gpt2-medium": _sizes(1024, 24, 16),
    "gpt2-large": _sizes(1280, 36, 20),
    "gpt2-xl": _sizes(1600, 48, 25),
}
SUMMARY = {
    "type": TEXT, "use_proj": FLAG, "activation": TEXT, "proj_to_labels": FLAG,
    "first_dropout": NUMBER,
}  # fmt: skip


def read(fields: Fields, architecture: str, keys: Collection[str]) -> DecoderOnly:
    """config.json → the tree."""
    for name, kind in SUMMARY.items():
        fields.take(f"summary_{name}", None, kind=kind)  # of GPT2DoubleHeadsModel alone
    fields.take("n_ctx", None, kind=SIZE)  # an older twin of n_positions
    stack = read_stack(fields, "layer", "kept")
    return DecoderOnly(stack, decoder_head(fields, ARCHITECTURES[architecture]))


def read_stack(
    fields: Fields, kind: Literal["layer", "rms"], count: Literal["kept", "all"]
) -> Stack:
    """The layers that config.json means, with norms of this kind; `count` numbers the tokens."""
    dim = fields.take("n_embd", older="hidden_size")
    heads = fields.take("n_head", older="num_attention_heads")
    layers = fields.take("n_layer", older="num_hidden_layers", kind=LAYERS)
    fields.causal()
    # computed in another order for half precision: the same numbers
    fields.take("reorder_and_upcast_attn", False)
    scale = None if fields.take("scale_attn_weights") else 1.0
    norm = Norm(kind, float(fields.take("layer_norm_epsilon")))
    block = Block(
        Attention(heads, scale=scale, dropout=fields.take("attn_pdrop")),
        Feed(
            fields.take("n_inner", 4 * dim),
            act=fields.choice("activation_function", activation.READ),
        ),
        norm=norm,
        norm_at="pre",
        dropout=fields.take("resid_pdrop"),
    )
    blocks = repeat(block, layers)
    if fields.take("scale_attn_by_inverse_layer_idx", False):
        base = (dim // heads) ** -0.5 if scale is None else scale
        blocks = tuple(
            replace(block, attention=replace(block.attention, scale=base / (i + 1)))
            for i in range(layers)
        )
    length = fields.take("n_positions", older="max_position_embeddings")
    return Stack(
        dim,
        read_tokens(fields),
        Learned(length, count=count),
        blocks,
        causal=True,
        final_norm=norm,
        dropout=fields.take("embd_pdrop"),
    )


def write(model: DecoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    stack = fit(model, DecoderOnly, "is not a decoder").decoder
    return {**write_stack(stack), **write_decoder_head(model.head)}


def write_stack(stack: Stack) -> dict[str, Any]:
    """The inverse of `read_stack`."""
    position = fit(stack.position, Learned, "has no learned positions")
    plain = [replace(b, attention=replace(b.attention, scale=None)) for b in stack.blocks]
    block = one(plain, "more than their scale")
    scales = [b.attention.scale for b in stack.blocks]
    base = block.attention.size(stack.dim) ** -0.5
    return {
        **write_tokens(stack.source),
        "n_positions": position.length,
        "n_embd": stack.dim,
        "n_layer": len(stack.blocks),
        "n_head": block.attention.heads,
        "n_inner": None if block.feed.width == 4 * stack.dim else block.feed.width,
        "activation_function": activation.WRITE[block.feed.act],
        "resid_pdrop": block.dropout,
        "embd_pdrop": stack.dropout,
        "attn_pdrop": block.attention.dropout,
        "layer_norm_epsilon": block.norm.eps,
        "scale_attn_weights": scales[0] in (None, base),
        "scale_attn_by_inverse_layer_idx": len(scales) > 1 and scales[0] != scales[1],
    }


LAYER: layer_map.Names = {
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "attention_norm": "ln_1",
    "feed.up": "mlp.c_fc",
    "feed.down": "mlp.c_proj",
    "feed_norm": "ln_2",
}


def weights(model: DecoderOnly, architecture: str) -> WeightMap:
    """The map of a GPT-2 file."""
    base = "" if model.head is None else "transformer."
    return [
        Same("decoder.source.embedding.weight", f"{base}wte.weight"),
        Same("decoder.source.position.weight", f"{base}wpe.weight"),
        *layer_map.layers(model.decoder, "decoder", f"{base}h", LAYER, transposed=True),
        *layer_map.dense("decoder.final_norm", f"{base}ln_f"),
        *head_weights(model.head, f"{base}wte.weight", "score"),
    ]


FAMILY = Family("gpt2", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="transformer.")
