"""Real text, where a machine has it beside the checkout: nothing is lost between file and ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from allformer.data.parallel import open_corpus
from allformer.text.tokenizer import train_tokenizer

DATA = Path(__file__).parents[3] / "shared" / "data"
SETS = {"multi30k": ("en", "de", 29_000, 1_014), "cmn-eng": ("en", "zh", 27_046, 1_056)}


@pytest.mark.parametrize("name", SETS)
def test_real_sentences_come_back_from_their_ids(name):
    if not (DATA / name).is_dir():
        pytest.skip(f"no {name} in shared/data beside the checkout")
    source, target, train_size, validation_size = SETS[name]
    corpus = open_corpus(DATA / name, source, target)
    train = list(corpus.train)
    assert len(train) == train_size
    assert len(list(corpus.validation)) == validation_size
    tokenizer = train_tokenizer((text for pair in train for text in pair), "bpe", 8000)
    assert tokenizer.vocab_size == 8000
    texts = [text for pair in train[::50] for text in pair]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        if tokenizer.unk_id not in ids:
            assert tokenizer.decode(ids) == " ".join(text.split())
    unknown = sum(ids.count(tokenizer.unk_id) for ids in tokenizer.encode_batch(texts))
    assert unknown < 0.001 * len(texts)
