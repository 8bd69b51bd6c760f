"""Multiple choice: which of several texts goes best with a question, or on from a beginning.

    objective: choice
    data: {path: swag.csv, question: sent1, beginning: sent2, choices: [ending0, ending1, ending2]}

Each choice is read behind the question and gets one number; a softmax over the choices of a
question says which it is (Radford et al., 2018, section 3.3; transformers' …ForMultipleChoice).
Questions may have different numbers of choices.

Legend: R rows (texts: a question with one choice each), Q questions, C the most choices of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.config import ChoiceHead, EncoderOnly, Head
from allformer.core.loss import IGNORE
from allformer.core.precision import widen
from allformer.data.records import Record
from allformer.data.table import Table
from allformer.errors import ConfigError
from allformer.metrics import accuracy
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, Frame
from allformer.train.objectives.objective import Lengths, Say, register
from allformer.train.predictions import Prediction, Predictions, calibrated
from allformer.train.sections.head import Choice, HeadRecipe
from allformer.train.sections.section import at_least
from allformer.train.sections.vocabulary import Vocabulary
from allformer.train.supervised.data import Column, RecordData, read_each
from allformer.train.supervised.encode_choices import EncodeChoices, question_in
from allformer.train.supervised.encode_texts import tokenizer_key
from allformer.train.supervised.packed import Texts, first_places, lay_texts, states
from allformer.train.supervised.supervised import Supervised, counted, judging, telling


@dataclass(frozen=True)
class ChoiceData(RecordData):
    """A question, its choices and the right one a record.

    `choices` is a column that has a list, or a list of columns with one each; `beginning` a text
    that each of them goes on from (SWAG), or that is asked of a passage (RACE: the passage is the
    question). `label` has the right one's number from 0, its letter, or its text.
    """

    question: Column = "question"
    beginning: Column | None = None
    choices: Column | tuple[Column, ...] = "choices"
    label: Column = "label"
    max_length: Annotated[int, at_least(4)] = 128  # tokens of a question with one choice


class ChoiceBatch(NamedTuple):
    """Texts, and which rows are the choices of which question."""

    texts: Texts
    rows: Tensor  # Q C
    there: Tensor  # Q C, False: the question has fewer
    labels: Tensor  # Q; −100: filler
    tokens: int
    counts: tuple[int, ...]  # questions


@register("choice")
class MultipleChoice(Supervised[Table, ChoiceBatch]):
    """`train(make_recipe({"objective": "choice", "data": {"path": "a.jsonl"}}), "runs/a")`"""

    Data = ChoiceData
    columns = ("question", "beginning", "choices", "label")

    # --- data -----------------------------------------------------------------------------------

    @property
    def named(self) -> dict[str, Column]:
        """The file's names; choices in columns of their own are `choice 0`, `choice 1`, …"""
        found = super().named
        if isinstance(self.data.choices, tuple):
            found.pop("choices")
            found |= dict(zip(self.several, self.data.choices, strict=True))
        return found

    @property
    def several(self) -> tuple[str, ...]:
        """What we call those columns; none where one column has a list."""
        given = self.data.choices
        return tuple(f"choice {i}" for i in range(len(given))) if isinstance(given, tuple) else ()

    def texts(self) -> Iterable[str]:
        """Questions and choices."""

        def read(record: Record) -> list[str]:
            found = question_in(record, self.several)
            return [found.text, *found.choices]

        return chain.from_iterable(read_each(self.records.train, read))

    def encoded(
        self, records: Iterable[Record], tokenizer: Tokenizer, name: str, say: Say
    ) -> Table:
        """Ids, sizes and labels; of a question and a choice that are too long the longer is cut."""
        encode = EncodeChoices(tokenizer, self.longest, self.several)
        table = self.table(records, encode, name, self.several, tokenizer_key(tokenizer))
        cut = f"choices cut to {self.longest} tokens (data.max_length={self.data.max_length})"
        say(counted(name, f"{len(table):,} questions", {cut: int(table["cut"].sum())}))
        most = int(table["ids"].lengths.max())
        if name == "training" and most > self.recipe.train.batch_tokens:
            raise ConfigError(
                f"train.batch_tokens={self.recipe.train.batch_tokens} does not hold a question "
                f"with all its choices, of which the longest has {most:,} tokens; set it to "
                f"{most}, or lower data.max_length"
            )
        return table

    def lengths(self, examples: Table) -> tuple[Lengths, Lengths]:
        """Of all choices together: one batch holds them."""
        return examples["ids"].lengths, examples["ids"].lengths

    # --- model ----------------------------------------------------------------------------------

    def fits(self, head: Head | None) -> bool:
        """One that chooses among texts."""
        return isinstance(head, ChoiceHead)

    def head(self) -> HeadRecipe:
        """As the body's family has it."""
        return Choice()

    def config(self, vocabulary: Vocabulary) -> Any:
        """An encoder whose pooler is read."""
        tree = super().config(vocabulary)
        if not isinstance(tree, EncoderOnly):
            raise ConfigError(
                f"model is a {type(tree).__name__}, but objective={self.name!r} reads an encoder's "
                f"pooler; choose an encoder"
            )
        return tree

    # --- batches and losses -----------------------------------------------------------------------

    def collate(self, examples: Table, index: Array, frame: Frame | None = None) -> ChoiceBatch:
        """The choices of all questions end to end, and a grid that says whose they are."""
        ids, sizes = examples["ids"].take(index), examples["sizes"].take(index)
        types: Any = examples.columns.get("types")
        each, questions, wide = np.asarray(sizes.lengths, np.int64), len(index), None
        most = int(each.max())
        if frame is not None:
            questions, most = frame.sentences, int(examples["sizes"].lengths.max())
            wide = replace(frame, sentences=questions * most)
        flat = None if types is None else types.take(index).flat()
        texts = lay_texts(sizes.flat(), ids.flat(), flat, wide)
        there = np.zeros((questions, most), bool)
        there[: len(index)] = np.arange(most) < each[:, None]
        rows = np.zeros((questions, most), np.int64)
        rows[there] = np.arange(each.sum())
        labels = np.full(questions, IGNORE, np.int64)
        labels[: len(index)] = np.asarray(examples["label"])[index]
        return ChoiceBatch(
            texts,
            torch.from_numpy(rows),
            torch.from_numpy(there),
            torch.from_numpy(labels),
            int(ids.lengths.sum()),
            (len(index),),
        )

    def scores(self, model: Any, batch: ChoiceBatch, dtype: torch.dtype | None = None) -> Tensor:
        """log p of each choice, Q C, in at least fp32; far below all others where there is none."""
        x = states(model, batch.texts, dtype)[first_places(batch.texts.layout)]
        found = widen(model.head(model.pooled(x[:, None])))[:, 0]  # R
        found = found[batch.rows]
        return found.masked_fill(~batch.there, torch.finfo(found.dtype).min).log_softmax(-1)

    def loss(
        self,
        model: Any,
        batch: ChoiceBatch,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy; smoothing moves ε of a question to all of its choices."""
        scores, labels = self.scores(model, batch, dtype), batch.labels
        real = labels != IGNORE
        right = scores.gather(1, labels.clamp_min(0)[:, None])[:, 0]
        nll = -(right * real).sum()
        if not smoothing:
            return nll, nll.detach()
        among = (scores * batch.there).sum(1) / batch.there.sum(1).clamp_min(1)
        return (1 - smoothing) * nll - smoothing * (among * real).sum(), nll.detach()

    # --- figures ----------------------------------------------------------------------------------

    def measured(self, model: Any) -> tuple[str, ...]:
        """How often the right choice is taken."""
        return ("accuracy",)

    def metrics(
        self,
        model: Any,
        examples: Table,
        *,
        batch_tokens: int = 4096,
        dtype: torch.dtype | None = None,
    ) -> dict[str, float]:
        """accuracy: how often the right choice is the likeliest."""
        given, _ = self._all(model, examples, batch_tokens, dtype)
        return {"accuracy": accuracy(np.asarray(examples["label"]), given)}

    def _all(
        self, model: Any, examples: Table, batch_tokens: int, dtype: torch.dtype | None
    ) -> tuple[Array, Array]:
        """The choice of each question, in their order, and its share of the probability."""
        given, sure = np.zeros(len(examples), np.int64), np.zeros(len(examples))
        with judging(model):
            for index, batch in self.batches(model, examples, batch_tokens):
                best = self.scores(model, batch, dtype).max(-1)
                given[index] = best.indices.cpu().numpy()
                sure[index] = best.values.exp().double().cpu().numpy()
        return given, sure

    def predictions(self, model: Any, examples: Table, count: int = 50) -> Predictions:
        """Questions, the choice that is right and the one that was made, and how sure it is."""
        given, sure = self._all(model, examples, 4096, None)
        right = given == np.asarray(examples["label"])
        rows = [
            Prediction(
                examples["text"][i],
                examples["right"][i],
                examples["choices"][i].split("\n")[given[i]],
                bool(right[i]),
                float(sure[i]),
            )
            for i in range(len(examples))
        ]
        table = calibrated(sure.tolist(), right.tolist())
        figures = {"accuracy": float(right.mean())}
        return Predictions(telling(rows, count), calibration=table, figures=figures)
