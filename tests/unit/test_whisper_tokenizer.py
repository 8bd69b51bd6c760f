"""The tokeniser of OpenAI's Whisper files, from tiktoken's vocabularies."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from allformer.errors import ConfigError, DataError
from allformer.text.load import load_tokenizer
from allformer.text.tiktoken import openai_whisper_tokenizer, read_ranks
from allformer.text.whisper import LANGUAGES, language_code, special_tokens

MERGED = ["th", "he", " th", "the", " the", "at", " c", " cat", "cat"]
TEXTS = [" the cat", "thethe at", "hat 你好 ♪\n  the", "<|en|> the", ""]


def vocabulary(folder: Path, languages: int = 2) -> tuple[Path, int]:
    """256 bytes in an order of their own, nine longer tokens, and how many the model has."""
    tokens = [bytes([(7 * i + 3) % 256]) for i in range(256)] + [x.encode() for x in MERGED]
    lines = [f"{base64.b64encode(token).decode()} {i}" for i, token in enumerate(tokens)]
    file = folder / "small.tiktoken"
    file.write_text("\n".join(lines) + "\n")
    return file, len(tokens) + len(special_tokens(languages))


def check_merges(folder: Path) -> None:
    file, size = vocabulary(folder)
    tokenizer = openai_whisper_tokenizer(size, file)
    ranks = {bytes(token): i for token, i in read_ranks(file).items()}

    def ids(*pieces: str) -> list[int]:
        return [ranks[piece.encode()] for piece in pieces]

    for text, pieces in {
        " the cat": (" the", " cat"),
        "thethe": ("the", "the"),  # one word, in which "th" comes before "he"
        "that": ("th", "at"),
        " cath": (" c", "a", "th"),  # "th" comes before "at"
    }.items():
        assert tokenizer.encode(text, add_special_tokens=False) == ids(*pieces), text


def test_what_ranks_lower_is_merged_first(tmp_path: Path) -> None:
    check_merges(tmp_path)


def test_special_tokens_follow_the_words(tmp_path: Path) -> None:
    file, size = vocabulary(tmp_path)
    tokenizer = openai_whisper_tokenizer(size, file)
    assert tokenizer.vocab_size == size
    names = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|zh|>", "<|translate|>"]
    assert [tokenizer.token_to_id(name) for name in names] == list(range(265, 270))
    assert tokenizer.token_to_id("<|30.00|>") == size - 1
    start, untimed = tokenizer.token_to_id(names[1]), tokenizer.token_to_id("<|notimestamps|>")
    assert tokenizer.encode(" the") == [start, untimed, 260, 265]
    for text in TEXTS:
        plain = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(plain, skip_special_tokens=False) == text


def test_it_is_saved_as_transformers_has_it(tmp_path: Path) -> None:
    from transformers import WhisperTokenizer

    file, size = vocabulary(tmp_path)
    tokenizer = openai_whisper_tokenizer(size, file)
    tokenizer.save(tmp_path / "saved")
    theirs, again = (
        WhisperTokenizer.from_pretrained(tmp_path / "saved"),
        load_tokenizer(tmp_path / "saved"),
    )
    for text in TEXTS:
        assert theirs(text).input_ids == again.encode(text) == tokenizer.encode(text)


def test_a_vocabulary_of_another_size_is_refused(tmp_path: Path) -> None:
    file, size = vocabulary(tmp_path)
    for wrong in (size - 2, size + 100):
        with pytest.raises(DataError, match=r"265 tokens, which with .* do not make the model's"):
            openai_whisper_tokenizer(wrong, file)
    file.write_text("not base64 at all\n")
    with pytest.raises(DataError, match=r"no vocabulary of tiktoken's"):
        openai_whisper_tokenizer(size, file)
    with pytest.raises(DataError, match="cannot be read"):
        openai_whisper_tokenizer(size, tmp_path / "none.tiktoken")


def test_without_the_package_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allformer.text.tiktoken.find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install openai-whisper"):
        openai_whisper_tokenizer(51_864)


def test_languages_by_code_and_name() -> None:
    assert language_code("Chinese") == language_code("zh") == language_code("Mandarin") == "zh"
    assert len(LANGUAGES) == 100
    with pytest.raises(ConfigError, match="none of Whisper's"):
        language_code("klingon")


@pytest.mark.slow
@pytest.mark.parametrize("size", [51_864, 51_865, 51_866])
def test_the_real_vocabulary_gives_openais_own_ids(size: int) -> None:
    openai = pytest.importorskip("whisper.tokenizer", reason="openai-whisper is not installed")
    ours, theirs = (
        openai_whisper_tokenizer(size),
        openai.get_tokenizer(size > 51_864, num_languages=100 if size > 51_865 else 99),
    )
    text = " Hello, world! It's 42 °C — “quoted” ♪♪ [DAVID] 你好，世界。 Ünïcödé  \n\n tabs\t"
    assert ours.encode(text, add_special_tokens=False) == theirs.encode(text)
    assert {name: ours.token_to_id(name) for name in theirs.special_tokens} == theirs.special_tokens
