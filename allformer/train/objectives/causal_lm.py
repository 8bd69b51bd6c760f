"""Causal language models: each token is said from those before it.

    objective: {is: causal-lm, rows: documents}

`rows: stream` (nanoGPT's way) puts all documents end to end, `</s>` after each, and cuts rows of
exactly data.max_length from an offset that is another in each epoch: no padding, one size of batch.
`rows: documents` keeps each document by itself, between `<s>` and `</s>`; none sees another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from allformer.config import DecoderOnly
from allformer.core.inputs import Side
from allformer.core.model import DecoderOnlyModel
from allformer.data.encoded import Rows
from allformer.data.table import Table
from allformer.metrics import bits_per_byte
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, Frame
from allformer.train.objectives.continued import continued
from allformer.train.objectives.documents import AcrossRows, DocumentRows, LineBatch
from allformer.train.objectives.objective import Lengths, register
from allformer.train.objectives.over_texts import OverTexts
from allformer.train.objectives.words import Marks, SaysWords, check_words
from allformer.train.predictions import Predictions
from allformer.train.room import check_length
from allformer.train.sections.common import TokenizerRecipe
from allformer.train.sections.section import Section, one_of
from allformer.train.sections.vocabulary import Vocabulary

LineRows = AcrossRows | DocumentRows


@dataclass(frozen=True)
class CausalOptions(Section, section="objective"):
    """`stream`: rows of one length across documents; `documents`: each by itself."""

    rows: Annotated[str, one_of("stream", "documents")] = "stream"


@register("causal-lm")
class CausalLM(SaysWords, OverTexts[LineRows, LineBatch]):
    """The next token of plain text: `CausalLM(make_recipe({"objective": "causal-lm", …}))`."""

    shape = "decoder"
    Options: ClassVar[type[Section]] = CausalOptions

    # --- data -----------------------------------------------------------------------------------

    def tokenizer(self, trained: Tokenizer) -> Tokenizer:
        """One that was trained for documents begins a text as they begin."""
        if self.streams or not isinstance(self.recipe.tokenizer, TokenizerRecipe):
            return trained
        return trained.with_specials(before=[trained.settings.names["bos"]])

    @property
    def validation(self) -> LineRows:
        """All held-out texts, every token of them said."""
        documents, marks = self.encoded.validation["ids"], self.marks
        rows: LineRows = (
            AcrossRows.whole(documents, self.longest, marks.end)
            if self.streams
            else DocumentRows.cut(documents, self.longest, marks)
        )
        return replace(rows, size=int(self.encoded.validation["bytes"].sum()))

    def lengths(self, examples: LineRows) -> tuple[Lengths, Lengths]:
        """What each row says: one side."""
        return examples.lengths, examples.lengths

    @property
    def streams(self) -> bool:
        """Whether rows go across documents."""
        options = self.recipe.options
        return not isinstance(options, CausalOptions) or options.rows == "stream"

    @property
    def marks(self) -> Marks:
        """What stands before and after a document."""
        return Marks.of(self.vocabulary)

    def rows(self, table: Table, epoch: int, number: int) -> LineRows:
        """Borders of rows lie elsewhere in each epoch."""
        documents: Rows = table["ids"]
        if not self.streams:
            return DocumentRows.cut(documents, self.longest, self.marks)
        short = int(documents.lengths.sum()) + len(documents) <= self.longest
        if short and number:  # the last part of a stream
            return AcrossRows.none()
        seed = (self.recipe.train.seed + number) % 2**63
        rows = AcrossRows.cut(documents, self.longest, self.marks.end, seed=seed, epoch=epoch)
        return rows.rounded(self.rows_of_batch)

    # --- model ----------------------------------------------------------------------------------

    def config(self, vocabulary: Vocabulary) -> DecoderOnly:
        """A decoder with a head over the vocabulary. Across documents nothing begins one but the
        end of another, as in GPT-2: both marks are one."""
        if self.streams:
            vocabulary = vocabulary._replace(bos=Marks.of(vocabulary).end)
        tree = super().config(vocabulary)
        check_words(tree, DecoderOnly, "a DecoderOnly", self.name)
        check_length(self.recipe, tree, self.longest)
        found: DecoderOnly = tree
        return found

    def generation(self, config: Any) -> dict[str, Any]:
        """The ids that begin, end and fill."""
        tokens = config.decoder.source
        said = {f"{name}_token_id": getattr(tokens, f"{name}_id") for name in ("bos", "eos", "pad")}
        return {name: i for name, i in said.items() if i is not None}

    # --- batches and losses -----------------------------------------------------------------------

    def frame(self) -> Frame | None:
        """Rows of a stream fill every batch alike."""
        return None if self.streams else super().frame()

    def collate(self, examples: LineRows, index: Array, frame: Frame | None = None) -> LineBatch:
        """What is read, and one place further what is said."""
        if isinstance(examples, AcrossRows):
            return examples.collate(index)
        return examples.collate(index, frame)

    def measured(self, model: Any) -> tuple[str, ...]:
        """Bits per byte too, where there are bytes."""
        sized = ("bits_per_byte",) if self.encoded.validation["bytes"].sum() else ()
        return (*super().measured(model), *sized)

    def follows(self, means: Mapping[str, float], examples: LineRows) -> dict[str, float]:
        """Bits for each byte of the text, which does not depend on the tokeniser: end tokens are
        said too, and are no bytes."""
        if not examples.size:
            return {}
        labels = int(examples.lengths.sum())
        return {"bits_per_byte": bits_per_byte(means["nll"] * labels, examples.size)}

    def predictions(self, model: Any, examples: LineRows, count: int = 50) -> Predictions:
        """How the model goes on with the beginnings of held-out texts."""
        documents = self.encoded.validation["ids"]
        return continued(model, self.pieces, documents, self.longest, count)

    def _hidden(
        self, model: DecoderOnlyModel, batch: LineBatch, dtype: torch.dtype | None
    ) -> Tensor:
        sides = {"decoder": Side(batch.layout, {"input_ids": batch.ids})}
        return model.hidden(sides, dtype=dtype)["decoder"].flatten(0, -2)  # N dim
