"""Reformer's test of attention that looks far: a sequence is said twice, the second time by heart.

    objective: duplication
    data: {symbols: 127, length: 511}       # rows of 1,024: 0 w 0 w

The next token is to be said, of the second half alone: nothing of the first can be known. Rows are
drawn anew in each epoch, so that there is nothing to learn by heart but the way back.

Legend: R rows, L their length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from allformer.config import DecoderOnly
from allformer.core.inputs import Side
from allformer.core.layout import Grid
from allformer.core.loss import IGNORE
from allformer.data.duplicates import duplicates
from allformer.errors import ConfigError
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, Frame
from allformer.train.objectives.documents import LineBatch
from allformer.train.objectives.objective import Lengths, Objective, Say, register
from allformer.train.objectives.words import SaysWords, check_words
from allformer.train.room import check_length
from allformer.train.sections.section import Count, Section
from allformer.train.sections.vocabulary import Vocabulary


@dataclass(frozen=True)
class DuplicateData(Section, section="data"):
    """What is drawn: the paper's 0 w 0 w, with w of 511 out of 127 symbols."""

    symbols: Count = 127
    length: Count = 511  # of w
    rows: Count = 32_768  # of an epoch
    held_out: Count = 256  # rows to validate on

    @property
    def max_length(self) -> int:
        """Tokens of a row."""
        return 2 * (self.length + 1)


@register("duplication")
class Duplication(SaysWords, Objective[Array, LineBatch]):
    """`train(make_recipe({"objective": "duplication", …}), "runs/twice")`"""

    shape = "decoder"
    Data = DuplicateData
    usual: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "train": {"smoothing": 0.0},
        "tokenizer": {"kind": "words", "vocab": 1024},
    }

    # --- data -----------------------------------------------------------------------------------

    def open(self, corpus: Any = None) -> None:
        """Everything is drawn: there is nothing to find."""
        if corpus is not None:
            raise ConfigError("objective=duplication draws its own data; leave corpus out")

    def texts(self) -> Iterable[str]:
        """The symbols, of which each is a token."""
        return [" ".join(map(str, range(self.recipe.data.symbols + 1)))]

    def encode(self, tokenizer: Tokenizer, say: Say) -> None:
        """The id of each symbol, and the rows to validate on."""
        (line,) = self.texts()
        self._ids = np.array(tokenizer.encode(line, add_special_tokens=False))
        wanted, different = self.recipe.data.symbols + 1, len(np.unique(self._ids))
        if not len(self._ids) == different == wanted:
            raise ConfigError(
                f"the tokeniser makes {len(self._ids)} tokens, of which {different} differ, of the "
                f"numbers 0 … {wanted - 1}; use tokenizer.kind=words, for which each is one"
            )
        self._validation = self._drawn(self.recipe.data.held_out, 0, 0)

    def _drawn(self, rows: int, *seed: int) -> Array:
        data = self.recipe.data
        seeds = [self.recipe.train.seed, *seed]
        found = duplicates(rows, length=data.length, symbols=data.symbols, seed=seeds)
        return np.asarray(self._ids[found])

    def examples(self, epoch: int) -> Array:
        """Others in each epoch; as many as fill batches of one size."""
        rows, each = self.recipe.data.rows, max(1, self.recipe.train.batch_tokens // self.longest)
        each = min(each, self.recipe.train.batch_rows or each)
        return self._drawn(max(each, rows - rows % each), 1, epoch)

    @property
    def validation(self) -> Array:
        """The same each time."""
        return self._validation

    def lengths(self, examples: Array) -> tuple[Lengths, Lengths]:
        """All alike."""
        lengths = np.full(len(examples), self.longest, np.int64)
        return lengths, lengths

    # --- model ----------------------------------------------------------------------------------

    @property
    def longest(self) -> int:
        """A row is never cut."""
        longest: int = self.recipe.data.max_length
        if self.recipe.train.batch_tokens < longest:
            raise ConfigError(
                f"train.batch_tokens={self.recipe.train.batch_tokens} is less than a row, which has"
                f" {longest} tokens (data.length={self.recipe.data.length}); set it to {longest} or"
                " more"
            )
        return longest

    def config(self, vocabulary: Vocabulary) -> DecoderOnly:
        """A decoder with a head over the symbols."""
        tree = super().config(vocabulary)
        check_words(tree, DecoderOnly, "a DecoderOnly", self.name)
        check_length(self.recipe, tree, self.longest)
        found: DecoderOnly = tree
        return found

    # --- batches and losses -----------------------------------------------------------------------

    def frame(self) -> Frame | None:
        """All batches have one size anyway."""
        return None

    def collate(self, examples: Array, index: Array, frame: Frame | None = None) -> LineBatch:
        """A grid; from the second 0 on each token says the next, the last one nothing."""
        ids = examples[index].astype(np.int64)  # R L
        half = ids.shape[1] // 2
        labels = np.full_like(ids, IGNORE)
        labels[:, half:-1] = ids[:, half + 1 :]
        said = len(ids) * (half - 1)
        return LineBatch(torch.from_numpy(ids), Grid(*ids.shape), torch.from_numpy(labels), said)

    def _hidden(self, model: Any, batch: LineBatch, dtype: torch.dtype | None) -> Tensor:
        sides = {"decoder": Side(batch.layout, {"input_ids": batch.ids})}
        hidden: Tensor = model.hidden(sides, dtype=dtype)["decoder"].flatten(0, -2)  # N dim
        return hidden
