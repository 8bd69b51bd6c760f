"""`answer`: the part of a passage that answers a question; how spans are found: `text/spans.py`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from allformer.config import Full
from allformer.core.precision import widen
from allformer.errors import ConfigError, DataError
from allformer.tasks.batching import excerpt, feed, warn_unknown
from allformer.tasks.call import check_texts, task
from allformer.tasks.pipeline import Pipeline
from allformer.tasks.result import Answer
from allformer.tasks.verbs import need
from allformer.text.batch import Batch
from allformer.text.spans import Span, Window, Words, add_words, ranked, trimmed

WIDTH, OVERLAP = 384, 128  # tokens of a window, and what two of them share; as in BERT's SQuAD


@task
def answer(
    pipeline: Pipeline,
    questions: list[str],
    /,
    passages: str | Sequence[str],
    *,
    top: int = 1,
    no_answer: bool = False,
    max_answer_tokens: int = 15,
    whole_words: bool = True,
) -> list[Answer | list[Answer]]:
    """The span of its passage that answers each question; with `top` > 1, so many, best first.

    >>> answer("bert-squad", "Who wrote Faust?", "Faust is a play. Goethe wrote it in Weimar.")
    Answer(text='Goethe', score=0.97, start=17, end=23)

    One passage may serve all questions. `no_answer` lets a model that was trained so (SQuAD 2) say
    that the passage has none: its text is "". `whole_words` widens a span to whole words.
    """
    need(pipeline, "answer")
    if top < 1 or max_answer_tokens < 1:
        raise ConfigError(f"top={top}, max_answer_tokens={max_answer_tokens}: both at least 1")
    if no_answer and "cls" not in pipeline.tokenizer.special_ids:
        raise ConfigError(
            "no_answer=True needs a token before the text, and this tokeniser has no cls token"
        )
    passages = [passages] * len(questions) if isinstance(passages, str) else list(passages)
    _check(questions, passages)
    batch = _windows(pipeline, questions, passages)
    warn_unknown(batch, passages, pipeline)
    words = _words(batch, len(questions)) if whole_words else None
    found: list[list[Span]] = [[] for _ in questions]
    empty = [1.0] * len(questions)
    for rows, inputs in feed(pipeline, batch):
        with torch.inference_mode():
            out = pipeline.model(**inputs)
        first, last = widen(out.start_logits).cpu(), widen(out.end_logits).cpu()
        for i, row in enumerate(rows):
            text = batch.texts[row]
            window = _window(pipeline, batch, row, first[i], last[i])
            empty[text] = min(empty[text], window.empty)
            spans = window.best(top, max_answer_tokens, None if words is None else words[text])
            found[text] += [trimmed(passages[text], span) for span in spans]
    if no_answer:
        for text, score in enumerate(empty):
            found[text].append(Span(0, 0, score))
    best = [_best(*each, top) for each in zip(found, passages, strict=True)]
    return [answers[0] for answers in best] if top == 1 else list(best)


def _check(questions: Sequence[str], passages: Sequence[str]) -> None:
    if len(questions) != len(passages):
        raise DataError(
            f"there are {len(questions)} questions but {len(passages)} passages; give each "
            f"question its own, or one passage for all"
        )
    check_texts(questions, "question")
    check_texts(passages, "passage")
    for i, passage in enumerate(passages):
        if not passage.strip():
            raise DataError(f"passage {i + 1} is empty; give the text that holds the answer")


def _best(spans: list[Span], passage: str, top: int) -> list[Answer]:
    if not spans:
        raise DataError(f"the passage {excerpt(passage)} has no tokens; give another")
    return [
        Answer(passage[start:end], score, start, end) for start, end, score in ranked(spans, top)
    ]


def _windows(pipeline: Pipeline, questions: Sequence[str], passages: Sequence[str]) -> Batch:
    width = _width(pipeline)
    return pipeline.tokenizer(
        questions,
        passages,
        padding_side="right",
        max_length=width,
        windows=min(OVERLAP, width // 2),
    )


def _width(pipeline: Pipeline) -> int:
    """A model that looks at part of a text at a time is made for long ones: it reads all it can."""
    most = pipeline.longest or WIDTH
    full = all(block.attention.mixer == Full() for block in pipeline.stack.blocks)
    return min(WIDTH, most) if full else most


def _words(batch: Batch, texts: int) -> list[Words]:
    """Of each passage."""
    out: list[Words] = [{} for _ in range(texts)]
    for row, text in enumerate(batch.texts):
        facts = zip(batch.word_ids(row), batch.offsets(row), batch.sequence_ids(row), strict=True)
        add_words(out[text], ((word, place) for word, place, sequence in facts if sequence == 1))
    return out


def _window(pipeline: Pipeline, batch: Batch, row: int, first: Tensor, last: Tensor) -> Window:
    passage = [sequence == 1 for sequence in batch.sequence_ids(row)[: len(first)]]
    cls = pipeline.tokenizer.special_ids.get("cls", -1)
    ids = batch["input_ids"][row, : len(first)].tolist()
    nothing = [i == cls and not inside for i, inside in zip(ids, passage, strict=True)]
    return Window(first, last, passage, nothing, batch.offsets(row), batch.word_ids(row))
