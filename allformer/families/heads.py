"""The heads in config.json and in the files: words, classes of texts or tokens, answers."""

from __future__ import annotations

from typing import Any

from allformer.config import (
    BoxHead,
    ChoiceHead,
    ClassHead,
    LMHead,
    MaskHead,
    SoundClassHead,
    SpanHead,
    TeacherHead,
)
from allformer.families import layer_map
from allformer.families.fields import Fields
from allformer.families.kinds import NUMBER
from allformer.families.weights import Alias, Op, Same

SmallHead = ChoiceHead | ClassHead | SpanHead | None


def class_head(
    fields: Fields, at: str, *, dense: str | None = None, bias: bool = True, dropout: float = 0.0
) -> ClassHead:
    """A classification head with the labels and the problem that config.json names."""
    return ClassHead(
        fields.labels,
        at=at,  # type: ignore[arg-type]
        dense=dense,
        bias=bias,
        dropout=dropout,
        problem=fields.raw.get("problem_type") if at != "token" else None,
    )


def small_head(
    fields: Fields, kind: str, at: str, *, dense: str | None = None,
    drop: str = "classifier_dropout", usual: float = 0.0,
) -> SmallHead:  # fmt: skip
    """A head for classes of texts (read `at` a place, through a layer `dense`) or of tokens, for a
    choice among texts, or for answers; the field `drop` has its dropout."""
    if kind == "token":
        return class_head(fields, "token", dropout=fields.take(drop, usual, kind=NUMBER))
    if kind == "class":
        return class_head(fields, at, dense=dense, dropout=fields.take(drop, usual, kind=NUMBER))
    if kind == "choice":
        return ChoiceHead(fields.take(drop, usual, kind=NUMBER))
    return SpanHead() if kind == "span" else None


def decoder_head(fields: Fields, kind: str) -> LMHead | SmallHead:
    """What transformers puts on a decoder: classes are read at the last token, without a bias."""
    if kind == "words":
        return LMHead(fields.take("tie_word_embeddings"))
    if kind == "class":
        return class_head(fields, "last", bias=False)
    usual = fields.take("hidden_dropout", 0.1) if kind == "token" else 0.0
    return small_head(fields, kind, "last", usual=usual)


def write_decoder_head(head: Any) -> dict[str, Any]:
    """What config.json says of a decoder's head."""
    if isinstance(head, LMHead):
        return {"tie_word_embeddings": head.tied}
    if isinstance(head, ClassHead) and head.at == "token" and head.dropout != 0.1:
        return {"classifier_dropout": head.dropout}
    return {}


def write_labels(head: Any) -> dict[str, Any]:
    """`id2label`, `label2id` and the problem of a head over classes."""
    if not isinstance(head, BoxHead | ClassHead | MaskHead | SoundClassHead | TeacherHead):
        return {}
    return {
        "id2label": {str(i): name for i, name in enumerate(head.labels)},
        "label2id": {name: i for i, name in enumerate(head.labels)},
        **({"problem_type": head.problem} if isinstance(head, ClassHead) else {}),
    }


def head_weights(
    head: Any, table: str, classes: str = "classifier", tags: str = "classifier"
) -> list[Op]:
    """A head's tensors: the output over words is a second name of the embedding's `table` or has
    one of its own; `classes` of texts may have a layer before the last, `tags` of tokens not."""
    if isinstance(head, LMHead):
        name = "lm_head.weight"
        return [Alias(name, table) if head.tied else Same("head.table.weight", name)]
    if isinstance(head, SpanHead):
        return layer_map.dense("head.out", "qa_outputs")
    if isinstance(head, ChoiceHead):
        return layer_map.dense("head.out", classes)
    if not isinstance(head, ClassHead):
        return []
    if head.dense is None:
        return layer_map.dense("head.out", tags if head.at == "token" else classes, head.bias)
    ops = layer_map.dense("head.dense", f"{classes}.dense")
    return ops + layer_map.dense("head.out", f"{classes}.out_proj")
