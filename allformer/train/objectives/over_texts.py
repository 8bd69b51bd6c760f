"""What objectives over plain texts share: how texts are found, tokenised, and come epoch by epoch.

Those that rows are made of for an epoch see documents (`rows`); how they become rows is theirs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator

from allformer.data.table import Table
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import B
from allformer.train.encoded_texts import EncodedTexts
from allformer.train.objectives.objective import E, Objective, Say
from allformer.train.sections.data import TextData
from allformer.train.sections.recipe import Recipe
from allformer.train.sections.vocabulary import Vocabulary
from allformer.train.texts import TextSets, open_texts


class OverTexts(Objective[E, B]):
    """`rows(table, epoch, number)` makes an epoch's rows of its documents."""

    Data = TextData
    sentences: bool = False  # whether documents come with their `cuts`

    def __init__(self, recipe: Recipe | None = None) -> None:
        super().__init__(recipe)
        self._sets: TextSets | None = None
        self._encoded: EncodedTexts | None = None
        self._tokenizer: Tokenizer | None = None

    def open(self, corpus: TextSets | Iterable[str] | None = None) -> None:
        """Texts of files, of a public corpus, or those that are given."""
        self._sets = open_texts(self.recipe.data, corpus)

    def texts(self) -> Iterable[str]:
        """All of them."""
        assert self._sets is not None
        return self._sets.texts()

    def fingerprint(self) -> str:
        """Of the files, whatever their size."""
        assert self._sets is not None
        return self._sets.fingerprint()

    def encode(self, tokenizer: Tokenizer, say: Say) -> None:
        """Tokenised once, into memory or into the cache folder."""
        assert self._sets is not None
        self._tokenizer = tokenizer
        self._encoded = EncodedTexts(
            self._sets,
            self.recipe.data,
            tokenizer,
            seed=self.recipe.train.seed,
            say=say,
            cuts=self.sentences,
        )

    @property
    def encoded(self) -> EncodedTexts:
        """The texts as ids, after `encode`."""
        assert self._encoded is not None
        return self._encoded

    @property
    def pieces(self) -> Tokenizer:
        """The tokeniser, after `encode`."""
        assert self._tokenizer is not None
        return self._tokenizer

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokeniser's."""
        return Vocabulary.of(self.pieces)

    @abstractmethod
    def rows(self, table: Table, epoch: int, number: int) -> E:
        """The rows of the documents in `table`, which are part `number` of an epoch."""

    def examples(self, epoch: int) -> E:
        """The first part of an epoch: all of it, but for a stream."""
        return next(self.chunks(epoch))

    def chunks(self, epoch: int, first: int = 0) -> Iterator[E]:
        """An epoch's rows, part by part."""
        for number, table in enumerate(self.encoded.chunks(epoch, first), first):
            yield self.rows(table, epoch, number)

    @property
    def rows_of_batch(self) -> int:
        """Rows of a batch whose rows all have the longest length."""
        rows = max(1, self.recipe.train.batch_tokens // self.longest)
        return min(rows, self.recipe.train.batch_rows or rows)
