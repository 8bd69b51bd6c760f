"""BERT (Devlin et al., 2018): an encoder with token types, that fills in masked words.

Published files call the norms' parameters gamma and beta, and hold a pooler and a next-sentence
head beside the head that config.json names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from allformer.config import ClassHead, EncoderOnly, LMHead, Pool, PretrainHead, SpanHead
from allformer.families import encoder, pieces
from allformer.families.family import Family, head_kind
from allformer.families.fields import Fields
from allformer.families.weights import Ignored, WeightMap

ARCHITECTURES = {
    "BertModel": "bare",
    "BertForMaskedLM": "words",
    "BertForPreTraining": "pretrain",
    "BertForSequenceClassification": "class",
    "BertForNextSentencePrediction": "class",
    "BertForTokenClassification": "token",
    "BertForQuestionAnswering": "span",
}
USUAL = {
    "vocab_size": 30_522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512, "type_vocab_size": 2,
    "layer_norm_eps": 1e-12, "pad_token_id": 0,
}  # fmt: skip
_LARGE = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 4096,
}  # fmt: skip


def _bare(**sizes: int) -> Callable[[], EncoderOnly]:
    return lambda: read(Fields(sizes, "bert"), "BertModel", ())


PRESETS = {
    "bert-base": _bare(),
    "bert-large": _bare(**_LARGE),
    "bert-base-cased": _bare(vocab_size=28_996),
    "bert-large-cased": _bare(vocab_size=28_996, **_LARGE),
    "bert-base-chinese": _bare(vocab_size=21_128),
    "bert-base-multilingual": _bare(vocab_size=119_547),
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderOnly:
    """config.json → the tree."""
    fields.inert("directionality", "pooler_fc_size", "pooler_num_attention_heads")
    fields.inert("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type")
    stack, kind = encoder.read_stack(fields, USUAL), ARCHITECTURES[architecture]
    if kind == "bare":
        return EncoderOnly(stack, pool=encoder.bare_pool(keys, "pooler.dense.weight"))
    if kind == "span":
        return EncoderOnly(stack, SpanHead())
    block = stack.blocks[0]
    if kind in ("words", "pretrain"):
        words = encoder.words_head(fields, block.feed.act, block.norm)
        if kind == "words":
            return EncoderOnly(stack, words)
        return EncoderOnly(stack, PretrainHead(words, _pair(fields)), Pool())
    if architecture == "BertForNextSentencePrediction":
        return EncoderOnly(stack, _pair(fields), Pool())
    dropout = fields.take("classifier_dropout", stack.dropout)
    if kind == "token":
        return EncoderOnly(stack, pieces.class_head(fields, "token", dropout=dropout))
    return EncoderOnly(stack, pieces.class_head(fields, "pool", dropout=dropout), Pool())


def _pair(fields: Fields) -> ClassHead:
    """Whether the second sentence follows (0) or not (1): two classes, whatever num_labels says."""
    labels = fields.labels
    return ClassHead(labels if len(labels) == 2 else ("LABEL_0", "LABEL_1"))


def write(model: EncoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    return {**encoder.write_stack(model), **encoder.classifier_dropout(model)}


def weights(model: EncoderOnly, architecture: str) -> WeightMap:
    """The map of a BERT file."""
    stack, head, kind = model.encoder, model.head, head_kind(model)
    base = "" if kind == "bare" else "bert."
    ops = encoder.embeddings(stack, base)
    for i, block in enumerate(stack.blocks):
        ours, theirs = f"encoder.layers.{i}", f"{base}encoder.layer.{i}"
        ops += encoder.layer(ours, theirs, block, stack.dim, encoder.BERT_LAYER)
    ops += encoder.pooler(model, base, "pooler.dense")
    if isinstance(head, LMHead | PretrainHead):
        words, ours = (head, "head") if isinstance(head, LMHead) else (head.words, "head.words")
        ops += encoder.words(
            ours, words, "cls.predictions", "transform.dense", "transform.LayerNorm",
            f"{base}embeddings.word_embeddings.weight",
        )  # fmt: skip
    if kind == "words":
        ops.append(Ignored(r"cls\.seq_relationship\..*", "the next-sentence head"))
    elif kind == "pretrain":
        ops += pieces.dense("head.pair.out", "cls.seq_relationship")
    elif architecture == "BertForNextSentencePrediction":
        ops += pieces.dense("head.out", "cls.seq_relationship")
    else:
        ops += pieces.small_head(kind)
    return ops


FAMILY = Family("bert", PRESETS, ARCHITECTURES, read, write, weights, prefix="bert.")
