"""Tagging: a label for each word, learnt and read at its first piece.

    objective: tagging
    data: {path: train.conll, validation: dev.conll}

Legend: N tokens, L labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.config import ClassHead, Head
from allformer.core.loss import IGNORE
from allformer.core.precision import widen
from allformer.data.records import Record
from allformer.data.table import Table
from allformer.metrics import accuracy, class_f1, entities, entity_f1
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, Frame
from allformer.train.objectives.objective import Say, register
from allformer.train.predictions import Prediction, Predictions, calibrated
from allformer.train.sections.head import HeadRecipe, Tags
from allformer.train.supervised.data import Column, RecordData, read_each
from allformer.train.supervised.encode_texts import tokenizer_key
from allformer.train.supervised.encode_words import EncodeWords, tags_in, words_in
from allformer.train.supervised.entropy import entropy_of
from allformer.train.supervised.labelled import Labelled
from allformer.train.supervised.labels import label_text
from allformer.train.supervised.packed import Texts, pack_texts, states
from allformer.train.supervised.supervised import confusion, counted, judging, telling

OUTSIDE = "O"
_SPAN = re.compile(r"O|[BIES](-.*)?", re.DOTALL)


@dataclass(frozen=True)
class TagData(RecordData):
    """Words and their tags a record: CoNLL's columns, or lists."""

    tokens: Column = "tokens"
    tags: Column = "tags"
    separator: str = " "  # between two words of the text that is read; Chinese has ""


class TagBatch(NamedTuple):
    """Texts and the label of each token; −100: none."""

    texts: Texts
    labels: Tensor  # N
    tokens: int
    counts: tuple[int, ...]  # words with a label


@register("tagging")
class Tagging(Labelled[TagBatch]):
    """`train(make_recipe({"objective": "tagging", "data": {"path": "a.conll"}}), "runs/a")`"""

    Data = TagData
    columns = ("tokens", "tags")

    # --- data -----------------------------------------------------------------------------------

    def all_labels(self) -> Iterable[str]:
        """Every tag of the training data."""
        read = read_each(self.records.train, lambda record: list(map(label_text, tags_in(record))))
        return chain.from_iterable(read)

    def texts(self) -> Iterable[str]:
        """Sentences, as they are read."""
        join = self.data.separator.join
        return read_each(self.records.train, lambda record: join(words_in(record)))

    def encoded(
        self, records: Iterable[Record], tokenizer: Tokenizer, name: str, say: Say
    ) -> Table:
        """Ids and labels; a sentence that is too long is cut, and its other words count as
        missed."""
        encode = EncodeWords(tokenizer, self.longest, self.labels, self.data.separator)
        said = (self.labels, self.data.separator, tokenizer_key(tokenizer))
        table = self.table(records, encode, name, *said)
        cut = table["cut"].astype(bool)
        lost = table["tags"].lengths - table["begun"].lengths
        words = f"{len(table):,} sentences, {int(table['tags'].lengths.sum()):,} words"
        limit = f"{self.longest} tokens (data.max_length={self.data.max_length})"
        kinds = {
            f"cut to {limit}": int(cut.sum()),
            "words cut off": int(lost[cut].sum()),
            "words without a piece of their own": int(lost[~cut].sum()),
        }
        say(counted(name, words, kinds))
        return table

    # --- model ----------------------------------------------------------------------------------

    def fits(self, head: Head | None) -> bool:
        """One for each token."""
        return isinstance(head, ClassHead) and head.at == "token"

    def head(self) -> HeadRecipe:
        """As the body's family has it."""
        return Tags(self.labels)

    # --- batches and losses -----------------------------------------------------------------------

    def collate(self, examples: Table, index: Array, frame: Frame | None = None) -> TagBatch:
        """Rows end to end; filler has no label."""
        texts = pack_texts(examples, index, frame)
        labels = np.full(len(texts.ids), IGNORE, np.int64)
        flat = examples["labels"].take(index).flat()
        labels[: len(flat)] = flat
        count = int(examples["begun"].lengths[index].sum())
        return TagBatch(texts, torch.from_numpy(labels), len(flat), (count,))

    def loss(
        self,
        model: Any,
        batch: TagBatch,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the words' first pieces."""
        logits = self.scores(model, batch.texts, dtype)
        loss = entropy_of(logits, batch.labels, smoothing)
        return loss, (entropy_of(logits, batch.labels).detach() if smoothing else loss.detach())

    def scores(self, model: Any, texts: Texts, dtype: torch.dtype | None = None) -> Tensor:
        """What the head says of each token, N L, in at least fp32."""
        return widen(model.head(states(model, texts, dtype)))

    # --- figures ----------------------------------------------------------------------------------

    def measured(self, model: Any) -> tuple[str, ...]:
        """Those of entities, or of other tags."""
        if not marks_entities(model.head.config.labels):
            return ("f1", "accuracy")
        return ("f1", "precision", "recall", "accuracy")

    def metrics(
        self,
        model: Any,
        examples: Table,
        *,
        batch_tokens: int = 4096,
        dtype: torch.dtype | None = None,
    ) -> dict[str, float]:
        """f1, precision and recall of entities by seqeval's definition, accuracy of words; with
        tags that mark no entities, f1 is the mean of the tags'."""
        return self._judged(model, examples, batch_tokens, dtype).figures()

    def _judged(
        self, model: Any, examples: Table, batch_tokens: int, dtype: torch.dtype | None
    ) -> _Judged:
        """The tag of every word, and how sure it is; a word that is not read has "O", and 0."""
        names = model.head.config.labels
        given: list[list[str]] = [[OUTSIDE] * n for n in examples["tags"].lengths]
        sure: list[list[float]] = [[0.0] * n for n in examples["tags"].lengths]
        with judging(model):
            for index, batch in self.batches(model, examples, batch_tokens):
                logits = self.scores(model, batch.texts, dtype)
                score, which = logits[batch.labels != IGNORE].softmax(-1).max(-1)
                found = iter(zip(which.tolist(), score.tolist(), strict=True))
                for i in index:
                    for word in examples["begun"][i]:
                        label, probability = next(found)
                        given[i][word], sure[i][word] = names[label], probability
        wanted = [[names[tag] for tag in examples["tags"][i]] for i in range(len(examples))]
        return _Judged(names, wanted, given, sure)

    def predictions(self, model: Any, examples: Table, count: int = 50) -> Predictions:
        """Sentences with what was found in them, and how tags are confused word by word."""
        judged = self._judged(model, examples, 4096, None)
        rows = [_shown(examples, i, judged) for i in range(len(examples))]
        wanted, given = (list(chain.from_iterable(x)) for x in (judged.wanted, judged.given))
        names = judged.names if OUTSIDE in {*judged.names} else (*judged.names, OUTSIDE)
        numbers = {name: i for i, name in enumerate(names)}
        return Predictions(
            telling(rows, count),
            names,
            confusion((numbers[x] for x in wanted), (numbers[x] for x in given), len(names)),
            calibrated(
                chain.from_iterable(judged.sure),
                (a == b for a, b in zip(wanted, given, strict=True)),
            ),
            judged.figures(),
        )


class _Judged(NamedTuple):
    """By sentence and word: the right tag, the one given, and its probability."""

    names: tuple[str, ...]
    wanted: list[list[str]]
    given: list[list[str]]
    sure: list[list[float]]

    def figures(self) -> dict[str, float]:
        wanted, given = (list(chain.from_iterable(side)) for side in (self.wanted, self.given))
        right = accuracy(wanted, given)
        if not marks_entities(self.names):
            return {"f1": class_f1(wanted, given).macro, "accuracy": right}
        found = entity_f1(self.wanted, self.given).micro
        both = {"precision": found.precision, "recall": found.recall}
        return {"f1": found.f1, **both, "accuracy": right}


def marks_entities(labels: Sequence[str]) -> bool:
    """Whether they are O, B-PER, I-PER, …; those of parts of speech are not."""
    return OUTSIDE in labels and all(map(_SPAN.fullmatch, labels))


def _shown(examples: Table, i: int, judged: _Judged) -> Prediction:
    text, wanted, given = examples["text"][i], judged.wanted[i], judged.given[i]
    if marks_entities(judged.names):
        ends = np.cumsum(examples["widths"][i])
        step = (len(text) - int(ends[-1])) // max(1, len(ends) - 1)

        def told(tags: list[str]) -> str:
            spans = []
            for kind, first, last in entities(tags):
                begin = int(ends[first] - examples["widths"][i][first]) + step * first
                spans.append(f"{kind}: {text[begin : int(ends[last]) + step * last]}")
            return "; ".join(spans) or "–"

        sides = told(wanted), told(given)
    else:
        sides = " ".join(wanted), " ".join(given)
    return Prediction(text, *sides, wanted == given, min(judged.sure[i]))
