"""Tiny checkpoints' tokeniser files of every family, made on the fly and wholly offline."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from tests.parity.torture import TEXTS

LINES = [text for text in TEXTS if text.strip() and "\x00" not in text] * 3
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def write(directory: Path, files: dict[str, Any], **configs: dict[str, Any]) -> Path:
    """Files by name; `config=` and `tokenizer_config=` become JSON files."""
    directory.mkdir(parents=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode("utf-8")
        (directory / name).write_bytes(data)
    for name, config in configs.items():
        (directory / f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def wordpiece(lowercase: bool = True) -> str:
    """A vocab.txt."""
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=600, limit_alphabet=300, special_tokens=specials, show_progress=False
    )
    inner.train_from_iterator(LINES, trainer)
    vocab = inner.get_vocab()
    return "".join(f"{token}\n" for token in sorted(vocab, key=lambda token: vocab[token]))


def byte_bpe(specials: Iterable[str], end: str = "") -> dict[str, str]:
    """A vocab.json and a merges.txt; with an `end`, the last piece of a word has it (CLIP)."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=list(specials), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), end_of_word_suffix=end,
    )  # fmt: skip
    inner.train_from_iterator(LINES, trainer)
    model = json.loads(inner.to_str())["model"]
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    return {
        "vocab.json": json.dumps(model["vocab"], ensure_ascii=False),
        "merges.txt": f"#version: 0.2\n{merges}\n",
    }


def unigram(head: list[tuple[str, int]]) -> list[tuple[str, float, int]]:
    """Characters and frequent parts of words with scores, behind a head of special pieces.

    Counted, not trained: the library's trainer breaks ties at random.
    """
    counts: Counter[str] = Counter()
    for line in LINES:
        for word in f" {line[:200]}".replace(" ", " ▁").split():
            counts.update(word[i:j] for i in range(len(word)) for j in range(i + 1, i + 7))
    taken = {text for text, _ in head}
    kept = [text for text, n in counts.items() if text not in taken and (len(text) == 1 or n > 6)]
    # No rare characters: some must be unknown.
    kept = sorted({text for text in kept if counts[text] > 3})
    total = sum(counts[text] for text in kept)
    scores = {text: math.log(counts[text] / total) for text in kept}
    return [(text, 0.0, kind) for text, kind in head] + [(t, scores[t], NORMAL) for t in kept]


def spm_bpe() -> list[tuple[str, float, int]]:
    """Pieces of a BPE model with byte fallback, as LLaMA's."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Metaspace("▁")
    trainer = trainers.BpeTrainer(vocab_size=500, limit_alphabet=200, show_progress=False)
    inner.train_from_iterator(LINES, trainer)
    vocab = inner.get_vocab()
    head = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    head += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    order = sorted(vocab, key=lambda token: vocab[token])
    return head + [(text, -float(i), NORMAL) for i, text in enumerate(order)]


def sentencepiece(
    pieces: list[tuple[str, float, int]],
    model: int = 1,
    *,
    byte_fallback: bool = False,
    charsmap: bytes = b"",
    dummy_prefix: bool = True,
    squeeze: bool = True,
    unk_id: int = 0,
    ids: tuple[int, int, int] = (1, 2, -1),
) -> bytes:
    """The protobuf of a sentencepiece model, written by hand: fields are (number, value) pairs."""
    out = b""
    for text, score, kind in pieces:
        piece = _field(1, text.encode()) + b"\x15" + struct.pack("<f", score)
        out += _field(1, piece + (_field(3, kind) if kind != NORMAL else b""))
    trainer = _field(3, model) + (_field(35, 1) if byte_fallback else b"") + _field(40, unk_id)
    for number, i in zip((41, 42, 43), ids, strict=True):
        trainer += _field(number, i)
    normalizer = _field(2, charsmap) if charsmap else b""
    normalizer += _field(3, int(dummy_prefix)) + _field(4, int(squeeze))
    return out + _field(2, trainer) + _field(3, normalizer)


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value % (1 << 64))
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])
