"""Extractive answers: where in a passage the answer to a question begins and ends.

    objective: answering
    data: {path: train-v1.1.json, validation: dev-v1.1.json, max_length: 384, stride: 128}

A long passage is cut into windows that overlap; a window without the whole answer has it at the
first token, as a question without an answer does (SQuAD 2).

Legend: N tokens, R rows (windows), T the longest row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.config import Head, SpanHead
from allformer.core.loss import IGNORE
from allformer.core.precision import widen
from allformer.data.records import Record
from allformer.data.table import Table
from allformer.errors import ConfigError
from allformer.metrics import exact_and_f1, exact_and_f1_chinese
from allformer.text.spans import Span, Window, Words, add_words, ranked, trimmed
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, Frame
from allformer.train.objectives.objective import Lengths, Say, register
from allformer.train.predictions import Prediction, Predictions, calibrated
from allformer.train.sections.head import HeadRecipe, Spans
from allformer.train.sections.section import Count, Section, at_least
from allformer.train.supervised.data import Column, RecordData, read_each, text_in
from allformer.train.supervised.encode_questions import EncodeQuestions
from allformer.train.supervised.encode_texts import tokenizer_key
from allformer.train.supervised.packed import Texts, pack_texts, states
from allformer.train.supervised.supervised import Supervised, counted, judging, telling

_SHOWN = 240  # characters of a passage in the report


@dataclass(frozen=True)
class AnswerData(RecordData):
    """Questions, the passages that they are asked of, and answers as SQuAD has them."""

    question: Column = "question"
    context: Column = "context"
    answers: Column = "answers"
    max_length: Annotated[int, at_least(8)] = 384  # tokens of a window
    stride: Count = 128  # tokens that two windows share


@dataclass(frozen=True)
class AnswerOptions(Section, section="objective"):
    """How answers are looked for when validating; None: as the validation data has them."""

    max_answer_tokens: Count = 30
    no_answer: bool | None = None  # whether a question may have none (SQuAD 2)
    chinese: bool | None = None  # answers are compared by characters (CMRC 2018), not by words


class AnswerBatch(NamedTuple):
    """Windows, and the places in their rows where the answer begins and ends; −100: filler."""

    texts: Texts
    start: Tensor  # R
    end: Tensor  # R
    tokens: int
    counts: tuple[int, ...]  # windows


class Found(NamedTuple):
    """A question, what was wanted and what was said."""

    question: str
    context: str
    wanted: list[str]
    given: str
    score: float
    exact: float
    f1: float


@register("answering")
class Answering(Supervised[Table, AnswerBatch]):
    """`train(make_recipe({"objective": "answering", "data": {"path": "a.json"}}), "runs/a")`"""

    Data, Options = AnswerData, AnswerOptions
    columns = ("context", "question", "answers")

    # --- data -----------------------------------------------------------------------------------

    def texts(self) -> Iterable[str]:
        """Every question; a passage once for all that are asked of it in a row."""

        def read(record: Record) -> tuple[str, str]:
            return text_in(record, "question"), text_in(record, "context")

        before = None
        for question, passage in read_each(self.records.train, read):
            yield question
            if passage != before:
                yield passage
            before = passage

    def tokenizer(self, trained: Tokenizer) -> Tokenizer:
        """There must be a token that stands for "no answer here"."""
        tokenizer = super().tokenizer(trained)
        if "cls" not in tokenizer.special_ids or tokenizer.cls_id not in tokenizer.encode("a", "b"):
            raise ConfigError(
                f"objective={self.name!r} needs a token before the text that stands for no answer, "
                f"and this tokeniser puts no cls token there; use an encoder such as BERT"
            )
        return tokenizer

    def encoded(
        self, records: Iterable[Record], tokenizer: Tokenizer, name: str, say: Say
    ) -> Table:
        """Windows, so that nothing is cut off; validation keeps what answers are made of."""
        whole, stride = name == "validation", self.data.stride
        encode = EncodeQuestions(tokenizer, self.longest, stride, whole)
        table = self.table(records, encode, name, stride, whole, tokenizer_key(tokenizer))
        asked, empty = int(table["first"].sum()), int((table["start"] == table["nothing"]).sum())
        width = f"windows of at most {self.longest} tokens (data.max_length={self.data.max_length})"
        said = f"{asked:,} questions in {len(table):,} {width}"
        say(counted(name, said, {"windows without an answer": empty}))
        return table

    def lengths(self, examples: Table) -> tuple[Lengths, Lengths]:
        """Of the whole window, special tokens included."""
        return examples["ids"].lengths, examples["ids"].lengths

    # --- model ----------------------------------------------------------------------------------

    def fits(self, head: Head | None) -> bool:
        """Two scores a token."""
        return isinstance(head, SpanHead)

    def head(self) -> HeadRecipe:
        """As the body's family has it."""
        return Spans()

    # --- batches and losses -----------------------------------------------------------------------

    def collate(self, examples: Table, index: Array, frame: Frame | None = None) -> AnswerBatch:
        """Rows end to end; filler has no answer."""
        texts = pack_texts(examples, index, frame)
        ends = np.full((2, texts.layout.rows), IGNORE, np.int64)
        ends[:, : len(index)] = examples["start"][index], examples["end"][index]
        start, end = torch.from_numpy(ends)
        real = int(examples["ids"].lengths[index].sum())
        return AnswerBatch(texts, start, end, real, (len(index),))

    def loss(
        self,
        model: Any,
        batch: AnswerBatch,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """The mean of two cross-entropies over the tokens of the window, its padding left out.

        There is no smoothing: of the places of a window all but two or three are plainly wrong.
        """
        first, last = self.scores(model, batch.texts, dtype)
        loss = (_entropy(first, batch.start) + _entropy(last, batch.end)) / 2
        return loss, loss.detach()

    def scores(
        self, model: Any, texts: Texts, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """Where it begins and ends, R T each, in at least fp32; the lowest number at padding."""
        layout = texts.layout
        hidden = states(model, texts, dtype)
        grid = widen(model.head.on_grid(hidden, layout, layout.to_grid(texts.ids)))  # R T 2
        # Finite, so that a row of filler alone gives no NaN.
        grid = grid.masked_fill(~layout.keep[..., None], torch.finfo(grid.dtype).min)
        first, last = grid.unbind(-1)
        return first, last

    # --- figures ----------------------------------------------------------------------------------

    def measured(self, model: Any) -> tuple[str, ...]:
        """Exact match, and F1."""
        return ("em", "f1")

    def metrics(
        self,
        model: Any,
        examples: Table,
        *,
        batch_tokens: int = 4096,
        dtype: torch.dtype | None = None,
    ) -> dict[str, float]:
        """em and f1 of the answers' texts by SQuAD's definition, or CMRC's for Chinese."""
        found = self._found(model, examples, batch_tokens, dtype)
        return _figures(found)

    def _found(
        self, model: Any, examples: Table, batch_tokens: int, dtype: torch.dtype | None
    ) -> list[Found]:
        """The best span of all windows of each question."""
        owners = np.cumsum(examples["first"]) - 1
        questions = np.flatnonzero(examples["first"])
        words: list[Words] = [{} for _ in questions]
        for row, owner in enumerate(owners):
            add_words(words[owner], _tokens(examples, row))
        spans: list[list[Span]] = [[] for _ in questions]
        empty = [1.0] * len(questions)
        longest = self.recipe.options.max_answer_tokens
        with judging(model):
            for index, batch in self.batches(model, examples, batch_tokens):
                first, last = (side.cpu() for side in self.scores(model, batch.texts, dtype))
                for i, row in enumerate(index):
                    owner = owners[row]
                    window = _window(examples, row, first[i], last[i])
                    spans[owner] += window.best(1, longest, words[owner])
                    empty[owner] = min(empty[owner], window.empty)
        return list(self._judged(examples, questions, spans, empty))

    def _judged(
        self, examples: Table, questions: Array, spans: list[list[Span]], empty: list[float]
    ) -> Iterator[Found]:
        wanted = [json.loads(examples["answers"][row]) for row in questions]
        asked = self.recipe.options
        may_lack = asked.no_answer if asked.no_answer is not None else not all(wanted)
        chinese = asked.chinese if asked.chinese is not None else _is_chinese(wanted)
        score = exact_and_f1_chinese if chinese else exact_and_f1
        for i, row in enumerate(questions):
            context = examples["context"][row]
            choices = [trimmed(context, span) for span in spans[i]]
            if may_lack:
                choices.append(Span(0, 0, empty[i]))
            start, end, sure = ranked(choices, 1)[0]
            given = context[start:end]
            found = score(wanted[i], given)
            question = examples["question"][row]
            yield Found(question, context, wanted[i], given, sure, found.exact, found.f1)

    def predictions(self, model: Any, examples: Table, count: int = 50) -> Predictions:
        """Questions with their answers, and how often what is said so surely is right."""
        found = self._found(model, examples, 4096, None)
        rows = [
            Prediction(
                f"{one.question} ‖ {one.context[:_SHOWN]}{'…' * (len(one.context) > _SHOWN)}",
                " / ".join(dict.fromkeys(one.wanted)) or "–",
                one.given or "–",
                bool(one.exact),
                one.score,
            )
            for one in found
        ]
        table = calibrated((one.score for one in found), (bool(one.exact) for one in found))
        return Predictions(telling(rows, count), calibration=table, figures=_figures(found))


def _entropy(scores: Tensor, places: Tensor) -> Tensor:
    return F.cross_entropy(scores, places, ignore_index=IGNORE, reduction="sum")


def _figures(found: list[Found]) -> dict[str, float]:
    count = max(1, len(found))
    return {
        "em": sum(one.exact for one in found) / count,
        "f1": sum(one.f1 for one in found) / count,
    }


def _tokens(examples: Table, row: int) -> Iterator[tuple[int | None, tuple[int, int]]]:
    """Word and characters of each token of a window's passage."""
    sides = (examples[name][row].tolist() for name in ("words", "begins", "ends"))
    for word, begin, end in zip(*sides, strict=True):
        yield (None if word < 0 else word), (begin, end)


def _window(examples: Table, row: int, first: Tensor, last: Tensor) -> Window:
    size, begin = int(examples["ids"].lengths[row]), int(examples["from"][row])
    tokens = list(_tokens(examples, row))
    before, behind = [(0, 0)] * begin, [(0, 0)] * (size - begin - len(tokens))
    inside = [begin <= i < begin + len(tokens) for i in range(size)]
    nothing = [i == examples["nothing"][row] for i in range(size)]
    offsets = [*before, *(place for _, place in tokens), *behind]
    words = [*(None for _ in before), *(word for word, _ in tokens), *(None for _ in behind)]
    return Window(first[:size], last[:size], inside, nothing, offsets, words)


def _is_chinese(wanted: list[list[str]]) -> bool:
    """Whether most of the letters of the answers are Chinese."""
    letters = [c for texts in wanted for text in texts for c in text if c.isalnum()]
    return 2 * sum("一" <= c <= "鿿" for c in letters) > len(letters)
