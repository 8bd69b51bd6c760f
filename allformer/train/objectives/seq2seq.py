"""Sequence to sequence: the decoder says the target, one place behind which it reads it.

objective: seq2seq
model: {checkpoint: t5-small}                # with its own tokeniser
data: {path: news.jsonl, columns: {source: article, target: summary}, prefix: "summarize: "}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from allformer.checkpoint.older_run import closed
from allformer.data.bpe_dropout import Recut
from allformer.data.encoded import Encode, EncodedPairs
from allformer.data.parallel import Corpus, Pair
from allformer.families.original import EOS
from allformer.text.tokenizer import Tokenizer
from allformer.text.vocabulary import LANGUAGES_50
from allformer.train.batch import Array, Frame, pack_rows
from allformer.train.corpora import open_data
from allformer.train.objectives.objective import Lengths, Say, register
from allformer.train.objectives.text_to_text import PairBatch, TextToText, teacher_forced
from allformer.train.sections.common import TokenizerRecipe
from allformer.train.sections.data import PairData
from allformer.train.sections.recipe import Recipe

__all__ = ["PairBatch", "Seq2Seq"]


@register("seq2seq")
class Seq2Seq(TextToText[EncodedPairs]):
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
        """Sources end in </s>; a checkpoint's tokeniser is as it is."""
        return closed(trained, self.longest) if self.trained else trained

    @property
    def trained(self) -> bool:
        """Whether the tokeniser is trained on these pairs: <s> and </s> are put around here."""
        return isinstance(self.recipe.tokenizer, TokenizerRecipe)

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
        end = int(self.trained)
        return examples.source_lengths + end, examples.target_lengths + end

    def collate(
        self, examples: EncodedPairs, index: Array, frame: Frame | None = None
    ) -> PairBatch:
        """`<s>` before what the decoder reads, `</s>` after source and labels."""
        end = EOS if self.trained else None
        source = pack_rows(examples.sources, index, end, frame)
        said = pack_rows(examples.targets, index, end, frame)
        return teacher_forced(source, said, self.start)

    def _encode(
        self, pairs: Iterable[Pair], tokenizer: Tokenizer, name: str, say: Say
    ) -> EncodedPairs:
        asked, longest = self.recipe, self.longest
        cut: list[int] = []
        plain = self.trained and not asked.data.truncate
        sides = None if plain else self._sides(tokenizer, cut)
        most = longest - int(self.trained)  # and </s>
        encoded = EncodedPairs.from_pairs(pairs, tokenizer, most, sides)
        left_out = ""
        if encoded.dropped:
            left_out = (
                f"; {encoded.dropped:,} left out, over {longest} tokens (the longest has "
                f"{encoded.longest}); data.max_length={asked.data.max_length}, "
                f"train.batch_tokens={asked.train.batch_tokens}"
            )
        if sum(cut):
            left_out += f"; {sum(cut):,} texts cut to {longest} tokens (data.truncate)"
        say(f"{name}: {len(encoded):,} pairs{left_out}")
        return encoded

    def _sides(self, tokenizer: Tokenizer, cut: list[int]) -> tuple[Encode, Encode]:
        """Sources and targets as transformers would have them: with the family's own special
        tokens around, the target's language (mBART) and the target's pieces (Marian)."""
        data = self.recipe.data
        source, target = tokenizer, tokenizer.target
        if tokenizer.settings.language_at:
            source, target = (
                tokenizer.with_language(_code(tokenizer, name))
                for name in (data.source, data.target)
            )
        most = self.longest - int(self.trained)
        return tuple(  # type: ignore[return-value]
            partial(_encoded, side, special=not self.trained, most=most, cut=cut)
            if data.truncate
            else partial(side.encode_batch, add_special_tokens=not self.trained)
            for side in (source, target)
        )


def _code(tokenizer: Tokenizer, language: str) -> str:
    """`de` → `de_DE`, where the vocabulary has it."""
    known = (code for code in LANGUAGES_50 if code.split("_")[0] == language)
    return next((code for code in known if tokenizer.token_to_id(code) is not None), language)


def _encoded(
    tokenizer: Tokenizer, texts: list[str], *, special: bool, most: int, cut: list[int]
) -> list[list[int]]:
    """Texts as ids, at most so many; how many of them are cut is added to `cut`."""
    batch = tokenizer(
        texts, add_special_tokens=special, max_length=most, truncate=True, padding_side="right"
    )
    cut.append(len(batch.cut))
    sizes = batch["attention_mask"].sum(1).tolist()
    return [row[:size].tolist() for row, size in zip(batch["input_ids"], sizes, strict=True)]
