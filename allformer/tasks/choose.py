"""`choose`: which of several texts goes best with a question, or on from a beginning."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from allformer.core.precision import widen
from allformer.errors import DataError
from allformer.tasks.batching import encode, feed
from allformer.tasks.call import check_texts, task
from allformer.tasks.pipeline import Pipeline
from allformer.tasks.result import Label
from allformer.tasks.verbs import need


@task
def choose(
    pipeline: Pipeline,
    questions: list[str],
    /,
    choices: Sequence[str] | Sequence[Sequence[str]],
    *,
    all: bool = False,
    truncate: bool = False,
) -> list[Label | list[Label]]:
    """The best choice for each question; with `all`, every one, best first.

    >>> choose("swag", "She opened the door.", ["She went in.", "The door ate her."])
    Label(label='She went in.', score=0.97)

    Scores are a softmax over the choices of a question. One list serves all questions, or each has
    its own, of any length.
    """
    need(pipeline, "choose")
    each = _each(questions, choices)
    flat = [choice for own in each for choice in own]
    asked = [question for question, own in zip(questions, each, strict=True) for _ in own]
    batch = encode(pipeline, asked, flat, limit=pipeline.longest, truncate=truncate)
    scores = torch.empty(len(flat))
    for rows, inputs in feed(pipeline, batch):
        with torch.inference_mode():
            found = pipeline.model(**inputs).logits  # one for each text
        scores[rows] = widen(found)[:, 0].float().cpu()
    ranked = []
    for own, part in zip(each, torch.split(scores, [len(own) for own in each]), strict=True):
        labels = map(Label, own, part.softmax(0).tolist())
        ranked.append(sorted(labels, key=lambda label: -label.score))
    return list(ranked) if all else [labels[0] for labels in ranked]


def _each(
    questions: Sequence[str], choices: Sequence[str] | Sequence[Sequence[str]]
) -> list[list[str]]:
    """The choices of each question."""
    if isinstance(choices, str):
        raise DataError(f"choices={choices!r} is one text; give a list of them")
    if choices and isinstance(choices[0], str):
        choices = [choices] * len(questions)  # type: ignore[list-item]
    if len(choices) != len(questions):
        raise DataError(
            f"there are {len(questions)} questions but {len(choices)} lists of choices; give each "
            f"question its own, or one list for all"
        )
    each = [list(own) for own in choices]
    for i, own in enumerate(each):
        check_texts(own, f"of question {i + 1}: choice")
        if not own:
            raise DataError(f"question {i + 1} has no choices; give at least one, better two")
    return each
