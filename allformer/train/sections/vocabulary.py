"""What a config tree has to know of a tokeniser."""

from __future__ import annotations

from typing import NamedTuple

from allformer.families.original import BOS, EOS, PAD
from allformer.text.tokenizer import Tokenizer


class Vocabulary(NamedTuple):
    """How many ids there are, and which are special; those of our own tokenisers by default."""

    size: int
    pad: int | None = PAD
    bos: int | None = BOS
    eos: int | None = EOS

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """`Vocabulary.of(load_tokenizer("bert"))`: BERT's [CLS] begins a text, [SEP] ends it."""
        ids = tokenizer.special_ids
        begin, end = ids.get("bos", ids.get("cls")), ids.get("eos", ids.get("sep"))
        return cls(tokenizer.vocab_size, ids.get("pad"), begin, end)
