"""SigLIP's sentencepiece tokeniser: the ids that transformers' SiglipTokenizer gives."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from allformer.errors import DataError
from allformer.text.load import load_tokenizer
from allformer.text.sentencepiece import read_sentencepiece
from tests.parity.test_tokenizers import GOLDEN, T5, oracle
from tests.parity.torture import TEXTS
from tests.parity.vocabularies import NORMAL, sentencepiece, unigram, write

pytest.importorskip("transformers")
pytest.importorskip("sentencepiece", reason="SiglipTokenizer, the oracle, is made of it")

# The library composes letters with their marks before it looks them up, and `</s>` inside a text
# parts it otherwise where punctuation follows.
OTHERWISE = ("e\u0301\u0323", "か\u3099", "</s> <pad>")
FURTHER = [
    "!", "! a", "a . b", "a</s>b", "a <unk> b</s>  C", "A photo of a CAT.", "naïve, isn't it?",
    "▁a▁b", "\u00a0a\u3000b\u2028", "3.14 (pi)", "_under_score_",
]  # fmt: skip


@pytest.fixture(scope="module")
def spiece(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("charsmap") / "source.spm"
    file.write_bytes(base64.b64decode(GOLDEN["files"]["source.spm"]))
    # Counts are often equal, and of equally good cuts the package takes another.
    pieces = [(x, y - 1e-4 * i, z) for i, (x, y, z) in enumerate(unigram(T5))]
    known = {text for text, _, _ in pieces}
    pieces += [(x, -9.0, NORMAL) for x in "<>" if x not in known]  # it encodes "<unk>" + the text
    charsmap = read_sentencepiece(file).charsmap
    return sentencepiece(pieces, charsmap=charsmap, unk_id=2, ids=(-1, 1, 0))


def directory(tmp_path: Path, spiece: bytes, **options: object) -> Path:
    configs = {"config": {"model_type": "siglip"}}
    if options:
        configs["tokenizer_config"] = {"tokenizer_class": "SiglipTokenizer", **options}
    return write(tmp_path / "siglip", {"spiece.model": spiece}, **configs)


def check_siglip_ids(tmp_path: Path, spiece: bytes, **options: object) -> None:
    here = directory(tmp_path, spiece, **options)
    theirs, ours = oracle(here), load_tokenizer(here)
    for text in (*TEXTS, *FURTHER):
        if not any(odd in text for odd in OTHERWISE):
            assert ours.encode(text) == theirs.encode(text), text
            plain = theirs.encode(text, add_special_tokens=False)
            assert ours.encode(text, add_special_tokens=False) == plain, text
    assert ours.encode("a cat", "a dog") == theirs.encode("a cat", "a dog")
    assert {name: getattr(theirs, f"{name}_token_id") for name in ("eos", "unk", "pad")} == {
        name: ours.special_ids[name] for name in ("eos", "unk", "pad")
    }
    assert ours.model_max_length == theirs.model_max_length
    assert len(ours) == len(theirs)


def test_ids_are_those_of_transformers(tmp_path: Path, spiece: bytes) -> None:
    check_siglip_ids(tmp_path, spiece)


def test_the_settings_of_a_published_directory_hold(tmp_path: Path, spiece: bytes) -> None:
    flags = {"lstrip": True, "rstrip": True, "normalized": False, "special": True}
    added = {"1": {"content": "</s>", **flags}, "2": {"content": "<unk>", **flags}}
    options = {"added_tokens_decoder": added, "model_max_length": 16, "pad_token": "</s>"}
    check_siglip_ids(tmp_path, spiece, do_lower_case=False, **options)


def test_what_is_saved_opens_the_same_here_and_in_transformers(
    tmp_path: Path, spiece: bytes
) -> None:
    ours = load_tokenizer(directory(tmp_path, spiece))
    saved = ours.save(tmp_path / "saved").parent
    again, theirs = load_tokenizer(saved), oracle(saved)
    for text in (*TEXTS, *FURTHER):
        assert ours.encode(text) == again.encode(text) == theirs.encode(text), text
    assert again.model_max_length == theirs.model_max_length == 64


def test_rows_are_filled_up_with_the_end(tmp_path: Path, spiece: bytes) -> None:
    ours = load_tokenizer(directory(tmp_path, spiece))
    ids = ours(["a cat", "a much longer text"])["input_ids"][0]
    assert ids[-1] == ours.special_ids["eos"] == ours.special_ids["pad"] == 1


def test_a_vocabulary_without_its_unknown_is_refused(tmp_path: Path) -> None:
    file = sentencepiece([("a", -1.0, NORMAL), ("</s>", 0.0, 3)], unk_id=0)
    with pytest.raises(DataError, match="the vocabulary has no <unk>"):
        load_tokenizer(directory(tmp_path, file))
