"""What the objectives with labels have in common: one model that reads, a head of its own, records.

A head that the recipe's model has already and that fits stays; else the objective puts its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from allformer.config import Head
from allformer.data.batches import token_batches
from allformer.data.records import Record
from allformer.data.table import Encode, Table, build_table
from allformer.errors import ConfigError
from allformer.text.framed import framed
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, B, moved
from allformer.train.objectives.objective import E, Objective, Say
from allformer.train.predictions import Prediction
from allformer.train.room import within
from allformer.train.sections.common import TokenizerRecipe
from allformer.train.sections.head import HeadRecipe
from allformer.train.sections.recipe import Recipe
from allformer.train.sections.vocabulary import Vocabulary
from allformer.train.supervised.data import (
    Column,
    Held,
    RecordData,
    fingerprint,
    open_labelled,
)
from allformer.train.supervised.judging import judging as judging


class Supervised(Objective[E, B]):
    """Records in, a head's scores out."""

    shape = "encoder"
    perplexity = False
    columns: ClassVar[tuple[str, ...]] = ()  # of the data section, each the name of a column

    def __init__(self, recipe: Recipe | None = None) -> None:
        super().__init__(recipe)
        self.records = Held((), ())
        self._train: E | None = None
        self._validation: E | None = None

    # --- data -----------------------------------------------------------------------------------

    def open(self, corpus: Any = None) -> None:
        """Training and validation records; where no validation is named, some are held out."""
        self.records = open_labelled(self.data, self.named, corpus, by=self.columns[0])

    @property
    def data(self) -> Any:
        """The data section."""
        assert isinstance(self.recipe.data, RecordData)
        return self.recipe.data

    @property
    def named(self) -> dict[str, Column]:
        """Our names of the columns that are read, and the file's."""
        names = {ours: getattr(self.data, ours) for ours in self.columns}
        return {ours: theirs for ours, theirs in names.items() if theirs is not None}

    def fingerprint(self) -> str:
        """Of the training records, labels included."""
        return fingerprint(self.records.train)

    def tokenizer(self, trained: Tokenizer) -> Tokenizer:
        """One that is trained here gets `<s>` before a text and `</s>` after it; a checkpoint's
        stays as it is."""
        if not isinstance(self.recipe.tokenizer, TokenizerRecipe):
            return trained
        types = self.recipe.model.tree(self.shape, self.longest).reader.source.types
        return framed(trained, self.longest, types=types > 1)

    def encode(self, tokenizer: Tokenizer, say: Say) -> None:
        """Both splits as ids; what is cut or left out is said."""
        self._train = self.encoded(self.records.train, tokenizer, "training", say)
        self._validation = self.encoded(self.records.validation, tokenizer, "validation", say)

    @abstractmethod
    def encoded(self, records: Iterable[Record], tokenizer: Tokenizer, name: str, say: Say) -> E:
        """One split."""

    def table(self, records: Iterable[Record], encode: Encode, name: str, *key: Any) -> Table:
        """Records through an encoder: in memory, or in `data.cache`, found again by `key`."""
        if self.data.cache is None:
            return build_table(records, encode)
        told = "/".join(map(str, [self.name, fingerprint(records), self.longest, *key]))
        return build_table(records, encode, Path(self.data.cache) / name, key=told)

    def examples(self, epoch: int) -> E:
        """Each time the same."""
        assert self._train is not None
        return self._train

    @property
    def validation(self) -> E:
        """The held-out examples."""
        assert self._validation is not None
        return self._validation

    # --- model ----------------------------------------------------------------------------------

    @property
    def longest(self) -> int:
        """The most tokens of a text: a batch holds one at least."""
        most: int = self.data.max_length
        return min(most, self.recipe.train.batch_tokens)

    def config(self, vocabulary: Vocabulary) -> Any:
        """The recipe's model under a head that fits.

        Texts are cut to what the model has positions for; the recipe says so from then on.
        """
        self._check_recipe()
        tree = super().config(vocabulary)
        self.recipe = within(self.recipe, tree)
        if self.fits(tree.head):
            return tree
        asked = getattr(self.recipe.model, "head", None)
        if asked is not None:
            raise ConfigError(
                f"model.head.kind={asked.named} is not what objective={self.name!r} learns; leave "
                f"model.head out, or set it to {self.head().named}"
            )
        return self.head().put(tree)

    def _check_recipe(self) -> None:
        """Settings of other objectives, which would change nothing here."""
        z_loss, dropout = self.recipe.train.z_loss, getattr(self.recipe.tokenizer, "dropout", 0.0)
        if z_loss:
            raise ConfigError(
                f"train.z_loss={z_loss} is for scores over a vocabulary, which objective="
                f"{self.name!r} has none of; remove it"
            )
        if dropout:
            raise ConfigError(
                f"tokenizer.dropout={dropout} cuts texts anew each epoch, but objective="
                f"{self.name!r} cuts them once; remove it"
            )

    @abstractmethod
    def fits(self, head: Head | None) -> bool:
        """Whether a head is one that this objective trains."""

    @abstractmethod
    def head(self) -> HeadRecipe:
        """The head where the recipe's model has none that fits."""

    # --- a whole set ------------------------------------------------------------------------------

    def batches(self, model: Any, examples: E, budget: int = 4096) -> Iterator[tuple[Array, B]]:
        """All examples once, on the model's device: their numbers and the batch."""
        lengths = self.lengths(examples)
        budget = max(budget, *(int(side.max()) for side in lengths))
        for index in token_batches(*lengths, budget, seed=0, epoch=0, pool=1000):
            yield index, moved(self.collate(examples, index), model.device)


def telling(rows: Sequence[Prediction], count: int) -> tuple[Prediction, ...]:
    """Those to show: up to half of them mistakes, the surest first, then others in their order."""
    wrong = [row for row in rows if row.right is False]
    wrong.sort(key=lambda row: -(row.score or 0.0))
    wrong = wrong[: max(1, count // 2)]
    shown = set(map(id, wrong))
    others = [row for row in rows if id(row) not in shown]
    return (*wrong, *others[: max(0, count - len(wrong))])


def confusion(wanted: Iterable[int], given: Iterable[int], size: int) -> tuple[Any, ...]:
    """`confusion([0, 1], [1, 1], 2)` → ((0, 1), (0, 1)): row wanted, column given."""
    table = [[0] * size for _ in range(size)]
    for a, b in zip(wanted, given, strict=True):
        table[a][b] += 1
    return tuple(map(tuple, table))


def counted(name: str, what: str, counts: Mapping[str, int]) -> str:
    """`counted("training", "9 texts", {"cut": 2})`: a line that leaves out what did not happen."""
    more = [f"{count:,} {said}" for said, count in counts.items() if count]
    return "; ".join([f"{name}: {what}", *more])
