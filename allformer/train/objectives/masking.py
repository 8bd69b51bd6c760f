"""BERT's masking: which tokens have to be said, and what stands in their place.

15 % of a row's tokens are chosen; of those 80 % become `<mask>`, 10 % another word at random, and
10 % stay as they are (Devlin et al. 2019, section 3.1). By (seed, epoch), the row and the place
alone, so that each epoch sees a row otherwise (Liu et al. 2019), however it is batched.

Legend: N tokens of a batch, R rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from allformer.data.draws import Draws
from allformer.errors import ConfigError
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array
from allformer.train.objectives.ragged import least

_CHOICE, _FATE, _WORD = range(3)  # what a random number is for


@dataclass(frozen=True, eq=False)
class Masking:
    """`Masking.of(tokenizer, rate=0.15)`; figures are the paper's."""

    mask: int
    special: Array  # V: ids that are never chosen
    plain: Array  # the others, of which a random word is one
    begins: Array | None = None  # V: ids that begin a word, where words are masked as a whole
    rate: float = 0.15
    masked: float = 0.8
    random: float = 0.1

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        rate: float = 0.15,
        masked: float = 0.8,
        random: float = 0.1,
        whole_words: bool = False,
    ) -> Masking:
        """For the words of a tokeniser that has a mask token."""
        if "mask" not in tokenizer.special_ids:
            raise ConfigError(
                f"this {tokenizer.settings.tokenizer_class} has no mask token, and masked-lm needs "
                "one; use a tokeniser that has (BERT's, RoBERTa's), or train one"
            )
        special = special_ids(tokenizer)
        begins = word_begins(tokenizer) if whole_words else None
        plain = np.flatnonzero(~special)
        return cls(tokenizer.mask_id, special, plain, begins, rate, masked, random)

    def most(self, tokens: int, rows: int) -> int:
        """No batch of so many tokens in so many rows has more that are chosen."""
        return int(np.ceil(self.rate * tokens)) + rows

    def choose(self, ids: Array, row: Array, place: Array, index: Array, draws: Draws) -> Array:
        """Where in the batch the chosen tokens stand, in order; `index` are the rows' numbers."""
        free = np.flatnonzero(~self.special[ids])
        counts = np.bincount(row[free], minlength=len(index))
        wanted = np.where(counts > 0, np.maximum(1, np.rint(self.rate * counts)), 0).astype(int)
        if self.begins is not None:
            return self._whole_words(ids, row, place, index, draws, free, wanted)
        chance = draws(index[row[free]], place[free], _CHOICE)
        found: Array = free[least(chance, counts, wanted)]
        return found

    def _whole_words(
        self,
        ids: Array,
        row: Array,
        place: Array,
        index: Array,
        draws: Draws,
        free: Array,
        wanted: Array,
    ) -> Array:
        """Words in random order as long as they fit: one that is too long is passed over."""
        assert self.begins is not None
        after = np.concatenate([[False], (np.diff(free) == 1) & (np.diff(row[free]) == 0)])
        new = self.begins[ids[free]] | ~after
        word = np.cumsum(new) - 1  # of each free token
        first = free[new]
        sizes = np.bincount(word, minlength=len(first))
        order = np.lexsort((draws(index[row[first]], place[first], _CHOICE), row[first]))
        room = wanted.tolist()
        taken = np.zeros(len(first), bool)
        pairs = zip(order.tolist(), row[first[order]].tolist(), sizes[order].tolist(), strict=True)
        for number, where, size in pairs:
            if size <= room[where]:
                room[where] -= size
                taken[number] = True
        found: Array = free[taken[word]]
        return found

    def corrupt(
        self, ids: Array, chosen: Array, row: Array, place: Array, index: Array, draws: Draws
    ) -> Array:
        """The ids with something else in the chosen places."""
        named = index[row[chosen]], place[chosen]
        fate = draws(*named, _FATE)
        other = self.plain[(draws(*named, _WORD) * len(self.plain)).astype(int)]
        left = np.where(fate < self.masked + self.random, other, ids[chosen])
        found = ids.copy()
        found[chosen] = np.where(fate < self.masked, self.mask, left)
        return found


def special_ids(tokenizer: Tokenizer) -> Array:
    """V: which ids are special, whatever their name."""
    found = np.zeros(tokenizer.vocab_size, bool)
    found[list(tokenizer.special_ids.values())] = True
    inner = tokenizer._inner
    added: dict[int, Any] = getattr(inner, "get_added_tokens_decoder", dict)()
    found[[i for i, token in added.items() if token.special and i < len(found)]] = True
    return found


def word_begins(tokenizer: Tokenizer) -> Array:
    """V: which ids begin a word: those with a space before them (or without BERT's ##), signs, and
    Chinese or Japanese characters, which stand without spaces."""
    pieces = tokenizer.tokens(range(tokenizer.vocab_size))
    hashes = any(piece.startswith("##") for piece in pieces)
    return np.array([_begins(piece, hashes) for piece in pieces])


def _begins(piece: str, hashes: bool) -> bool:
    if hashes:
        return not piece.startswith("##")
    first = piece[:1]
    return not first.isalnum() or "\u2e80" <= first <= "\u9fff" or "\uf900" <= first <= "\ufaff"
