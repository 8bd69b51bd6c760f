"""Trained tokenisers that give every text back as it was, newlines and runs of spaces included.

- "byte-bpe": GPT-2's. Bytes, joined by BPE inside words; a space belongs to the word behind it.
- "characters": every character of the training text is a piece, as in nanoGPT's Shakespeare; one
  that it lacks becomes `<unk>`.
- "bytes": every byte of UTF-8 is a piece.

Nothing is normalised and nothing is put before a text, so decode(encode(x)) == x.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from allformer.errors import ConfigError, DataError

LOSSLESS = ("byte-bpe", "characters", "bytes")
_BYTES = 256
_LONGEST = 16  # characters of a piece: none is a whole clause


def train_lossless(
    lines: Iterable[str], kind: str, vocab: int, specials: Sequence[str]
) -> tokenizers.Tokenizer:
    """The pipeline of one of the three kinds: `train_lossless(lines, "bytes", 300, SPECIALS)`."""
    if kind == "characters":
        return _characters(lines, vocab, specials)
    least = _BYTES + len(specials)
    if vocab < least:
        raise ConfigError(
            f"vocab={vocab} is too small for a {kind} tokeniser: there are {_BYTES} bytes and "
            f"{len(specials)} special tokens; use vocab={least} or more"
        )
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    if kind == "bytes":
        _some(lines)
        numbers = {token: i for i, token in enumerate([*specials, *letters])}
        inner = tokenizers.Tokenizer(models.BPE(numbers, []))
        inner.add_special_tokens(list(specials))
    else:
        inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=kind == "byte-bpe"
    )
    inner.decoder = decoders.ByteLevel()
    if kind == "byte-bpe":
        trainer = trainers.BpeTrainer(
            vocab_size=vocab, min_frequency=2, special_tokens=list(specials),
            initial_alphabet=letters, max_token_length=_LONGEST, show_progress=False,
        )  # fmt: skip
        inner.train_from_iterator(_seen(lines), trainer)
    return inner


def _characters(lines: Iterable[str], vocab: int, specials: Sequence[str]) -> tokenizers.Tokenizer:
    """In the order of their code points, as nanoGPT numbers them."""
    letters: set[str] = set()
    for line in _seen(lines):
        letters.update(line)
    least = len(letters) + len(specials)
    if vocab < least:
        raise ConfigError(
            f"vocab={vocab} is too small for a characters tokeniser: the text has {len(letters)} "
            f"different characters and there are {len(specials)} special tokens; use vocab={least} "
            "or more, or kind=bytes"
        )
    numbers = {token: i for i, token in enumerate([*specials, *sorted(letters)])}
    inner = tokenizers.Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    inner.add_special_tokens(list(specials))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?m:.)"), "isolated")  # (?m: . is "\n" too
    inner.decoder = decoders.Fuse()
    return inner


def byte_ids(inner: object) -> npt.NDArray[np.uint16] | None:
    """The id of each byte, where a pipeline is nothing but that: a long text is then one lookup."""
    if not isinstance(inner, tokenizers.Tokenizer) or not isinstance(inner.model, models.BPE):
        return None
    said = json.loads(inner.to_str())
    before = said["pre_tokenizer"] or {}
    plain = before.get("type") == "ByteLevel" and not before.get("use_regex", True)
    if said["normalizer"] or said["model"]["merges"] or not plain or before["add_prefix_space"]:
        return None
    vocab = said["model"]["vocab"]
    letters = bytes_to_letters()
    if any(letter not in vocab for letter in letters):
        return None
    return np.array([vocab[letter] for letter in letters], np.uint16)


def bytes_to_letters() -> list[str]:
    """The letter that stands for each byte, as GPT-2 has it: itself where it can be printed, else
    the next one from 256 on."""
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printed else chr(next(others)) for byte in range(_BYTES)]


def _seen(lines: Iterable[str]) -> Iterator[str]:
    """Pass the lines on; when they end, raise if there was nothing in them."""
    some = False
    for line in lines:
        some = some or bool(line)
        yield line
    if not some:
        raise DataError("no text to train a tokeniser on: every line is empty")


def _some(lines: Iterable[str]) -> None:
    """The bytes are known without reading; that there is a text is not."""
    if not any(lines):
        raise DataError("no text to train a tokeniser on: every line is empty")
