"""GPT-2 (Radford et al., 2019): pre-norm, learned positions, tied output.

Its files hold each matrix transposed, inputs × outputs (its `Conv1D`), and q, k, v in one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from allformer.config import (
    Attention,
    Block,
    DecoderOnly,
    Feed,
    Learned,
    LMHead,
    Norm,
    Stack,
    Tokens,
    repeat,
)
from allformer.families import activation, pieces
from allformer.families.family import Family, expect, head_kind, one
from allformer.families.fields import Fields
from allformer.families.weights import Ignored, Op, Same, WeightMap

ARCHITECTURES = {
    "GPT2LMHeadModel": "words",
    "GPT2Model": "bare",
    "GPT2ForSequenceClassification": "class",
    "GPT2ForTokenClassification": "token",
    "GPT2ForQuestionAnswering": "span",
}


def gpt2(
    dim: int, layers: int, heads: int, *, length: int = 1024, head_dim: int | None = None
) -> DecoderOnly:
    """`gpt2(768, 12, 12)` is the smallest of the four."""
    block = Block(
        Attention(heads, head_dim=head_dim, dropout=0.1),
        Feed(4 * dim, act="gelu_tanh"),
        norm_at="pre",
    )
    stack = Stack(
        dim, Tokens(50_257, bos_id=50_256, eos_id=50_256), Learned(length), repeat(block, layers),
        causal=True, final_norm=Norm(),
    )  # fmt: skip
    return DecoderOnly(stack, LMHead())


PRESETS = {
    "gpt2": lambda: gpt2(768, 12, 12),
    "gpt2-medium": lambda: gpt2(1024, 24, 16),
    "gpt2-large": lambda: gpt2(1280, 36, 20),
    "gpt2-xl": lambda: gpt2(1600, 48, 25),
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> DecoderOnly:
    """config.json → the tree."""
    dim = fields.take("n_embd", 768, "hidden_size")
    heads = fields.take("n_head", 12, "num_attention_heads")
    layers = fields.take("n_layer", 12, "num_hidden_layers")
    # computed in another order for half precision: the same numbers
    fields.take("reorder_and_upcast_attn", False)
    for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout"):
        fields.take(f"summary_{name}", None)  # of GPT2DoubleHeadsModel alone
    fields.take("n_ctx", None)  # an older twin of n_positions
    scaled, by_layer = (
        fields.take("scale_attn_weights", True),
        fields.take("scale_attn_by_inverse_layer_idx", False),
    )
    residual = fields.take("resid_pdrop", 0.1)
    norm = Norm("layer", float(fields.take("layer_norm_epsilon", 1e-5)))
    block = Block(
        Attention(heads, scale=None if scaled else 1.0, dropout=fields.take("attn_pdrop", 0.1)),
        Feed(
            fields.take("n_inner", 4 * dim),
            act=fields.choice("activation_function", activation.READ, "gelu_new"),
        ),
        norm=norm,
        norm_at="pre",
        dropout=residual,
    )
    blocks = repeat(block, layers)
    if by_layer:
        base = (dim // heads) ** -0.5 if scaled else 1.0
        blocks = tuple(
            replace(block, attention=replace(block.attention, scale=base / (i + 1)))
            for i in range(layers)
        )
    vocab = fields.take("vocab_size", 50_257)
    stack = Stack(
        dim,
        Tokens(
            vocab,
            pad_id=fields.token("pad_token_id", vocab),
            bos_id=fields.token("bos_token_id", vocab, 50_256),
            eos_id=fields.token("eos_token_id", vocab, 50_256),
        ),
        Learned(fields.take("n_positions", 1024, "max_position_embeddings")),
        blocks,
        causal=True,
        final_norm=norm,
        dropout=fields.take("embd_pdrop", 0.1),
    )
    kind = ARCHITECTURES[architecture]
    if kind == "words":
        return DecoderOnly(stack, LMHead(fields.take("tie_word_embeddings", True)))
    return DecoderOnly(stack, pieces.decoder_head(fields, kind))


def write(model: DecoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    expect(isinstance(model, DecoderOnly), "is not a decoder")
    stack = model.decoder
    expect(isinstance(stack.position, Learned), "has no learned positions")
    assert isinstance(stack.position, Learned)
    plain = [replace(b, attention=replace(b.attention, scale=None)) for b in stack.blocks]
    block = one(plain, "more than their scale")
    scales = [b.attention.scale for b in stack.blocks]
    base = block.attention.size(stack.dim) ** -0.5
    by_layer = len(scales) > 1 and scales[0] != scales[1]
    return {
        "vocab_size": stack.source.vocab,
        "n_positions": stack.position.length,
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
        "scale_attn_by_inverse_layer_idx": by_layer,
        **pieces.write_head(model.head),
        **pieces.write_tokens(stack.source),
    }


def weights(model: DecoderOnly, architecture: str) -> WeightMap:
    """The map of a GPT-2 file."""
    stack, kind = model.decoder, head_kind(model)
    base = "" if kind == "bare" else "transformer."
    ops: list[Op] = [
        Same("decoder.embedding.weight", f"{base}wte.weight"),
        Same("decoder.position.weight", f"{base}wpe.weight"),
    ]
    for i, block in enumerate(stack.blocks):
        ours, theirs = f"decoder.layers.{i}", f"{base}h.{i}"
        for part, name in (
            ("attention.qkv", "attn.c_attn"),
            ("attention.out", "attn.c_proj"),
            ("feed.up", "mlp.c_fc"),
            ("feed.down", "mlp.c_proj"),
        ):
            ops += pieces.dense(f"{ours}.{part}", f"{theirs}.{name}", transposed=True)
        ops += pieces.norm(f"{ours}.attention_norm", f"{theirs}.ln_1", block.norm)
        ops += pieces.norm(f"{ours}.feed_norm", f"{theirs}.ln_2", block.norm)
    ops += pieces.dense("decoder.final_norm", f"{base}ln_f")
    ops.append(Ignored(r".*\.attn\.(masked_)?bias", "the causal mask, stored by old versions"))
    if isinstance(model.head, LMHead):
        ops.append(pieces.output(model.head, f"{base}wte.weight"))
    return ops + pieces.small_head(kind, "score", bias=False)


FAMILY = Family("gpt2", PRESETS, ARCHITECTURES, read, write, weights, prefix="transformer.")
