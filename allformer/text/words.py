"""A text's words, and each word's pieces by itself: what BPE-dropout over a corpus needs.

words = WordCutter(tokenizer, dropout=0.1)
words.find("A dog runs.")               # ['▁A', '▁dog', '▁runs', '.']
words.cut(["▁dog", "▁dog", "▁dog"])     # [[318], [318], [77, 460]]
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import normalizers, pre_tokenizers

from allformer.errors import ConfigError
from allformer.text.wrapper import Tokenizer


class WordCutter:
    """A tokeniser of kind 'bpe' in two halves, with BPE-dropout in the second."""

    def __init__(self, tokenizer: Tokenizer, dropout: float) -> None:
        inner = tokenizer._with_dropout(dropout)
        self._normalizer, self._splitter = inner.normalizer, inner.pre_tokenizer
        if self._splitter is None:
            raise ConfigError(
                f"{tokenizer} cuts whole lines, not words; leave out BPE-dropout, or train a "
                "tokeniser with train_tokenizer"
            )
        inner.normalizer = normalizers.Sequence([])  # a word that was found has its signs
        inner.pre_tokenizer = pre_tokenizers.Sequence([])
        self._inner = inner

    def find(self, text: str) -> list[str]:
        """The parts over whose borders no piece reaches, as the model sees them."""
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        return [part for part, _ in self._splitter.pre_tokenize_str(text)]

    def cut(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word, some merges left out."""
        encodings = self._inner.encode_batch_fast(list(words), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]
