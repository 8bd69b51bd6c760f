"""Denoising (BART): a text is damaged, and written again as it was.

    objective: {is: denoising, noise: infill, rate: 0.3, mean_span: 3, permute: true}

Rows are whole sentences of one document, as many as fit data.max_length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from allformer.checkpoint.older_run import closed
from allformer.data.draws import Draws
from allformer.data.encoded import Rows
from allformer.data.table import Table
from allformer.errors import ConfigError
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, Frame, pack_rows
from allformer.train.objectives.infilling import NOISES, shuffled
from allformer.train.objectives.objective import Lengths, Say, register
from allformer.train.objectives.over_texts import OverTexts
from allformer.train.objectives.ragged import surrounded
from allformer.train.objectives.text_to_text import PairBatch, TextToText, around, teacher_forced
from allformer.train.objectives.written import written
from allformer.train.predictions import Predictions
from allformer.train.sections.common import TokenizerRecipe
from allformer.train.sections.recipe import Recipe
from allformer.train.sections.section import Section, one_of, positive, share

_VALIDATION = 1 << 32  # no epoch has this number: the noise of validation


@dataclass(frozen=True)
class DenoisingOptions(Section, section="objective"):
    """The figures are BART's."""

    noise: Annotated[str, one_of(*NOISES)] = "infill"
    rate: Annotated[float, share("0.3")] = 0.3  # of the tokens are hidden or left out
    mean_span: Annotated[float, positive("3")] = 3.0  # tokens of a span, Poisson: of infill
    permute: bool = True  # the sentences of a row, in random order


@dataclass(frozen=True, eq=False)
class SentenceRows:
    """Rows of whole sentences, and what is drawn for them."""

    rows: Rows
    sentences: Rows  # the lengths of each row's sentences
    draws: Draws

    @classmethod
    def cut(cls, table: Table, length: int, draws: Draws) -> SentenceRows:
        """As many neighbours of one document as have at most `length` tokens; a sentence that is
        longer is cut."""
        ids, cuts = table["ids"], table["cuts"]
        starts: list[int] = []
        rows: list[list[int]] = []  # the sentences of each row
        for number in range(len(ids)):
            at, room = int(ids.starts[number]), 0
            for size in _split(np.asarray(cuts[number]).tolist(), length):
                if size > room:
                    starts.append(at)
                    rows.append([])
                    room = length
                rows[-1].append(size)
                room -= size
                at += size
        lengths = np.array([sum(row) for row in rows], np.int64)
        return cls(Rows(ids.ids, lengths, np.array(starts, np.int64)), Rows.from_lists(rows), draws)


def _split(sizes: list[int], most: int) -> list[int]:
    return [min(most, size - i) for size in sizes for i in range(0, size, most)]


@register("denoising")
class Denoising(OverTexts[SentenceRows, PairBatch], TextToText[SentenceRows]):
    """BART's pre-training: `Denoising(make_recipe({"objective": "denoising", …}))`."""

    Options = DenoisingOptions
    specials = ("<mask>",)
    sentences = True

    def __init__(self, recipe: Recipe | None = None) -> None:
        super().__init__(recipe)
        options = self.recipe.options
        self.options = options if isinstance(options, DenoisingOptions) else DenoisingOptions()
        self.marks: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        # The tables that were cut last, for training and for validation: two threads ask for them.
        self._last: dict[str, tuple[Table, SentenceRows]] = {}

    def tokenizer(self, trained: Tokenizer) -> Tokenizer:
        """Texts end in </s>; a checkpoint's tokeniser is as it is."""
        own = isinstance(self.recipe.tokenizer, TokenizerRecipe)
        return closed(trained, self.longest) if own else trained

    def encode(self, tokenizer: Tokenizer, say: Say) -> None:
        """Sentence by sentence."""
        if "mask" not in tokenizer.special_ids and self.options.noise != "delete":
            raise ConfigError(
                f"this {tokenizer.settings.tokenizer_class} has no mask token, and objective.noise="
                f"{self.options.noise} needs one; use a tokeniser that has (BART's), train one, or "
                f"set objective.noise=delete"
            )
        self.marks = around(tokenizer)
        super().encode(tokenizer, say)

    def rows(self, table: Table, epoch: int, number: int) -> SentenceRows:
        """The same rows in each epoch, damaged otherwise."""
        return self._cut(table, Draws(self.recipe.train.seed, epoch, number), "training")

    @property
    def validation(self) -> SentenceRows:
        """The held-out texts, with damage that stays."""
        draws = Draws(self.recipe.train.seed, _VALIDATION)
        return self._cut(self.encoded.validation, draws, "validation")

    def _cut(self, table: Table, draws: Draws, name: str) -> SentenceRows:
        """Rows are cut once, where an epoch has the same table as the one before."""
        found = self._last.get(name)
        if found is None or found[0] is not table:
            found = table, SentenceRows.cut(table, self.longest - self._around, draws)
            self._last[name] = found
        return replace(found[1], draws=draws)

    @property
    def _around(self) -> int:
        return sum(map(len, self.marks))

    def lengths(self, examples: SentenceRows) -> tuple[Lengths, Lengths]:
        """Of the text, which no damage makes longer, and of itself."""
        whole = examples.rows.lengths + self._around
        return whole, whole

    def collate(
        self, examples: SentenceRows, index: Array, frame: Frame | None = None
    ) -> PairBatch:
        """Damaged when they are asked for."""
        asked, draws = self.options, examples.draws
        said = examples.rows.take(index)
        read = said
        if asked.permute:
            read = shuffled(said, examples.sentences.take(index), index, draws)
        mask = self.pieces.special_ids.get("mask", 0)
        read = NOISES[asked.noise](read, index, draws, asked.rate, asked.mean_span, mask)
        every = np.arange(len(index))
        source, target = (
            pack_rows(surrounded(side, *self.marks), every, None, frame) for side in (read, said)
        )
        return teacher_forced(source, target, self.start)

    def predictions(self, model: Any, examples: SentenceRows, count: int = 50) -> Predictions:
        """What the model makes of damaged held-out texts."""
        return written(model, self, examples, self.pieces, count)
