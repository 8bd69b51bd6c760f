"""Reformer (Kitaev et al., 2020): LSH and local attention, axial positions, reversible layers.

`attn_layers` names the kind of each layer. The stack gives both streams, so heads read 2·dim.
Where the encoder classes are given `is_decoder`, they look back alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from allformer.config import (
    LSH,
    Attention,
    Axial,
    Block,
    ClassHead,
    DecoderOnly,
    EncoderOnly,
    Feed,
    Learned,
    LMHead,
    Local,
    Model,
    Norm,
    Position,
    Reversible,
    Stack,
)
from allformer.config.lsh import automatic
from allformer.errors import CheckpointError
from allformer.families import activation, reformer_map
from allformer.families.family import Family, expect, fit, head_kind, one
from allformer.families.fields import Fields
from allformer.families.heads import small_head
from allformer.families.kinds import LIST, NUMBER, SIZE, TEXTS, WHOLE, Kind
from allformer.families.tokens import read_tokens, write_tokens

ARCHITECTURES = {
    "ReformerModelWithLMHead": "words", "ReformerModel": "bare", "ReformerForMaskedLM": "masked",
    "ReformerForSequenceClassification": "class", "ReformerForQuestionAnswering": "span",
}  # fmt: skip
USUAL = {
    "attention_head_size": 64, "attn_layers": ["local", "lsh"] * 3, "axial_pos_embds": True,
    "axial_pos_shape": [64, 64], "axial_pos_embds_dim": [64, 192], "feed_forward_size": 512,
    "hidden_act": "relu", "hidden_dropout_prob": 0.05, "hidden_size": 256, "layer_norm_eps": 1e-12,
    "local_attention_probs_dropout_prob": 0.05, "local_attn_chunk_length": 64,
    "lsh_attention_probs_dropout_prob": 0.0, "lsh_attn_chunk_length": 64,
    "max_position_embeddings": 4096, "num_attention_heads": 12, "num_hashes": 1, "vocab_size": 320,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "reformer-enwik8": {
        "is_decoder": True, "vocab_size": 258, "hidden_size": 1024, "attention_head_size": 128,
        "num_attention_heads": 8, "feed_forward_size": 4096, "num_hashes": 4, "num_buckets": 512,
        "lsh_attn_chunk_length": 256, "local_attn_chunk_length": 128, "hidden_dropout_prob": 0.2,
        "lsh_attention_probs_dropout_prob": 0.1, "local_attention_probs_dropout_prob": 0.2,
        "max_position_embeddings": 65_536, "axial_pos_shape": [128, 512],
        "axial_pos_embds_dim": [256, 768], "attn_layers": ["local", "local", "lsh", "local"] * 3,
    },
    "reformer-crime-and-punishment": {
        "is_decoder": True, "num_attention_heads": 2, "num_buckets": [64, 128],
        "max_position_embeddings": 524_288, "axial_pos_shape": [512, 1024],
    },
}  # fmt: skip
_COUNT = Kind("a whole number of at least 0", lambda x: WHOLE.holds(x) and x >= 0)
_BUCKETS = Kind("a number or a list of them", lambda x: SIZE.holds(x) or LIST.holds(x))
_OF_LSH = {
    "lsh_attn_chunk_length": SIZE, "lsh_num_chunks_before": _COUNT, "lsh_num_chunks_after": _COUNT,
    "lsh_attention_probs_dropout_prob": NUMBER, "num_hashes": SIZE, "num_buckets": _BUCKETS,
    "hash_seed": WHOLE,
}  # fmt: skip
_OF_LOCAL = {
    "local_attn_chunk_length": SIZE, "local_num_chunks_before": _COUNT,
    "local_num_chunks_after": _COUNT, "local_attention_probs_dropout_prob": NUMBER,
}  # fmt: skip
_OF_AXES = {"axial_pos_shape": LIST, "axial_pos_embds_dim": LIST}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> Model:
    """config.json → the tree."""
    fields.must("sinusoidal_pos_embds", False)
    fields.inert(NUMBER, "axial_norm_std", "attention_probs_dropout_prob")
    fields.inert(WHOLE, "num_hidden_layers", "chunk_size_lm_head", "intermediate_size")
    fields.inert(WHOLE, "num_chunks_before", "num_chunks_after")  # of older files
    causal, kind = fields.flag("is_decoder", False), ARCHITECTURES[architecture]
    if kind == "words" and not causal and not fields.raw.get("architectures"):
        kind = "bare"  # nobody has said that it writes
    if (kind == "words" and not causal) or (kind == "masked" and causal):
        raise CheckpointError(
            f"config.json has is_decoder={causal}, but a {architecture} looks "
            f"{'at both sides' if causal else 'back alone'}; set it to {not causal}"
        )
    stack = _read_stack(fields, causal)
    head: Any
    if kind in ("words", "masked"):
        # transformers 4 adds lm_head.bias, which its files hold under a second name; 5 does not
        head = LMHead(tied=False, bias="lm_head.decoder.bias" in keys)
    else:
        head = small_head(fields, kind, "first", dense="tanh", usual=stack.final_dropout)
    return DecoderOnly(stack, head) if causal else EncoderOnly(stack, head)


def _read_stack(fields: Fields, causal: bool) -> Stack:
    dim, dropout = fields.take("hidden_size"), fields.take("hidden_dropout_prob")
    norm, position = Norm("layer", float(fields.take("layer_norm_eps"))), _position(fields, dropout)
    feed = Feed(
        fields.take("feed_forward_size"),
        fields.choice("hidden_act", activation.READ),
        dropout=dropout,
        chunk=fields.take("chunk_size_feed_forward", 0, kind=_COUNT),
    )
    kinds = fields.take("attn_layers", kind=TEXTS)
    attentions = _attentions(fields, kinds, dim)
    axial = isinstance(position, Axial)
    return Stack(
        dim,
        read_tokens(fields, dropout=dropout if axial else 0.0),
        position,
        tuple(
            Block(attentions[kind], feed, norm=norm, norm_at="pre", dropout=dropout)
            for kind in kinds
        ),
        causal=causal,
        final_norm=norm,
        dropout=0.0 if axial else dropout,
        final_dropout=dropout,
        flow=Reversible(),
    )


def _position(fields: Fields, dropout: float) -> Position:
    longest = fields.take("max_position_embeddings")
    if not fields.flag("axial_pos_embds", True):
        for name, kind in _OF_AXES.items():
            fields.inert(kind, name)
        return Learned(longest, count="all")
    shape, dims = (tuple(fields.take(name, kind=kind)) for name, kind in _OF_AXES.items())
    cells = math.prod(n for n in shape if isinstance(n, int))
    return Axial(shape, dims, None if longest == cells else longest, "all", dropout)


def _attentions(fields: Fields, kinds: list[str], dim: int) -> dict[str, Attention]:
    """The attention of each kind of layer that there is."""
    heads, size = fields.take("num_attention_heads"), fields.take("attention_head_size")
    found = {}
    for kind, own in (("lsh", _OF_LSH), ("local", _OF_LOCAL)):
        if kind not in kinds:  # its fields change nothing, and stay as they are
            for name, of in own.items():
                fields.inert(of, name)
            continue
        found[kind] = Attention(
            heads,
            head_dim=None if size * heads == dim else size,
            bias=False,
            mixer=_lsh(fields) if kind == "lsh" else _local(fields),
            dropout=fields.take(f"{kind}_attention_probs_dropout_prob"),
        )
    if odd := set(kinds) - set(found):
        raise CheckpointError(
            f"config.json has attn_layers with {min(odd)!r}, which is no kind of layer; "
            f"there are 'lsh' and 'local'"
        )
    return found


def _lsh(fields: Fields) -> LSH:
    chunk, buckets = (
        fields.take("lsh_attn_chunk_length"),
        fields.take("num_buckets", None, kind=_BUCKETS),
    )
    limit = automatic(fields.take("max_position_embeddings"), chunk)
    return LSH(
        chunk,
        fields.take("num_hashes"),
        None if buckets is None else tuple(buckets) if isinstance(buckets, list) else (buckets,),
        fields.take("lsh_num_chunks_before", 1, kind=_COUNT),
        fields.take("lsh_num_chunks_after", 0, kind=_COUNT),
        None if buckets is not None or limit == 2 * chunk else limit,
        fields.take("hash_seed", None, kind=WHOLE),
    )


def _local(fields: Fields) -> Local:
    return Local(
        fields.take("local_attn_chunk_length"),
        fields.take("local_num_chunks_before", 1, kind=_COUNT),
        fields.take("local_num_chunks_after", 0, kind=_COUNT),
    )


def write(model: Model) -> dict[str, Any]:
    """The tree → config.json."""
    stack = model.writer
    expect(isinstance(stack.flow, Reversible), "its layers are not reversible")
    feed = one([block.feed for block in stack.blocks], "their feed-forward")
    block = stack.blocks[0]
    out = {
        **write_tokens(stack.source),
        "is_decoder": stack.causal,
        "hidden_size": stack.dim,
        "num_hidden_layers": len(stack.blocks),
        "num_attention_heads": one([b.attention.heads for b in stack.blocks], "heads"),
        "attention_head_size": block.attention.size(stack.dim),
        "feed_forward_size": feed.width,
        "chunk_size_feed_forward": feed.chunk,
        "hidden_act": activation.WRITE[feed.act],
        "hidden_dropout_prob": block.dropout,
        "layer_norm_eps": block.norm.eps,
        **_write_position(stack.position),
        **_write_mixers(stack),
    }
    head = model.head
    if isinstance(head, ClassHead) and head.dropout != block.dropout:
        out["classifier_dropout"] = head.dropout
    return out


def _write_position(position: Position | None) -> dict[str, Any]:
    if isinstance(position, Axial):
        axes = {"axial_pos_shape": list(position.shape), "axial_pos_embds_dim": list(position.dims)}
        longest = position.length or math.prod(position.shape)
        return {"axial_pos_embds": True, **axes, "max_position_embeddings": longest}
    learned = fit(position, Learned, "has neither axial nor learned positions")
    return {"axial_pos_embds": False, "max_position_embeddings": learned.length}


def _write_mixers(stack: Stack) -> dict[str, Any]:
    mine: dict[type, list[Attention]] = {LSH: [], Local: []}
    for block in stack.blocks:
        expect(type(block.attention.mixer) in mine, "has a mixer that is neither LSH nor Local")
        mine[type(block.attention.mixer)].append(block.attention)
    kinds = ["lsh" if isinstance(b.attention.mixer, LSH) else "local" for b in stack.blocks]
    out: dict[str, Any] = {"attn_layers": kinds}
    for name, attentions in (("lsh", mine[LSH]), ("local", mine[Local])):
        if not attentions:
            continue
        attention = one(attentions, f"their {name} attention")
        mixer = attention.mixer
        out |= {
            f"{name}_attn_chunk_length": mixer.chunk,
            f"{name}_num_chunks_before": mixer.before,
            f"{name}_num_chunks_after": mixer.after,
            f"{name}_attention_probs_dropout_prob": attention.dropout,
        }
        if isinstance(mixer, LSH):
            buckets = mixer.buckets
            plain = buckets[0] if buckets is not None and len(buckets) == 1 else None
            factors = None if buckets is None else list(buckets)
            out |= {"num_hashes": mixer.hashes, "num_buckets": plain or factors}
            out["hash_seed"] = mixer.seed
    return out


def kind_of(model: Model) -> str:
    """Words of an encoder are masked ones."""
    kind = head_kind(model)
    return "masked" if kind == "words" and not model.writer.causal else kind


FAMILY = Family(
    "reformer", ARCHITECTURES, USUAL, PRESETS, read, write, reformer_map.weights,
    prefix="reformer.", kind=kind_of,
)  # fmt: skip
