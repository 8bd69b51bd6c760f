"""Masked language models: some tokens are hidden, and have to be said from all the others.

    objective: {is: masked-lm, whole_words: true}
    objective: {is: masked-lm, pair: next-sentence}

The masks are drawn anew each epoch; those of validation stay. `rows: documents` keeps documents
apart; `rows: stream` fills every row to data.max_length across them (RoBERTa's full sentences).
With a `pair` (BERT's next sentence, ALBERT's sentence order) a row is two texts, and whether they
belong together is a second term of the loss. Only the hidden tokens' states reach the head.

Legend: N tokens of a batch, M of them hidden, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.config import ClassHead, EncoderOnly, Pool, PretrainHead, words_of
from allformer.core.inputs import Side
from allformer.core.layout import Grid, Layout
from allformer.core.loss import IGNORE
from allformer.core.model import EncoderOnlyModel
from allformer.core.precision import widen
from allformer.data.draws import Draws
from allformer.data.table import Table
from allformer.errors import ConfigError
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, Frame
from allformer.train.objectives.gaps import filled
from allformer.train.objectives.masking import Masking
from allformer.train.objectives.objective import Lengths, register
from allformer.train.objectives.over_texts import OverTexts
from allformer.train.objectives.segments import FullRows, TextRows
from allformer.train.objectives.sentence_pairs import KINDS, sentence_pairs
from allformer.train.objectives.words import Marks, appraised, check_words
from allformer.train.predictions import Predictions
from allformer.train.room import check_length
from allformer.train.sections.common import TokenizerRecipe
from allformer.train.sections.head import Words
from allformer.train.sections.recipe import Recipe
from allformer.train.sections.section import Fraction, Section, one_of, positive
from allformer.train.sections.vocabulary import Vocabulary

_VALIDATION = 1 << 32  # no epoch has this number: the masks of validation


@dataclass(frozen=True)
class MaskedOptions(Section, section="objective"):
    """The figures are BERT's."""

    rate: Annotated[float, positive("0.15")] = 0.15  # of the tokens are to be said
    masked: Fraction = 0.8  # of those are hidden behind <mask>
    random: Fraction = 0.1  # are another word; the rest stays
    whole_words: bool = False
    pair: Annotated[str, one_of("none", *KINDS)] = "none"
    rows: Annotated[str, one_of("documents", "stream")] = "documents"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate > 1:
            self.refuse("rate", "must be at most 1", "try 0.15")
        if self.masked + self.random > 1:
            self.refuse("random", f"and objective.masked={self.masked} are over 1", "try 0.1")
        if self.pair != "none" and self.rows == "stream":
            self.refuse("rows", f"goes across documents, but pair={self.pair}", "leave it out")


class MaskedBatch(NamedTuple):
    """What is read, where something has to be said, and what."""

    ids: Tensor  # R L, or N where rows are packed
    types: Tensor  # the same
    layout: Layout
    places: Tensor  # M: among the N states
    labels: Tensor  # M; −100 in filler
    first: Tensor  # R: where each row begins
    pairs: Tensor  # R: whether the second text is another (or swapped); −100: no pair
    tokens: int
    counts: tuple[int, ...]  # hidden tokens; and pairs, where there are


@dataclass(frozen=True, eq=False)
class MaskedRows:
    """Rows of an epoch, what is drawn for them, and the labels of pairs."""

    rows: TextRows | FullRows
    draws: Draws
    pairs: Array | None = None


@register("masked-lm")
class MaskedLM(OverTexts[MaskedRows, MaskedBatch]):
    """BERT's pre-training and its kin: `MaskedLM(make_recipe({"objective": "masked-lm", …}))`."""

    shape = "encoder"
    Options = MaskedOptions
    specials = ("<mask>",)

    def __init__(self, recipe: Recipe | None = None) -> None:
        super().__init__(recipe)
        options = self.recipe.options
        self.options = options if isinstance(options, MaskedOptions) else MaskedOptions()
        self.paired = self.options.pair != "none"
        if self.paired:
            self.terms = ("words", "pair")
            self.sentences = True
        self._masking: Masking | None = None

    # --- data -----------------------------------------------------------------------------------

    def tokenizer(self, trained: Tokenizer) -> Tokenizer:
        """`<s> text </s>` and `<s> text </s> text </s>`, as encoders want it."""
        if not isinstance(self.recipe.tokenizer, TokenizerRecipe):
            return trained
        names = trained.settings.names
        begin, end = names["bos"], names["eos"]
        types = self.recipe.model.tree(self.shape, self.longest).encoder.source.types
        around = trained.with_specials([begin], [end], [end], int(types > 1))
        inputs = ["input_ids", *(["token_type_ids"] if types > 1 else []), "attention_mask"]
        settings = replace(
            around.settings,
            names={**names, "cls": begin, "sep": end},
            model_max_length=self.longest,
            token_types=types > 1,
            config={"model_input_names": inputs},
        )
        return Tokenizer(around._inner, settings)

    @property
    def masking(self) -> Masking:
        """What may be hidden, and behind what."""
        if self._masking is None:
            asked = self.options
            self._masking = Masking.of(
                self.pieces, asked.rate, asked.masked, asked.random, asked.whole_words
            )
        return self._masking

    @property
    def marks(self) -> Marks:
        """[CLS] and [SEP], or what stands for them."""
        return Marks.of(self.vocabulary)

    def rows(self, table: Table, epoch: int, number: int) -> MaskedRows:
        """Masks, borders and pairs are others in each epoch."""
        seed = self.recipe.train.seed
        draws = Draws(seed, epoch, number)
        if self.paired:
            made = sentence_pairs(table, self.options.pair, self.longest, seed, epoch, number)
            return MaskedRows(made[0], draws, made[1])
        if self.options.rows == "documents":
            return MaskedRows(TextRows.cut(table["ids"], self.longest), draws)
        documents = table["ids"]
        if number and int(documents.lengths.sum()) + len(documents) < self.longest - 2:
            return MaskedRows(FullRows(None, 0), draws)  # the last part of a stream
        seed = (seed + number) % 2**63
        full = FullRows.cut(documents, self.longest, self.marks, seed, epoch)
        return MaskedRows(full.rounded(self.rows_of_batch), draws)

    @property
    def validation(self) -> MaskedRows:
        """The held-out texts, with masks that stay."""
        table, seed = self.encoded.validation, self.recipe.train.seed
        draws = Draws(seed, _VALIDATION)
        if self.paired:
            made = sentence_pairs(table, self.options.pair, self.longest, seed, _VALIDATION)
            return MaskedRows(made[0], draws, made[1])
        if self.options.rows == "documents":
            return MaskedRows(TextRows.cut(table["ids"], self.longest), draws)
        return MaskedRows(FullRows.cut(table["ids"], self.longest, self.marks), draws)

    def lengths(self, examples: MaskedRows) -> tuple[Lengths, Lengths]:
        """Tokens of each row, marks included: one side."""
        return examples.rows.lengths, examples.rows.lengths

    # --- model ----------------------------------------------------------------------------------

    def config(self, vocabulary: Vocabulary) -> EncoderOnly:
        """An encoder with a head over the vocabulary, and one over pairs where they are asked for;
        a body that has none gets BERT's."""
        tree = super().config(vocabulary)
        if isinstance(tree, EncoderOnly):
            tree = self._headed(tree)
        check_words(tree, EncoderOnly, "an EncoderOnly", self.name)
        check_length(self.recipe, tree, self.longest)
        types = tree.encoder.source.types
        if self.paired and types < 2:
            raise ConfigError(
                f"objective.pair={self.options.pair} needs a model that tells two texts apart, but "
                f"Tokens.types={types}; set model.change.encoder.source.types=2"
            )
        found: EncoderOnly = tree
        return found

    def _headed(self, tree: EncoderOnly) -> EncoderOnly:
        words = words_of(tree.head) or Words().head(tree)
        if not self.paired:
            return tree if words_of(tree.head) else replace(tree, head=words, pool=None)
        if getattr(tree.head, "parts", None):
            return tree
        pair = ClassHead(("LABEL_0", "LABEL_1"))
        return replace(tree, head=PretrainHead(words, pair), pool=tree.pool or Pool())  # type: ignore[arg-type]

    # --- batches and losses -----------------------------------------------------------------------

    def frame(self) -> Frame | None:
        """Rows of a stream fill every batch alike."""
        return None if self.options.rows == "stream" else super().frame()

    def collate(
        self, examples: MaskedRows, index: Array, frame: Frame | None = None
    ) -> MaskedBatch:
        """With a frame, or in full rows, there are equally many places in every batch."""
        laid, masking = examples.rows.lay(index, self.marks, frame), self.masking
        real = slice(laid.real)
        where = laid.row[real], laid.place[real], index, examples.draws
        chosen = masking.choose(laid.ids[real], *where)
        ids = laid.ids.copy()
        ids[real] = masking.corrupt(laid.ids[real], chosen, *where)
        places, labels = chosen, laid.ids[chosen]
        if frame is not None or isinstance(laid.layout, Grid):
            rows = len(index) if frame is None else frame.sentences
            room = masking.most(len(ids), rows) - len(chosen)
            places = np.append(places, np.zeros(room, np.int64))
            labels = np.append(labels, np.full(room, IGNORE, np.int64))
        pairs = np.full(len(laid.first), IGNORE, np.int64)
        if examples.pairs is not None:
            pairs[: len(index)] = examples.pairs[index]
        shape = (laid.layout.rows, -1) if isinstance(laid.layout, Grid) else (-1,)
        counts = (len(chosen), len(index)) if self.paired else (len(chosen),)
        return MaskedBatch(
            torch.from_numpy(ids.reshape(shape)),
            torch.from_numpy(laid.types.reshape(shape)),
            laid.layout,
            torch.from_numpy(places),
            torch.from_numpy(labels),
            torch.from_numpy(laid.first),
            torch.from_numpy(pairs),
            laid.real,
            counts,
        )

    def loss(
        self,
        model: EncoderOnlyModel,
        batch: MaskedBatch,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Of the hidden tokens, and of the pairs: summed cross-entropy, smoothed and plain."""
        hidden = self._hidden(model, batch, dtype)
        states = hidden.index_select(0, batch.places)
        loss, nll = model.vocab_head.score(states, batch.labels, smoothing, **more)
        if not self.paired:
            return loss, nll
        pair = _entropy(self._pair_logits(model, hidden, batch), batch.pairs)
        return torch.stack([loss, pair.to(loss)]), torch.stack([nll, pair.detach().to(nll)])

    def measured(self, model: Any) -> tuple[str, ...]:
        """How often words are right, and pairs."""
        return ("accuracy", "pair_accuracy") if self.paired else ("accuracy",)

    def appraise(
        self, model: EncoderOnlyModel, batch: MaskedBatch, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The NLL, and how often the likeliest word (and the likelier answer) is right."""
        hidden = self._hidden(model, batch, dtype)
        states = hidden.index_select(0, batch.places)
        nll, right = appraised(model.vocab_head, states, batch.labels)
        if not self.paired:
            return nll, {"accuracy": right}
        logits = self._pair_logits(model, hidden, batch)
        good = (logits.argmax(-1) == batch.pairs).sum()
        both = torch.stack([nll, _entropy(logits, batch.pairs).to(nll)])
        return both, {"accuracy": right, "pair_accuracy": good}

    def predictions(self, model: Any, examples: MaskedRows, count: int = 50) -> Predictions:
        """Hidden words of held-out texts, and what the model says."""
        rows = examples.rows.lengths
        index = np.linspace(0, len(rows) - 1, min(len(rows), 2 * count)).astype(int)
        index = np.unique(index)[: max(1, self.recipe.train.batch_tokens // int(rows.max()))]
        batch = self.collate(examples, index)
        return filled(model, self, batch, self.pieces, count)

    def _hidden(
        self, model: EncoderOnlyModel, batch: MaskedBatch, dtype: torch.dtype | None
    ) -> Tensor:
        inputs = {"input_ids": batch.ids}
        if model.config.encoder.source.types:
            inputs["token_type_ids"] = batch.types
        sides = {"encoder": Side(batch.layout, inputs)}
        return model.hidden(sides, dtype=dtype)["encoder"].flatten(0, -2)  # N dim

    def _pair_logits(self, model: EncoderOnlyModel, hidden: Tensor, batch: MaskedBatch) -> Tensor:
        """What the pooler makes of each row's first state: R 2."""
        first = hidden.index_select(0, batch.first)
        pooled = model.pooled(first[:, None])
        head: Any = model.head
        logits: Tensor = head.pair(pooled)
        return logits


def _entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(widen(logits), labels, ignore_index=IGNORE, reduction="sum")
