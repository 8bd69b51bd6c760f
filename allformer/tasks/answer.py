"""`answer`: the part of a passage that answers a question.

A span's score is P(it begins here) · P(it ends there), each a softmax over the passage and the
first token (the place of "no answer"). A long passage is read in windows that overlap, each with
the whole question and a softmax of its own; the best span of all windows wins.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from allformer.core.precision import widen
from allformer.errors import ConfigError, DataError
from allformer.tasks.batching import excerpt, feed, warn_unknown
from allformer.tasks.call import check_texts, task
from allformer.tasks.pipeline import Pipeline
from allformer.tasks.result import Answer
from allformer.tasks.verbs import need
from allformer.text.batch import Batch

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
    found: list[list[Answer]] = [[] for _ in questions]
    empty = [1.0] * len(questions)
    for rows, inputs in feed(pipeline, batch):
        with torch.inference_mode():
            out = pipeline.model(**inputs)
        first, last = widen(out.start_logits).cpu(), widen(out.end_logits).cpu()
        for i, row in enumerate(rows):
            text = batch.texts[row]
            window = _Window(pipeline, batch, row, first[i], last[i])
            empty[text] = min(empty[text], window.empty)
            spans = window.best(top, max_answer_tokens, None if words is None else words[text])
            found[text] += [_answer(passages[text], *span) for span in spans]
    if no_answer:
        for text, score in enumerate(empty):
            found[text].append(Answer("", score, 0, 0))
    ranked = [_best(*each, top) for each in zip(found, passages, strict=True)]
    return [answers[0] for answers in ranked] if top == 1 else list(ranked)


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


def _best(answers: list[Answer], passage: str, top: int) -> list[Answer]:
    """Best first, each span once: two windows, or two cuts of a word, may give the same."""
    best: dict[tuple[int, int], Answer] = {}
    for one in sorted(answers, key=lambda one: -one.score):
        best.setdefault((one.start, one.end), one)
    if not best:
        raise DataError(f"the passage {excerpt(passage)} has no tokens; give another")
    return list(best.values())[:top]


def _windows(pipeline: Pipeline, questions: Sequence[str], passages: Sequence[str]) -> Batch:
    width = min(WIDTH, pipeline.longest or WIDTH)
    return pipeline.tokenizer(
        questions,
        passages,
        padding_side="right",
        max_length=width,
        windows=min(OVERLAP, width // 2),
    )


Words = dict[int, tuple[int, int]]  # by number, the characters of a passage's words


def _words(batch: Batch, texts: int) -> list[Words]:
    """Of each passage; a word that a window cuts through goes on in the next."""
    out: list[Words] = [{} for _ in range(texts)]
    for row, text in enumerate(batch.texts):
        facts = zip(batch.word_ids(row), batch.offsets(row), batch.sequence_ids(row), strict=True)
        for word, (start, end), sequence in facts:
            if sequence == 1 and word is not None:
                first, last = out[text].get(word, (start, end))
                out[text][word] = min(first, start), max(last, end)
    return out


class _Window:
    """One row: where an answer may be, and how likely it begins and ends at each place."""

    def __init__(
        self, pipeline: Pipeline, batch: Batch, row: int, first: Tensor, last: Tensor
    ) -> None:
        sequences = batch.sequence_ids(row)[: len(first)]
        self.offsets, self.words = batch.offsets(row), batch.word_ids(row)
        self.passage = torch.tensor([sequence == 1 for sequence in sequences])
        allowed = self.passage.clone()
        ids = batch["input_ids"][row, : len(first)]
        nothing = (ids == pipeline.tokenizer.special_ids.get("cls", -1)) & ~self.passage
        allowed |= nothing
        self.first = first.masked_fill(~allowed, float("-inf")).softmax(-1)
        self.last = last.masked_fill(~allowed, float("-inf")).softmax(-1)
        self.empty = float((self.first * self.last)[nothing].sum())

    def best(self, top: int, longest: int, words: Words | None) -> list[tuple[int, int, float]]:
        """Characters and score of the likeliest spans of at most `longest` tokens."""
        first, last = self.first * self.passage, self.last * self.passage
        scores = (first[:, None] * last[None, :]).triu().tril(longest - 1)  # T T
        values, flat = scores.flatten().topk(min(top, scores.numel()))
        out = []
        for value, where in zip(values.tolist(), flat.tolist(), strict=True):
            i, j = divmod(where, len(first))
            if self.passage[i] and self.passage[j]:
                start, end = self.offsets[i][0], self.offsets[j][1]
                if words is not None:
                    start, end = self._word(words, i)[0], self._word(words, j)[1]
                out.append((start, end, value))
        return out

    def _word(self, words: Words, i: int) -> tuple[int, int]:
        """The characters of the word that token i is a part of."""
        word = self.words[i]
        return self.offsets[i] if word is None else words[word]


def _answer(passage: str, start: int, end: int, score: float) -> Answer:
    while start < end and passage[start].isspace():  # some tokens hold the space before them
        start += 1
    while end > start and passage[end - 1].isspace():
        end -= 1
    return Answer(passage[start:end], score, start, end)
