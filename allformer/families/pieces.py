"""Pieces of weight maps and configs that several families share."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from allformer import config
from allformer.families.fields import Fields
from allformer.families.weights import Alias, Op, Same, Stacked, Transposed

# The tables that are one where a model is tied, by transformers' names.
TABLES = (
    "shared.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "lm_head.weight",
)


def dense(ours: str, theirs: str, bias: bool = True, transposed: bool = False) -> list[Op]:
    """A linear layer's weight and bias."""
    kind = Transposed if transposed else Same
    ops: list[Op] = [kind(f"{ours}.weight", f"{theirs}.weight")]
    return [*ops, Same(f"{ours}.bias", f"{theirs}.bias")] if bias else ops


def norm(ours: str, theirs: str, kind: config.Norm) -> list[Op]:
    """A norm's weight and, for LayerNorm, bias."""
    return dense(ours, theirs, bias=kind.kind == "layer")


def fused(
    ours: str, theirs: tuple[str, ...], sizes: tuple[int, ...], bias: bool = True
) -> list[Op]:
    """Projections that we hold as one matrix and they as several."""
    kinds = ("weight", "bias") if bias else ("weight",)
    return [Stacked(f"{ours}.{k}", tuple(f"{t}.{k}" for t in theirs), sizes) for k in kinds]


def head_sizes(attention: config.Attention, dim: int) -> tuple[int, int, int]:
    """Rows of q, k and v."""
    size = attention.size(dim)
    return attention.heads * size, attention.groups * size, attention.groups * size


def attention(
    ours: str,
    theirs: str,
    kind: config.Attention,
    dim: int,
    parts: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "out_proj"),
    cross: bool = False,
) -> list[Op]:
    """An attention's four matrices: q, k, v in one of ours, or across q and then k, v."""
    q, k, v, out = (f"{theirs}.{part}" for part in parts)
    rows = head_sizes(kind, dim)
    ops = dense(f"{ours}.out", out, kind.bias)
    if not cross:
        return [*fused(f"{ours}.qkv", (q, k, v), rows, kind.bias), *ops]
    query = dense(f"{ours}.query", q, kind.bias)
    return [*query, *fused(f"{ours}.memory", (k, v), rows[1:], kind.bias), *ops]


def has(keys: Collection[str], name: str) -> bool:
    """Whether a file has a tensor of that name, with or without a prefix."""
    return any(f".{key}".endswith(f".{name}") for key in keys)


def output(head: config.LMHead, table: str, theirs: str = "lm_head.weight") -> Op:
    """The output matrix: a second name of the embedding's `table`, or one of its own."""
    return Alias(theirs, table) if head.tied else Same("head.table.weight", theirs)


def small_head(
    kind: str, classes: str = "classifier", tags: str = "classifier", bias: bool = True
) -> list[Op]:
    """The one layer of a head that classifies texts (`bias` or not) or tokens, or finds answers."""
    names = {"class": classes, "token": tags, "span": "qa_outputs"}
    return dense("head.out", names[kind], bias or kind != "class") if kind in names else []


def class_head(
    fields: Fields, at: str, *, dense: str | None = None, bias: bool = True, dropout: float = 0.0
) -> config.ClassHead:
    """A classification head with the labels and the problem that config.json names."""
    return config.ClassHead(
        fields.labels,
        at=at,  # type: ignore[arg-type]
        dense=dense,
        bias=bias,
        dropout=dropout,
        problem=fields.raw.get("problem_type") if at != "token" else None,
    )


def decoder_head(fields: Fields, kind: str) -> config.ClassHead | config.SpanHead | None:
    """What transformers puts on a decoder to classify or to find answers."""
    if kind == "class":
        return class_head(fields, "last", bias=False)
    if kind == "token":
        dropout = fields.take("classifier_dropout", fields.take("hidden_dropout", 0.1))
        return class_head(fields, "token", dropout=dropout)
    return config.SpanHead() if kind == "span" else None


def write_head(head: Any) -> dict[str, Any]:
    """What config.json says of a decoder's head."""
    if isinstance(head, config.LMHead):
        return {"tie_word_embeddings": head.tied}
    if isinstance(head, config.ClassHead) and head.at == "token" and head.dropout != 0.1:
        return {"classifier_dropout": head.dropout}
    return {}


def write_labels(head: Any) -> dict[str, Any]:
    """`id2label`, `label2id` and the problem of a classification head."""
    if not isinstance(head, config.ClassHead):
        return {}
    return {
        "id2label": {str(i): name for i, name in enumerate(head.labels)},
        "label2id": {name: i for i, name in enumerate(head.labels)},
        "problem_type": head.problem,
    }


def write_tokens(tokens: config.Tokens) -> dict[str, Any]:
    """The special ids."""
    return {
        "pad_token_id": tokens.pad_id,
        "bos_token_id": tokens.bos_id,
        "eos_token_id": tokens.eos_id,
    }
