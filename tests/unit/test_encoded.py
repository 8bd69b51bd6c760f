"""Encoded pairs: the ids are the tokeniser's, and what is dropped is counted."""

import numpy as np
import pytest

from allformer.data import encoded
from allformer.data.encoded import EncodedPairs
from allformer.errors import DataError
from allformer.text.tokenizer import Tokenizer, train_tokenizer

PAIRS = [(f"the dog number {i}", f"der Hund Nummer {i}!") for i in range(50)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([text for pair in PAIRS for text in pair], vocab=200)


def test_rows_are_the_tokenisers_ids(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded, "_CHUNK", 7)  # chunks of which the last is not full
    pairs = EncodedPairs.from_pairs(iter(PAIRS), tokenizer)
    assert len(pairs) == 50
    for i, (source, target) in enumerate(PAIRS):
        assert pairs.source(i).tolist() == tokenizer.encode(source)
        assert pairs.target(i).tolist() == tokenizer.encode(target)
        assert pairs.source_lengths[i] == len(pairs.source(i))
        assert pairs.target_lengths[i] == len(pairs.target(i))
    assert (pairs.dropped, pairs.longest) == (0, int(pairs.target_lengths.max()))


def test_rows_are_compact_views(tokenizer: Tokenizer) -> None:
    pairs = EncodedPairs.from_pairs(PAIRS, tokenizer)
    assert pairs.source(3).dtype == np.uint16
    assert np.shares_memory(pairs.source(3), pairs.sources.ids)


def test_a_vocabulary_beyond_16_bits_uses_wider_ids() -> None:
    class Large:
        vocab_size = 70_000

        def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
            return [[69_999] for _ in texts]

    pairs = EncodedPairs.from_pairs([("a", "b")], Large())  # type: ignore[arg-type]
    assert pairs.source(0).tolist() == [69_999]


def test_long_pairs_are_dropped_and_counted_never_cut(tokenizer: Tokenizer) -> None:
    long = ("the dog", " ".join(["Hund"] * 30))
    pairs = EncodedPairs.from_pairs([PAIRS[0], long, PAIRS[1]], tokenizer, max_length=12)
    assert len(pairs) == 2
    assert pairs.dropped == 1
    assert pairs.longest == len(tokenizer.encode(long[1]))
    assert tokenizer.decode(pairs.target(1)) == PAIRS[1][1]


def test_nothing_left_is_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"max_length=1 drops all 50 pairs; the longest .* has \d+"):
        EncodedPairs.from_pairs(PAIRS, tokenizer, max_length=1)
    with pytest.raises(DataError, match="no pair to encode"):
        EncodedPairs.from_pairs([], tokenizer)
