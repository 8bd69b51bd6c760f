"""Objectives whose head has labels: named in the recipe, else the model's own, else found in the
data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from allformer.data.records import Record, Records
from allformer.data.table import Table
from allformer.train.batch import B
from allformer.train.objectives.objective import Lengths
from allformer.train.sections.section import Section
from allformer.train.sections.vocabulary import Vocabulary
from allformer.train.supervised.labels import found_labels, given_labels
from allformer.train.supervised.supervised import Supervised


@dataclass(frozen=True)
class LabelOptions(Section, section="objective"):
    """`labels` left out are those of the head, else those that the training data has."""

    labels: tuple[str, ...] = ()


class Labelled(Supervised[Table, B]):
    """One row of a table is an example."""

    Options = LabelOptions

    @property
    def labels(self) -> tuple[str, ...]:
        """By number; none as long as nothing but the data can say."""
        return given_labels(self.recipe)

    def open(self, corpus: Any = None) -> None:
        """The records; labels that nobody has named are found in them, and kept in the recipe."""
        super().open(corpus)
        if not self.labels:
            names = self.own_labels() or self.found_labels()
            self.recipe = replace(self.recipe, options=replace(self.recipe.options, labels=names))

    def own_labels(self) -> tuple[str, ...]:
        """Of a head that the model comes with and keeps."""
        tree = self.recipe.model.tree(self.shape, self.longest)
        given = getattr(self.recipe.model, "head", None) is not None
        return tree.head.labels if self.fits(tree.head) and not given else ()

    def found_labels(self) -> tuple[str, ...]:
        """Those of the training data, sorted."""
        return found_labels(self.all_labels(), _where(self.records.train))

    @abstractmethod
    def all_labels(self) -> Iterable[str]:
        """Every label of the training data, as often as it is there."""

    def config(self, vocabulary: Vocabulary) -> Any:
        """The head has the labels, so that the tasks know them."""
        tree = super().config(vocabulary)
        return replace(tree, head=replace(tree.head, labels=self.labels or tree.head.labels))

    def lengths(self, examples: Table) -> tuple[Lengths, Lengths]:
        """Of the whole row, special tokens included."""
        return examples["ids"].lengths, examples["ids"].lengths


def _where(records: Iterable[Record]) -> str:
    return records.description if isinstance(records, Records) else "the training data"
