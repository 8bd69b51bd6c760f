"""`classify`: which class a text, or a pair of texts, belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from allformer import config
from allformer.core.precision import widen
from allformer.errors import DataError
from allformer.tasks.batching import encode, feed
from allformer.tasks.call import task
from allformer.tasks.pipeline import Pipeline
from allformer.tasks.result import Label
from allformer.tasks.verbs import need


@task
def classify(
    pipeline: Pipeline,
    texts: list[str],
    /,
    pairs: str | Sequence[str] | None = None,
    *,
    all: bool = False,
    truncate: bool = False,
) -> list[Label | list[Label]]:
    """The likeliest label of each text; with `all`, every label, likeliest first.

    >>> classify("distilled-sst2", "A film to remember.")
    Label(label='POSITIVE', score=0.9997)
    >>> classify("nli", "A man sleeps.", "Somebody is awake.", all=True)
    [Label(label='CONTRADICTION', score=0.98), Label(label='NEUTRAL', score=0.01), …]

    Scores are a softmax; where several labels may hold at once (or there is but one), each has its
    own sigmoid; of a regression, the value itself. `pairs` are second texts.
    """
    need(pipeline, "classify")
    others = [pairs] if isinstance(pairs, str) else None if pairs is None else list(pairs)
    if others is not None and len(others) != len(texts):
        raise DataError(f"there are {len(texts)} texts but {len(others)} pairs; each needs its own")
    head = pipeline.model.config.head
    assert isinstance(head, config.ClassHead)
    batch = encode(pipeline, texts, others, limit=pipeline.longest, truncate=truncate)
    # Without a padding id the last token of a text cannot be told from padding.
    alone = head.at == "last" and pipeline.stack.source.pad_id is None
    found: list[Label | list[Label]] = [Label("", 0.0)] * len(texts)
    for rows, inputs in feed(pipeline, batch, alone=alone):
        with torch.inference_mode():
            logits = pipeline.model(**inputs).logits
        for row, scores in zip(rows, class_scores(widen(logits), head).tolist(), strict=True):
            ranked = sorted(zip(scores, head.labels, strict=True), key=lambda pair: -pair[0])
            labels = [Label(name, score) for score, name in ranked]
            found[row] = labels if all else labels[0]
    return found


def class_scores(logits: Tensor, head: config.ClassHead | config.TeacherHead) -> Tensor:
    """Logits as scores, as transformers' pipeline chooses."""
    problem = getattr(head, "problem", None)
    if problem == "regression":
        return logits
    if problem == "multi_label_classification" or len(head.labels) == 1:
        return logits.sigmoid()
    return logits.softmax(-1)
