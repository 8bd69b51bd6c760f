"""Sequence to sequence: the decoder says the target, one place behind which it reads it.

Legend: N source tokens, M target tokens, all rows end to end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.checkpoint.older_run import closed, generation_of
from allformer.config import EncoderDecoder, LMHead
from allformer.core.inputs import Side
from allformer.core.layout import Layout
from allformer.core.loss import IGNORE
from allformer.core.model import EncoderDecoderModel
from allformer.data.bpe_dropout import Recut
from allformer.data.encoded import EncodedPairs
from allformer.data.parallel import Corpus, Pair
from allformer.errors import ConfigError
from allformer.families.original import BOS, EOS
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, Frame, pack_rows
from allformer.train.corpora import open_data
from allformer.train.objectives.objective import Lengths, Objective, Say, register
from allformer.train.sections.common import TokenizerRecipe
from allformer.train.sections.data import PairData
from allformer.train.sections.recipe import Recipe
from allformer.train.sections.vocabulary import Vocabulary


class PairBatch(NamedTuple):
    """Source ids, what the decoder reads, and what it has to say (teacher forcing)."""

    source: Tensor  # N
    source_layout: Layout
    target: Tensor  # M, beginning with <s>
    target_layout: Layout
    labels: Tensor  # M, ending with </s>; −100 in filler
    tokens: int  # labels that count


@register("seq2seq")
class Seq2Seq(Objective[EncodedPairs, PairBatch]):
    """Translation, and whatever else is a text for a text: `Seq2Seq(recipe).open()`."""

    Data = PairData
    usual: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(self, recipe: Recipe | None = None) -> None:
        super().__init__(recipe)
        self.corpus = Corpus([])
        self._train: EncodedPairs | None = None
        self._validation: EncodedPairs | None = None
        self._recut: Recut | None = None
        self._tokenizer: Tokenizer | None = None

    def open(self, corpus: Corpus | None = None) -> None:
        """Train and validation pairs; a missing validation split is held out of train."""
        self.corpus = open_data(self.recipe.data, corpus)

    def texts(self) -> Iterable[str]:
        """Both sides: one tokeniser serves both."""
        return (text for pair in self.corpus.train for text in pair)

    def tokenizer(self, trained: Tokenizer) -> Tokenizer:
        """Sources end in </s>."""
        return closed(trained, self.longest)

    def encode(self, tokenizer: Tokenizer, say: Say) -> None:
        """Both splits as ids; pairs with a side that is too long are left out, aloud."""
        assert self.corpus.validation is not None
        self._tokenizer = tokenizer
        self._train = self._encode(self.corpus.train, tokenizer, "training", say)
        self._validation = self._encode(self.corpus.validation, tokenizer, "validation", say)

    def examples(self, epoch: int) -> EncodedPairs:
        """Each time the same, or with BPE-dropout cut anew."""
        assert self._train is not None
        assert self._tokenizer is not None
        asked = self.recipe.tokenizer
        dropout = asked.dropout if isinstance(asked, TokenizerRecipe) else 0.0
        if not dropout:
            return self._train
        if self._recut is None:
            self._recut = Recut.from_pairs(
                self.corpus.train, self._tokenizer, dropout=dropout, max_length=self.longest - 1
            )
        return self._recut(self.recipe.train.seed, epoch)

    @property
    def validation(self) -> EncodedPairs:
        """The held-out pairs."""
        assert self._validation is not None
        return self._validation

    def lengths(self, examples: EncodedPairs) -> tuple[Lengths, Lengths]:
        """Of source and target, each with its </s>."""
        return examples.source_lengths + 1, examples.target_lengths + 1

    def config(self, vocabulary: Vocabulary) -> EncoderDecoder:
        """An encoder-decoder with a head over the vocabulary."""
        tree = super().config(vocabulary)
        if not isinstance(tree, EncoderDecoder) or not isinstance(tree.head, LMHead):
            kind, head = type(tree).__name__, type(tree.head).__name__
            raise ConfigError(
                f"model is a {kind} with head {head}, but objective={self.name!r} needs an "
                f"EncoderDecoder with LMHead; choose such a preset, or change model.head"
            )
        return tree

    def generation(self, config: Any) -> dict[str, Any]:
        """As the recipe searches."""
        decode = self.recipe.decode
        return generation_of(config, decode.beams, decode.length_penalty)

    def collate(
        self, examples: EncodedPairs, index: Array, frame: Frame | None = None
    ) -> PairBatch:
        """`<s>` before what the decoder reads, `</s>` after source and labels."""
        source = pack_rows(examples.sources, index, EOS, frame)
        said = pack_rows(examples.targets, index, EOS, frame)
        read = np.empty_like(said.ids)
        read[1:] = said.ids[:-1]  # the decoder reads one place behind what it says
        read[said.starts[said.starts < len(read)]] = BOS
        labels = np.where(np.arange(len(said.ids)) < said.real, said.ids, IGNORE)
        return PairBatch(
            torch.from_numpy(source.ids),
            source.packed(),
            torch.from_numpy(read),
            said.packed(),
            torch.from_numpy(labels),
            said.real,
        )

    def loss(
        self,
        model: EncoderDecoderModel,
        batch: PairBatch,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Of every target token, </s> included: summed cross-entropy, smoothed and plain."""
        sides = {
            "encoder": Side(batch.source_layout, {"input_ids": batch.source}),
            "decoder": Side(batch.target_layout, {"input_ids": batch.target}),
        }
        hidden = model.hidden(sides, dtype=dtype)["decoder"]
        return model.vocab_head.score(
            hidden.flatten(0, -2), batch.labels.flatten(), smoothing, **more
        )

    def _encode(
        self, pairs: Iterable[Pair], tokenizer: Tokenizer, name: str, say: Say
    ) -> EncodedPairs:
        asked, longest = self.recipe, self.longest
        encoded = EncodedPairs.from_pairs(pairs, tokenizer, longest - 1)  # and </s>
        left_out = ""
        if encoded.dropped:
            left_out = (
                f"; {encoded.dropped:,} left out, over {longest} tokens (the longest has "
                f"{encoded.longest}); data.max_length={asked.data.max_length}, "
                f"train.batch_tokens={asked.train.batch_tokens}"
            )
        say(f"{name}: {len(encoded):,} pairs{left_out}")
        return encoded
