"""T5 (Raffel et al., 2020) and T5 v1.1: RMSNorm, no biases, unscaled scores, bucketed distances.

Whether the output has its own table is told by the file. Whether its input is scaled by d^-½ is
told by `scale_decoder_outputs` (transformers 5) or by `tie_word_embeddings` (before).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from allformer.config import (
    BucketBias,
    ClassHead,
    EncoderDecoder,
    EncoderOnly,
    Feed,
    LMHead,
    Norm,
    SpanHead,
    Stack,
    Tokens,
)
from allformer.families import activation, pieces
from allformer.families.family import Family, expect, head_kind, one
from allformer.families.fields import Fields
from allformer.families.t5_map import weights
from allformer.families.t5_sizes import PRESETS, assemble

Model = EncoderDecoder | EncoderOnly
HEADS = {
    "ForConditionalGeneration": "words",
    "Model": "bare",
    "EncoderModel": "encoder",
    "ForSequenceClassification": "class",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "span",
    "WithLMHeadModel": "words",  # the first published files
}
ACTS = activation.READ | {f"gated-{name}": act for name, act in activation.READ.items()}
ACTS["gated-gelu"] = "gelu_tanh"  # as v1.1 was trained; "gelu" alone is the exact one


@dataclass(frozen=True)
class Style:
    """A family's name, and its defaults for fields that are absent."""

    name: str = "T5"
    layers: int = 6
    heads: int = 8
    feed: int = 2048
    vocab: int = 32_128
    proj: str = "relu"
    start: int | None = None
    scales: bool = True  # whether it can scale the output's input


def read(style: Style, fields: Fields, architecture: str, keys: Collection[str]) -> Model:
    """config.json → the tree."""
    kind = HEADS[architecture.removeprefix(style.name)]
    alone = kind in ("encoder", "token")
    layers = fields.take("num_layers", style.layers, "num_hidden_layers")
    vocab = fields.take("vocab_size", style.vocab)
    fields.inert("n_positions")  # nothing here has a length
    if alone:
        fields.take("is_encoder_decoder", None)
        fields.inert("num_decoder_layers")
    else:
        fields.must("is_encoder_decoder", True)
    model = assemble(
        fields.take("d_model", 512, "hidden_size"),
        (layers, layers if alone else fields.take("num_decoder_layers", layers)),
        fields.take("num_heads", style.heads, "num_attention_heads"),
        _read_feed(style, fields),
        Tokens(
            vocab,
            pad_id=fields.token("pad_token_id", vocab, 0),
            bos_id=fields.token("bos_token_id", vocab),
            eos_id=fields.token("eos_token_id", vocab, 1),
        ),
        head_dim=fields.take("d_kv", 64, "head_dim"),
        norm=Norm("rms", float(fields.take("layer_norm_epsilon", 1e-6))),
        relative=BucketBias(
            fields.take("relative_attention_num_buckets", 32),
            fields.take("relative_attention_max_distance", 128),
        ),
        dropout=fields.take("dropout_rate", 0.1),
    )
    head = _read_head(style, fields, kind, keys, model.decoder.dim)
    if alone:
        return EncoderOnly(model.encoder, head)
    assert not isinstance(head, LMHead) or kind == "words"
    start = fields.token("decoder_start_token_id", vocab, style.start)
    return replace(model, head=head, start_id=start)


def _read_feed(style: Style, fields: Fields) -> Feed:
    """`feed_forward_proj` says both; where `dense_act_fn` and `is_gated_act` stand beside it, as
    later versions write them, they are what transformers uses."""
    act = fields.choice("feed_forward_proj", ACTS, style.proj)
    gated = fields.take("feed_forward_proj", style.proj).startswith("gated-")
    act = fields.choice("dense_act_fn", activation.READ, activation.WRITE[act])
    return Feed(fields.take("d_ff", style.feed), act, gated=fields.take("is_gated_act", gated))


def _read_head(
    style: Style, fields: Fields, kind: str, keys: Collection[str], dim: int
) -> LMHead | ClassHead | SpanHead | None:
    if kind == "words":
        flag = fields.take("tie_word_embeddings", True)
        scaled = fields.take("scale_decoder_outputs", flag) and style.scales
        own = pieces.has(keys, "lm_head.weight") and any(
            pieces.has(keys, name) for name in pieces.TABLES[:3]
        )
        return LMHead(not own if keys else flag, scale=dim**-0.5 if scaled else None)
    fields.inert("scale_decoder_outputs")
    if kind in ("class", "token"):
        dropout = fields.take("classifier_dropout", 0.0)
        if kind == "token":
            return pieces.class_head(fields, "token", dropout=dropout)
        return pieces.class_head(fields, "eos", dense="tanh", dropout=dropout)
    return SpanHead() if kind == "span" else None


def write(style: Style, model: Model) -> dict[str, Any]:
    """The tree → config.json."""
    expect(isinstance(model, EncoderDecoder | EncoderOnly), "is not an encoder-decoder")
    stack, head = model.encoder, model.head
    block, relative = one(stack.blocks, "shape"), stack.relative
    expect(isinstance(relative, BucketBias), "has no bucketed distances")
    assert isinstance(relative, BucketBias)
    act, gated = activation.WRITE[block.feed.act], block.feed.gated
    proj = f"gated-{act}" if gated else act
    raw: dict[str, Any] = {
        "is_encoder_decoder": isinstance(model, EncoderDecoder),
        "vocab_size": stack.source.vocab,
        "d_model": stack.dim,
        "d_kv": block.attention.size(stack.dim),
        "d_ff": block.feed.width,
        "num_layers": len(stack.blocks),
        "num_heads": block.attention.heads,
        "relative_attention_num_buckets": relative.buckets,
        "relative_attention_max_distance": relative.max_distance,
        "dropout_rate": block.dropout,
        "layer_norm_epsilon": block.norm.eps,
        "feed_forward_proj": "gated-gelu" if proj == "gated-gelu_new" else proj,
        "dense_act_fn": act,
        "is_gated_act": gated,
        **pieces.write_tokens(stack.source),
    }
    if isinstance(head, ClassHead):
        raw["classifier_dropout"] = head.dropout
    if isinstance(model, EncoderOnly):
        expect(kind_of(model) in ("encoder", "token"), "has a head on its encoder alone")
        return raw
    raw["num_decoder_layers"] = len(model.decoder.blocks)
    raw["decoder_start_token_id"] = model.start
    if isinstance(head, LMHead):
        scaled = head.scale is not None
        expect(style.scales or not scaled, f"scales its output, and {style.name} never does")
        raw["tie_word_embeddings"] = head.tied  # transformers 4 takes it for both
        if style.scales:
            raw["scale_decoder_outputs"] = scaled
    return raw


def kind_of(model: Model) -> str:
    """The kind of head; "encoder" for the bare encoder."""
    alone = isinstance(model, EncoderOnly) and model.head is None
    return "encoder" if alone else head_kind(model)


def same(model: Model) -> Model:
    """The tree without what no file can say: the first token is written out, padding is trained."""

    def stack(x: Stack) -> Stack:
        return replace(x, source=replace(x.source, pad_fixed=False))

    if isinstance(model, EncoderOnly):
        return replace(model, encoder=stack(model.encoder))
    encoder, decoder = stack(model.encoder), stack(model.decoder)
    return replace(model, encoder=encoder, decoder=decoder, start_id=model.start)


def family(style: Style, presets: Mapping[str, Callable[[], EncoderDecoder]]) -> Family:
    """T5 or a family of its shape."""
    return Family(
        style.name.lower(), presets, {style.name + name: kind for name, kind in HEADS.items()},
        partial(read, style), partial(write, style), weights, prefix="transformer.", same=same,
        kind=kind_of, tables=pieces.TABLES,
    )  # fmt: skip


FAMILY = family(Style(), PRESETS)
