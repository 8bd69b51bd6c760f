"""Transformer-XL (Dai et al., 2019): relative positions, a memory of segments, words in clusters.

transformers dropped it after 4.35; its directories live on. A memory begins there as zeros that are
looked at (`XLRelative.blank`), as in the authors' TensorFlow code.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from allformer.config import (
    AdaptiveHead,
    AdaptiveTokens,
    Attention,
    Block,
    DecoderOnly,
    Feed,
    Full,
    Norm,
    Stack,
    Window,
    XLRelative,
    repeat,
)  # fmt: skip
from allformer.errors import CheckpointError
from allformer.families.family import Family, architectures, expect, fit, head_kind, named, one
from allformer.families.fields import Fields
from allformer.families.heads import class_head
from allformer.families.kinds import FLAG, LAYERS, LIST, NUMBER, TEXT, WHOLE
from allformer.families.tokens import read_tokens, write_tokens
from allformer.families.transfo_xl_map import weights

ARCHITECTURES = architectures("TransfoXL", "LMHeadModel", "Model", "ForSequenceClassification")
USUAL = {
    "vocab_size": 267_735, "d_model": 1024, "d_embed": 1024, "n_head": 16, "d_head": 64,
    "d_inner": 4096, "div_val": 4, "pre_lnorm": False, "n_layer": 18, "same_length": True,
    "proj_share_all_but_first": True, "dropout": 0.1, "dropatt": 0.0, "untie_r": True,
    "layer_norm_epsilon": 1e-5, "eos_token_id": 0, "tie_word_embeddings": True,
}  # fmt: skip
CUTOFFS = [20_000, 40_000, 200_000]  # where config.json says none: WikiText-103's


def _sizes(layers: int, dim: int, heads: int, size: int, inner: int, memory: int) -> dict[str, Any]:
    names = "n_layer d_model d_embed n_head d_head d_inner mem_len"
    plain = {"same_length": False, "clamp_len": -1}
    return named(names, layers, dim, dim, heads, size, inner, memory) | plain


_BYTES = {"vocab_size": 204, "cutoffs": [], "div_val": 1}
# As the authors' scripts train them; the last as its published directory evaluates.
PRESETS = {
    "transfo-xl-enwik8": _BYTES | _sizes(12, 512, 8, 64, 2048, 512),
    "transfo-xl-enwik8-24": _BYTES
    | _sizes(24, 1024, 8, 128, 3072, 768)
    | {"dropout": 0.15, "dropatt": 0.15},
    "transfo-xl-wt103-base": {"cutoffs": CUTOFFS, "div_val": 1}
    | _sizes(16, 410, 10, 41, 2100, 150),
    "transfo-xl-wt103": {},
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> DecoderOnly:
    """config.json → the tree."""
    dim, heads = fields.take("d_model", older="hidden_size"), fields.take("n_head")
    size, memory = fields.take("d_head"), fields.take("mem_len", 1600, kind=WHOLE)
    clamp = fields.take("clamp_len", 1000, kind=WHOLE)
    dropout = fields.take("dropout")
    fields.must("attn_type", 0)
    fields.must("sample_softmax", -1, 0)
    _inert(fields)
    same = fields.take("same_length")
    if same and memory < 1:
        raise CheckpointError(
            f"config.json has same_length=true and mem_len={memory}: nobody may look at anything; "
            f"set same_length to false"
        )
    mixer = Window(memory - 1) if same else Full()
    block = Block(
        Attention(
            heads, head_dim=None if heads * size == dim else size, bias=False, mixer=mixer,
            dropout=fields.take("dropatt"),
        ),
        Feed(fields.take("d_inner"), act="relu", dropout=dropout),
        norm=Norm("layer", float(fields.take("layer_norm_epsilon"))),
        norm_at="pre" if fields.take("pre_lnorm") else "post",
        dropout=dropout,
    )  # fmt: skip
    relative = XLRelative(
        max(0, memory), clamp if clamp > 0 else None, fields.take("untie_r"), memory > 0, dropout
    )
    stack = Stack(
        dim, _tokens(fields, dim), None, repeat(block, fields.take("n_layer", kind=LAYERS)),
        causal=True, relative=relative, dropout=dropout, final_dropout=dropout,
    )  # fmt: skip
    return DecoderOnly(stack, _head(fields, stack, ARCHITECTURES[architecture]))


def _inert(fields: Fields) -> None:
    """How weights start, lengths that nobody reads any more, and how a loss is returned."""
    fields.inert(TEXT, "init")
    fields.inert(NUMBER, "init_range", "proj_init_std")
    fields.inert(WHOLE, "tgt_len", "ext_len", "max_position_embeddings")
    fields.inert(FLAG, "adaptive", "tie_weight", "trainer_compatible", "proj_share_all_but_first")
    fields.inert(LIST, "tie_projs")  # where there is nothing to tie


def _tokens(fields: Fields, dim: int) -> AdaptiveTokens:
    plain = read_tokens(fields)
    cutoffs = fields.take("cutoffs", None, kind=LIST)
    embed = fields.take("d_embed")
    return AdaptiveTokens(
        plain.vocab, scale=True, pad_id=plain.pad_id, bos_id=plain.bos_id, eos_id=plain.eos_id,
        cutoffs=tuple(CUTOFFS if cutoffs is None else cutoffs), divide=fields.take("div_val"),
        embed=None if embed == dim else embed,
    )  # fmt: skip


def _head(fields: Fields, stack: Stack, kind: str) -> Any:
    source = stack.source
    assert isinstance(source, AdaptiveTokens)
    if kind == "class":
        if source.embed is not None:
            raise CheckpointError(
                f"config.json has d_embed={source.embed} and d_model={stack.dim}: the classes of "
                f"such a model read vectors of the one width, its states have the other; make them "
                f"equal"
            )
        return class_head(fields, "last", bias=False)
    if kind != "words":
        return None
    tied = fields.take("tie_word_embeddings")
    if not source.projected(stack.dim):
        return AdaptiveHead(tied)
    usual = [False] + [bool(fields.take("proj_share_all_but_first"))] * len(source.cutoffs)
    shares = tuple(map(bool, fields.take("tie_projs", usual, kind=LIST)))
    return AdaptiveHead(tied, shares=shares if any(shares) else ())


def write(model: DecoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    stack = fit(model, DecoderOnly, "is not a decoder").decoder
    relative = fit(stack.relative, XLRelative, "has no relative positions of this kind")
    source = fit(stack.source, AdaptiveTokens, "has no tokens in clusters")
    block = one(stack.blocks, "anything")
    expect(relative.blank == bool(relative.memory), "has a memory that does not begin as zeros")
    size, mixer = block.attention.size(stack.dim), block.attention.mixer
    same = isinstance(mixer, Window)
    expect(not same or mixer == Window(relative.memory - 1), "has a window of another length")
    head = model.head
    said = {
        **write_tokens(source),
        "d_model": stack.dim, "d_embed": source.embed or stack.dim, "cutoffs": [*source.cutoffs],
        "div_val": source.divide, "n_head": block.attention.heads, "d_head": size,
        "d_inner": block.feed.width, "n_layer": len(stack.blocks),
        "pre_lnorm": block.norm_at == "pre", "layer_norm_epsilon": block.norm.eps,
        "mem_len": relative.memory, "clamp_len": relative.clamp or -1, "same_length": same,
        "untie_r": relative.untie, "dropout": block.dropout, "dropatt": block.attention.dropout,
    }  # fmt: skip
    if isinstance(head, AdaptiveHead):
        said["tie_word_embeddings"] = head.tied
        if source.projected(stack.dim):
            said["tie_projs"] = [*head.shares] or [False] * len(source.clusters)
    return said


def kind(model: Any) -> str:
    """The head over clusters is one over words."""
    return "words" if isinstance(model.head, AdaptiveHead) else head_kind(model)


FAMILY = Family(
    "transfo-xl", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="transformer.",
    kind=kind,
)  # fmt: skip
