"""`tag`: the named things in a text, by the labels of its tokens.

A long text is read in windows that overlap; of an overlap each window gives the half that it sees
more around. So the labels are those of one text, and nothing is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from allformer import config
from allformer.core.precision import widen
from allformer.errors import ConfigError
from allformer.tasks.batching import feed, warn_unknown
from allformer.tasks.call import check_texts, task
from allformer.tasks.pipeline import Pipeline
from allformer.tasks.result import Entity
from allformer.tasks.verbs import need
from allformer.text.batch import Batch

OUTSIDE = "O"


@dataclass
class Token:
    """A token of the text: its characters, its word and the probabilities of the labels."""

    start: int
    end: int
    word: int | None
    scores: Tensor


@task
def tag(
    pipeline: Pipeline, texts: list[str], /, *, join: str = "simple", overlap: int | None = None
) -> list[list[Entity]]:
    """The entities of each text, in order; what is labelled "O" is left out.

    >>> tag("bert-base-NER", "Angela lives in Berlin.")
    [Entity(label='PER', score=0.99, start=0, end=6, text='Angela'), Entity(label='LOC', …)]

    `join`: "simple" joins neighbouring tokens of one label, of which only the first is a B-;
    "first", "max" and "average" let the tokens of a word agree on one label before; "none" gives
    each token with its own label, B- and I- included. `overlap` is how many tokens two windows of
    a long text share (a quarter of a window unless given).
    """
    need(pipeline, "tag")
    check_texts(texts)
    if join not in ("none", "simple", *AGREE):
        raise ConfigError(f"join={join!r} is not known; try none, simple, {', '.join(AGREE)}")
    head = pipeline.model.config.head
    assert isinstance(head, config.ClassHead)
    shared = (pipeline.longest or 0) // 4 if overlap is None else overlap
    batch = pipeline.tokenizer(  # several rows of a long text
        texts,
        padding_side="right",
        max_length=pipeline.longest,
        windows=None if pipeline.longest is None else shared,
    )
    warn_unknown(batch, texts, pipeline)
    windows: list[list[list[Token]]] = [[] for _ in texts]
    for rows, inputs in feed(pipeline, batch):
        with torch.inference_mode():
            scores = widen(pipeline.model(**inputs).logits).softmax(-1).cpu()
        for i, row in enumerate(rows):
            windows[batch.texts[row]].append(_tokens(batch, row, scores[i]))
    return [
        _entities(_merge(parts, shared), text, head.labels, join)
        for parts, text in zip(windows, texts, strict=True)
    ]


def _tokens(batch: Batch, row: int, scores: Tensor) -> list[Token]:
    facts = zip(batch.offsets(row), batch.word_ids(row), batch.sequence_ids(row), strict=True)
    return [
        Token(start, end, word, scores[i])
        for i, ((start, end), word, sequence) in enumerate(facts)
        if sequence is not None
    ]


def _merge(windows: list[list[Token]], shared: int) -> list[Token]:
    """The tokens of a text, each once: two windows meet in the middle of what they share."""
    first, *rest = sorted(windows, key=lambda tokens: tokens[0].start if tokens else 0)
    out, late = first, shared - shared // 2
    for tokens in rest:
        out = out[: len(out) - late] + tokens[shared - late :]
    return out


# --- labels to entities ----------------------------------------------------------------------


def _first(scores: Tensor) -> Tensor:
    return scores[0]


def _strongest(scores: Tensor) -> Tensor:
    return scores[scores.amax(-1).argmax()]


def _average(scores: Tensor) -> Tensor:
    return scores.mean(0)


# How the tokens of a word agree: their probabilities, tokens labels → labels.
AGREE: dict[str, Callable[[Tensor], Tensor]] = {
    "first": _first,
    "max": _strongest,
    "average": _average,
}


def _entities(tokens: list[Token], text: str, labels: Sequence[str], join: str) -> list[Entity]:
    if join in AGREE:
        tokens = [_word(group, join) for group in _words(tokens)]
    named: list[tuple[Token, str, float]] = []
    for token in tokens:
        score, i = token.scores.max(-1)
        named.append((token, labels[int(i)], float(score)))
    groups = [[one] for one in named] if join == "none" else _groups(named)
    out = []
    for group in groups:
        label = group[0][1] if join == "none" else _split(group[0][1])[1]
        if label == OUTSIDE:
            continue
        start, end = group[0][0].start, group[-1][0].end
        while start < end and text[start].isspace():  # byte-level tokens hold the space before
            start += 1
        mean = sum(one[2] for one in group) / len(group)
        out.append(Entity(label, mean, start, end, text[start:end]))
    return out


def _words(tokens: list[Token]) -> list[list[Token]]:
    groups: list[list[Token]] = []
    for token in tokens:
        if groups and token.word is not None and groups[-1][-1].word == token.word:
            groups[-1].append(token)
        else:
            groups.append([token])
    return groups


def _word(tokens: list[Token], join: str) -> Token:
    scores = AGREE[join](torch.stack([token.scores for token in tokens]))
    return Token(tokens[0].start, tokens[-1].end, tokens[0].word, scores)


def _groups(named: list[tuple[Token, str, float]]) -> list[list[tuple[Token, str, float]]]:
    """Neighbours of one kind; a B- begins a new one."""
    groups: list[list[tuple[Token, str, float]]] = []
    for one in named:
        begins, kind = _split(one[1])
        if groups and not begins and _split(groups[-1][-1][1])[1] == kind:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def _split(label: str) -> tuple[bool, str]:
    """`B-PER` → (True, PER); a label without prefix goes on with its like."""
    if label[:2] in ("B-", "I-"):
        return label[0] == "B", label[2:]
    return False, label
