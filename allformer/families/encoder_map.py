"""The names of the tensors in files of BERT, RoBERTa and ALBERT, but for their layers'."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from allformer.config import DecoderOnly, EncoderOnly, Learned, LMHead, Several, Stack, words_of
from allformer.families import layer_map
from allformer.families.heads import head_weights
from allformer.families.weights import Alias, Derived, Ignored, Op, Renamed, Same, Unused


@dataclass(frozen=True)
class Names:
    """What a family calls its pooler; the head over the vocabulary, in it the dense layer and the
    norm; the second head of the pre-training pair, with a word on it; the head for classes."""

    pooler: str
    words: str
    dense: str
    norm: str
    pair: tuple[str, str] | None = None
    classes: str = "classifier"


def weights(model: EncoderOnly | DecoderOnly, base: str, names: Names) -> list[Op]:
    """All but the layers; `base` is the body's name within a model with a head."""
    ops, head = _embeddings(*next(iter(model.stacks.items())), base), model.head
    if model.pool is not None:
        ops += layer_map.dense("pool.dense", f"{base}{names.pooler}")
    else:  # files that were made from a bigger model have one nevertheless
        ops.append(Ignored(re.escape(base) + r"pooler\..*", "its head reads no pooler"))
    pair, why = names.pair or ("", "")
    words = words_of(head)
    if words is None:
        return ops + head_weights(head, "", names.classes)
    if isinstance(head, Several):
        ops += _words("head.words", words, names, base)
        return ops + layer_map.dense("head.pair.out", pair)
    ops += _words("head", words, names, base)
    return [*ops, Ignored(re.escape(pair) + r"\..*", why)] if pair else ops


def _embeddings(ours: str, stack: Stack, base: str) -> list[Op]:
    """Words, positions, token types and their norm, by old names too."""
    where, position = f"{base}embeddings", stack.position
    assert isinstance(position, Learned)
    rows = position.offset + position.length
    return [
        Renamed(r"LayerNorm\.gamma$", "LayerNorm.weight"),
        Renamed(r"LayerNorm\.beta$", "LayerNorm.bias"),
        Same(f"{ours}.source.embedding.weight", f"{where}.word_embeddings.weight"),
        Same(f"{ours}.source.position.weight", f"{where}.position_embeddings.weight"),
        Same(f"{ours}.source.types.weight", f"{where}.token_type_embeddings.weight"),
        *layer_map.dense(f"{ours}.source.norm", f"{where}.LayerNorm"),
        Derived(f"{where}.position_ids", lambda: torch.arange(rows)[None]),
    ]


def _words(ours: str, head: LMHead, names: Names, base: str) -> list[Op]:
    """The head over the vocabulary. Its bias has two names, and two tensors when it is untied, of
    which the one called decoder.bias is added."""
    theirs = names.words
    ops = layer_map.dense(f"{ours}.transform.dense", f"{theirs}.{names.dense}")
    ops += layer_map.dense(f"{ours}.transform.norm", f"{theirs}.{names.norm}")
    if head.tied:
        return [
            *ops,
            Same(f"{ours}.bias", f"{theirs}.bias"),
            Alias(f"{theirs}.decoder.bias", f"{theirs}.bias"),
            Alias(f"{theirs}.decoder.weight", f"{base}embeddings.word_embeddings.weight"),
        ]
    return [
        *ops,
        Same(f"{ours}.bias", f"{theirs}.decoder.bias"),
        Unused(f"{theirs}.bias", f"{theirs}.decoder.bias"),
        Same(f"{ours}.table.weight", f"{theirs}.decoder.weight"),
    ]
