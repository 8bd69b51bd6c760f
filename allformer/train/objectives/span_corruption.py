"""Span corruption (T5): spans of a text are hidden behind sentinels, and said one after the other.

    objective: {is: span-corruption, rate: 0.15, mean_span: 3}

`rows: stream` cuts all documents end to end into rows whose input is exactly data.max_length and
whose targets are all of one length too (512 and 114 in the paper): no padding, one size of batch.
`rows: documents` keeps each document by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from allformer.checkpoint.older_run import closed
from allformer.core.layout import Grid
from allformer.data.documents import StreamRows, cut_documents, cut_stream
from allformer.data.draws import Draws
from allformer.data.encoded import Rows
from allformer.data.table import Table
from allformer.errors import ConfigError, DataError
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, Frame, pack_rows
from allformer.train.objectives.noise_spans import Noise, noised
from allformer.train.objectives.objective import Lengths, Say, register
from allformer.train.objectives.over_texts import OverTexts
from allformer.train.objectives.ragged import flat_rows, surrounded
from allformer.train.objectives.text_to_text import PairBatch, TextToText, around, teacher_forced
from allformer.train.objectives.written import written
from allformer.train.predictions import Predictions
from allformer.train.sections.common import TokenizerRecipe
from allformer.train.sections.recipe import Recipe
from allformer.train.sections.section import Section, one_of, positive, share

_SENTINELS = 100  # T5's
_VALIDATION = 1 << 32  # no epoch has this number: the noise of validation


@dataclass(frozen=True)
class SpanOptions(Section, section="objective"):
    """The figures are T5's."""

    rate: Annotated[float, positive("0.15"), share("0.15")] = 0.15  # of the tokens are hidden
    mean_span: Annotated[float, positive("3")] = 3.0  # tokens, on average
    rows: Annotated[str, one_of("stream", "documents")] = "stream"


@dataclass(frozen=True, eq=False)
class NoisyRows:
    """Rows before they are noised, and what is drawn for them."""

    rows: Rows | StreamRows | None  # None: not even one
    count: int
    draws: Draws

    def take(self, index: Array) -> Rows:
        """Some of them."""
        assert self.rows is not None
        if isinstance(self.rows, Rows):
            return self.rows.take(index)
        matrix = self.rows.take(index).astype(np.int64)
        return flat_rows(matrix.ravel(), np.full(len(index), matrix.shape[1]))

    @property
    def lengths(self) -> Lengths:
        """Tokens of each row."""
        whole = np.zeros(0, np.int64) if self.rows is None else self.rows.lengths
        return np.asarray(whole[: self.count], np.int64)


@register("span-corruption")
class SpanCorruption(OverTexts[NoisyRows, PairBatch], TextToText[NoisyRows]):
    """T5's pre-training: `SpanCorruption(make_recipe({"objective": "span-corruption", …}))`."""

    Options = SpanOptions
    specials = tuple(f"<extra_id_{i}>" for i in range(_SENTINELS))

    def __init__(self, recipe: Recipe | None = None) -> None:
        super().__init__(recipe)
        options = self.recipe.options
        self.options = options if isinstance(options, SpanOptions) else SpanOptions()
        self.noise = Noise(self.options.rate, self.options.mean_span)
        self.marks: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # around a text: T5's </s>
        self.sentinels = np.zeros(0, np.int64)  # the ids of <extra_id_0>, <extra_id_1>, …
        self.tokens_of_row = 0  # before any is hidden

    # --- data -----------------------------------------------------------------------------------

    def tokenizer(self, trained: Tokenizer) -> Tokenizer:
        """Texts end in </s>; a checkpoint's tokeniser is as it is."""
        own = isinstance(self.recipe.tokenizer, TokenizerRecipe)
        return closed(trained, self.longest) if own else trained

    def encode(self, tokenizer: Tokenizer, say: Say) -> None:
        """Once it is clear that there are sentinels for all spans of a row."""
        found = (tokenizer.token_to_id(token) for token in self.specials)
        self.sentinels = np.array([i for i in found if i is not None], np.int64)
        self.marks = around(tokenizer)
        self.tokens_of_row = self.noise.fitting(self.longest, sum(map(len, self.marks)))
        most = int(self.noise.counts(np.array([self.tokens_of_row]))[1][0])
        if most > len(self.sentinels):
            raise ConfigError(
                f"rows of data.max_length={self.longest} have {most} hidden spans, but the "
                f"tokeniser has {len(self.sentinels)} sentinels (<extra_id_0> …); take shorter "
                f"rows, a lower objective.rate, a longer objective.mean_span, or a tokeniser that "
                f"has them"
            )
        super().encode(tokenizer, say)

    def rows(self, table: Table, epoch: int, number: int) -> NoisyRows:
        """Another noise, and in a stream other borders, in each epoch."""
        seed = self.recipe.train.seed
        draws, length = Draws(seed, epoch, number), self.tokens_of_row
        if self.options.rows == "documents":
            return self._pieces(table["ids"], draws)
        if number and int(table["ids"].lengths.sum()) < length:
            return NoisyRows(None, 0, draws)  # the last part of a stream
        seed = (seed + number) % 2**63
        rows = cut_stream(table["ids"], length, None, seed=seed, epoch=epoch)
        full = self.rows_of_batch
        return NoisyRows(rows, len(rows) - len(rows) % min(full, len(rows)), draws)

    @property
    def validation(self) -> NoisyRows:
        """The held-out texts, with noise that stays; of a stream its whole rows."""
        documents, draws = (
            self.encoded.validation["ids"],
            Draws(self.recipe.train.seed, _VALIDATION),
        )
        if self.options.rows == "documents":
            return self._pieces(documents, draws)
        rows = cut_stream(documents, self.tokens_of_row, None)
        return NoisyRows(rows, len(rows), draws)

    def _pieces(self, documents: Rows, draws: Draws) -> NoisyRows:
        pieces = cut_documents(documents, self.tokens_of_row)
        pieces = pieces.take(np.flatnonzero(pieces.lengths > 1))  # one token has no rest
        if not len(pieces.lengths):
            raise DataError("no text has two tokens: there is nothing to hide; see data.unit")
        return NoisyRows(pieces, len(pieces.lengths), draws)

    def lengths(self, examples: NoisyRows) -> tuple[Lengths, Lengths]:
        """Of input and target, with what stands around them."""
        if not examples.count:
            return examples.lengths, examples.lengths
        marks = sum(map(len, self.marks))
        read, said = self.noise.sizes(examples.lengths)
        return read + marks, said + marks

    # --- batches ----------------------------------------------------------------------------------

    def frame(self) -> Frame | None:
        """Rows of a stream fill every batch alike."""
        return None if self.options.rows == "stream" else super().frame()

    def collate(self, examples: NoisyRows, index: Array, frame: Frame | None = None) -> PairBatch:
        """Input and target of each row, made when they are asked for."""
        sides = noised(examples.take(index), index, examples.draws, self.noise, self.sentinels)
        read, said = (surrounded(side, *self.marks) for side in sides)
        every = np.arange(len(index))
        batch = teacher_forced(
            pack_rows(read, every, None, frame), pack_rows(said, every, None, frame), self.start
        )
        if not isinstance(examples.rows, StreamRows):
            return batch
        rows = len(index)
        source, target, labels = (
            x.view(rows, -1) for x in (batch.source, batch.target, batch.labels)
        )
        return PairBatch(
            source, Grid(*source.shape), target, Grid(*target.shape), labels, batch.tokens
        )

    def predictions(self, model: Any, examples: NoisyRows, count: int = 50) -> Predictions:
        """What the model says of the gaps in held-out texts."""
        return written(model, self, examples, self.pieces, count)
