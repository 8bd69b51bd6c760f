"""BPE-dropout over a corpus: the same text, other cuts each epoch, as likely as the library's."""

import numpy as np
import pytest

from allformer.data import bpe_dropout
from allformer.data.bpe_dropout import Recut
from allformer.data.encoded import EncodedPairs
from allformer.errors import ConfigError, DataError
from allformer.text.tokenizer import Tokenizer, train_tokenizer

PAIRS = [
    (f"the dog sees number {i}, 新年好", f"der Hund sieht die Nummer {i}!") for i in range(150)
]
PAIRS[7] = ("", "nichts")  # a row without words
PAIRS[8] = ("<s> ▁ </s>", "the é <unk>")  # text that looks like the tokeniser's own signs


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([text for pair in PAIRS for text in pair], vocab=300)


def test_without_a_merge_left_out_the_ids_are_the_tokenisers(tokenizer, monkeypatch):
    monkeypatch.setattr(bpe_dropout, "_CHUNK", 7)
    plain = EncodedPairs.from_pairs(PAIRS, tokenizer)
    pairs = Recut.from_pairs(iter(PAIRS), tokenizer, dropout=1e-12)(seed=0, epoch=0)
    assert len(pairs) == len(plain)
    for i in range(len(PAIRS)):
        assert pairs.source(i).tolist() == plain.source(i).tolist()
        assert pairs.target(i).tolist() == plain.target(i).tolist()
    assert (pairs.dropped, pairs.longest) == (0, plain.longest)
    assert pairs.sources.ids.dtype == np.uint16


def test_each_epoch_cuts_the_same_text_anew(tokenizer):
    plain = EncodedPairs.from_pairs(PAIRS, tokenizer)
    cut = Recut.from_pairs(PAIRS, tokenizer, dropout=0.3)
    epochs = [cut(seed=0, epoch=epoch) for epoch in (0, 1)]
    for pairs in epochs:
        assert pairs.source_lengths.sum() > plain.source_lengths.sum()
        for i in range(len(PAIRS)):
            assert tokenizer.decode(pairs.source(i)) == tokenizer.decode(plain.source(i))
            assert tokenizer.decode(pairs.target(i)) == tokenizer.decode(plain.target(i))
    assert epochs[0].sources.ids.tolist() != epochs[1].sources.ids.tolist()


def test_words_are_cut_as_finely_as_the_library_cuts_whole_texts(tokenizer):
    """No draw can be seeded: the bounds are some ten standard deviations wide."""
    cut = Recut.from_pairs(PAIRS, tokenizer, dropout=0.2)
    mine = np.mean([cut(0, epoch).target_lengths.mean() for epoch in range(40)])
    targets = [target for _, target in PAIRS]
    hers = np.mean([len(ids) for ids in tokenizer.encode_batch(targets * 40, dropout=0.2)])
    plain = np.mean([len(tokenizer.encode(target)) for target in targets])
    assert hers > 1.2 * plain
    assert mine == pytest.approx(hers, rel=0.06)


def test_long_pairs_are_dropped_and_counted(tokenizer):
    limit = max(len(tokenizer.encode(source)) for source, _ in PAIRS[:9])
    pairs = Recut.from_pairs(PAIRS[:9], tokenizer, dropout=0.5, max_length=limit)(0, 0)
    assert pairs.dropped > 0
    assert len(pairs) == 9 - pairs.dropped > 0
    assert max(pairs.source_lengths.max(), pairs.target_lengths.max()) <= limit < pairs.longest
    texts = {tuple(map(tokenizer.decode, map(tokenizer.encode, pair))) for pair in PAIRS[:9]}
    for i in range(len(pairs)):
        assert (tokenizer.decode(pairs.source(i)), tokenizer.decode(pairs.target(i))) in texts


def test_nothing_left_is_an_error(tokenizer):
    with pytest.raises(DataError, match=r"max_length=1 drops all 6 pairs"):
        Recut.from_pairs(PAIRS[:6], tokenizer, dropout=0.1, max_length=1)(0, 0)
    with pytest.raises(DataError, match="no pair to encode"):
        Recut.from_pairs([], tokenizer, dropout=0.1)
    other = train_tokenizer(["one two", "two three"], "unigram", 30)
    with pytest.raises(ConfigError, match="needs a tokeniser of kind 'bpe'"):
        Recut.from_pairs([("one", "two")], other, dropout=0.1)
