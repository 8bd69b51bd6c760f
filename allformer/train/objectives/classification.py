"""Classification of a text, or of a pair of texts: one label, several at once, or a number.

    objective: {is: classification, problem: single}      # or multi, or regression
    data: {path: reviews.csv, text: sentence, label: sentiment}

Legend: N tokens, R rows (texts), L labels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.config import ClassHead, Head
from allformer.core.loss import IGNORE
from allformer.data.records import Record
from allformer.data.table import Table
from allformer.errors import ConfigError
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, Frame
from allformer.train.objectives.objective import Say, register
from allformer.train.predictions import Predictions, calibrated
from allformer.train.sections.head import PROBLEMS, Classes, HeadRecipe
from allformer.train.sections.section import one_of
from allformer.train.sections.vocabulary import Vocabulary
from allformer.train.supervised.class_figures import FIGURES, Shown, figures
from allformer.train.supervised.data import Column, RecordData, read_each, text_in
from allformer.train.supervised.encode_texts import EncodeTexts, tokenizer_key
from allformer.train.supervised.entropy import entropy_of
from allformer.train.supervised.labelled import Labelled, LabelOptions
from allformer.train.supervised.labels import label_text, labels_in
from allformer.train.supervised.packed import (
    Texts,
    pack_texts,
)
from allformer.train.supervised.scored import text_scores
from allformer.train.supervised.supervised import (
    confusion,
    counted,
    judging,
    telling,
)

VALUE = "value"  # what a regression calls its one number


@dataclass(frozen=True)
class ClassData(RecordData):
    """A text and its label a record; `text_pair` is a second text that is read with it."""

    text: Column = "text"
    text_pair: Column | None = None
    label: Column = "label"
    separator: str = ","  # between several labels of a text file; JSON has lists


@dataclass(frozen=True)
class ClassOptions(LabelOptions):
    """What is told of a text: one of the labels, several at once, or a number."""

    problem: Annotated[str, one_of(*PROBLEMS)] = "single"


class ClassBatch(NamedTuple):
    """Texts and what they are: R numbers of labels, or R L values; −100 or NaN: filler."""

    texts: Texts
    labels: Tensor
    tokens: int
    counts: tuple[int, ...]  # labels


@register("classification")
class Classification(Labelled[ClassBatch]):
    """`train(make_recipe({"objective": "classification", "data": {"path": "a.csv"}}), "runs/a")`"""

    Data, Options = ClassData, ClassOptions
    columns = ("text", "text_pair", "label")

    # --- labels ---------------------------------------------------------------------------------

    @property
    def problem(self) -> str:
        """single, multi or regression: what the options say, or the recipe's head."""
        asked: str = self.recipe.options.problem
        head = getattr(self.recipe.model, "head", None)
        other = head.problem if isinstance(head, Classes) else "single"
        if asked != "single" and other not in ("single", asked):
            raise ConfigError(
                f"objective.problem={asked} and model.head.problem={other} differ; say one of them"
            )
        return other if asked == "single" else asked

    def found_labels(self) -> tuple[str, ...]:
        """Those of the training data; a number has but its name."""
        return (VALUE,) if self.problem == "regression" else super().found_labels()

    def all_labels(self) -> Iterable[str]:
        """Every label of the training data, as often as it is there."""

        def read(record: Record) -> list[str]:
            value, several = record.get("label"), self.problem == "multi"
            values = labels_in(value, self.data.separator) if several else [value]
            return list(map(label_text, values))

        return chain.from_iterable(read_each(self.records.train, read))

    # --- data -----------------------------------------------------------------------------------

    def texts(self) -> Iterable[str]:
        """Both texts of a pair."""
        names = [name for name in ("text", "text_pair") if name in self.named]
        read = read_each(self.records.train, lambda record: [text_in(record, n) for n in names])
        return chain.from_iterable(read)

    def encoded(
        self, records: Iterable[Record], tokenizer: Tokenizer, name: str, say: Say
    ) -> Table:
        """Ids, segments and labels; a text that is too long is cut, of a pair the longer one."""
        encode = EncodeTexts(
            tokenizer, self.longest, "text_pair" in self.named, self.problem, self.labels,
            self.data.separator,
        )  # fmt: skip
        said = (self.problem, self.labels, self.data.separator, tokenizer_key(tokenizer))
        table = self.table(records, encode, name, *said)
        what = "pairs" if "text_pair" in self.named else "texts"
        cut = f"cut to {self.longest} tokens (data.max_length={self.data.max_length})"
        say(counted(name, f"{len(table):,} {what}", {cut: int(table["cut"].sum())}))
        return table

    # --- model ----------------------------------------------------------------------------------

    def fits(self, head: Head | None) -> bool:
        """One for whole texts."""
        return isinstance(head, ClassHead) and head.at != "token"

    def head(self) -> HeadRecipe:
        """As the body's family has it."""
        return Classes(self.labels, self.problem)

    def config(self, vocabulary: Vocabulary) -> Any:
        """The head has the labels and says the problem, so that the tasks know both."""
        tree = super().config(vocabulary)
        if self.problem == "regression" and len(self.labels) > 1:
            raise ConfigError(
                f"model.head.labels has {len(self.labels)} names, but a regression gives one "
                f"number; name one, or none"
            )
        return replace(tree, head=replace(tree.head, problem=PROBLEMS[self.problem]))

    # --- batches and losses -----------------------------------------------------------------------

    def collate(self, examples: Table, index: Array, frame: Frame | None = None) -> ClassBatch:
        """Rows end to end; filler has no label."""
        texts = pack_texts(examples, index, frame)
        labels = np.asarray(examples["label"][index])
        whole = labels.dtype.kind != "f"
        rows = texts.layout.rows
        filled = np.full((rows, *labels.shape[1:]), IGNORE if whole else np.nan, labels.dtype)
        filled[: len(index)] = labels
        real = int(examples["ids"].lengths[index].sum())
        return ClassBatch(texts, torch.from_numpy(filled), real, (labels.size,))

    def scores(self, model: Any, texts: Texts, dtype: torch.dtype | None = None) -> Tensor:
        """What the head says of each text, R L, in at least fp32."""
        return text_scores(model, texts, dtype)

    def loss(
        self,
        model: Any,
        batch: ClassBatch,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy; of several labels each one's own, of a number the squared error.

        Smoothing moves ε of a class to all, of several labels ε/2 to the other answer.
        """
        logits, labels = self.scores(model, batch.texts, dtype), batch.labels
        if not labels.is_floating_point():
            loss = entropy_of(logits, labels, smoothing)
            return loss, (entropy_of(logits, labels).detach() if smoothing else loss.detach())
        labels = labels.reshape(logits.shape).to(logits)
        real = ~labels.isnan()
        labels = labels.nan_to_num()
        if model.head.config.problem == PROBLEMS["regression"]:
            loss = ((logits - labels).square() * real).sum()
            return loss, loss.detach()
        plain = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        nll = (plain * real).sum()
        if not smoothing:
            return nll, nll.detach()
        softer = labels * (1 - smoothing) + smoothing / 2
        loss = F.binary_cross_entropy_with_logits(logits, softer, reduction="none")
        return (loss * real).sum(), nll.detach()

    # --- figures ----------------------------------------------------------------------------------

    def measured(self, model: Any) -> tuple[str, ...]:
        """Those that fit the problem."""
        return FIGURES[self.problem]

    def metrics(
        self,
        model: Any,
        examples: Table,
        *,
        batch_tokens: int = 4096,
        dtype: torch.dtype | None = None,
    ) -> dict[str, float]:
        """accuracy, f1 (the mean of the classes') and matthews; of several labels accuracy (all of
        a text are right), f1 (of all decisions) and f1_macro; of a number pearson and spearman."""
        scores = self._all(model, examples, batch_tokens, dtype)
        return figures(scores, examples["label"])

    def _all(
        self, model: Any, examples: Table, batch_tokens: int, dtype: torch.dtype | None
    ) -> Array:
        """The scores of all examples, in their order: n L, as probabilities of classes."""
        out: Array = np.zeros((len(examples), len(model.head.config.labels)))
        problem = model.head.config.problem
        with judging(model):
            for index, batch in self.batches(model, examples, batch_tokens):
                x = self.scores(model, batch.texts, dtype)[: len(index)]
                if problem == PROBLEMS["single"]:
                    x = x.softmax(-1)
                elif problem == PROBLEMS["multi"]:
                    x = x.sigmoid()
                out[index] = x.double().cpu().numpy()
        return out

    def predictions(self, model: Any, examples: Table, count: int = 50) -> Predictions:
        """What it says of some texts; of classes also how they are confused, and how sure it is."""
        scores, wanted = self._all(model, examples, 4096, None), np.asarray(examples["label"])
        names, found = model.head.config.labels, figures(scores, wanted)
        shown = Shown(examples, names)
        if model.head.config.problem == PROBLEMS["regression"]:
            rows = [shown.value(i, wanted[i], scores[i, 0]) for i in range(len(scores))]
            return Predictions(tuple(rows[:count]), figures=found)
        if wanted.ndim == 2:
            rows = [shown.several(i, wanted[i], scores[i]) for i in range(len(scores))]
            right = (wanted > 0.5) == (scores > 0.5)
            sure = np.maximum(scores, 1 - scores)
            table = calibrated(sure.ravel().tolist(), right.ravel().tolist())
            return Predictions(telling(rows, count), names, (), table, found)
        given = scores.argmax(1)
        rows = [shown.one(i, wanted[i], given[i], scores[i]) for i in range(len(scores))]
        sure = scores.max(1)
        return Predictions(
            telling(rows, count),
            names,
            confusion(wanted.tolist(), given.tolist(), len(names)),
            calibrated(sure.tolist(), (given == wanted).tolist()),
            found,
        )
