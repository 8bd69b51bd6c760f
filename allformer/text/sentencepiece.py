"""Read a sentencepiece model file (`spiece.model`, `tokenizer.model`, `source.spm`).

The file is one protobuf message. We need a dozen of its fields, and the wire format is a list of
(number, value) pairs, so that forty lines read it; the sentencepiece package or protobuf with its
generated code would be a further dependency, and is missing on many machines. Field numbers:
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from allformer.errors import DataError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # the kinds of a piece
_MODELS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
SPACE = "▁"  # U+2581, sentencepiece's mark of a space


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary; its place in the list is its id."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePiece:
    """What the file holds: `read_sentencepiece("t5-small/spiece.model").pieces[3].text`."""

    path: Path
    pieces: tuple[Piece, ...]
    model: str  # "unigram" or "bpe"
    byte_fallback: bool
    unk_id: int
    names: dict[str, str]  # "bos", "eos", "unk", "pad" → piece, where the model has one
    charsmap: bytes  # the compiled table of character replacements; empty: none
    dummy_prefix: bool  # a space is put before the text
    squeeze: bool  # spaces at the ends are dropped, runs become one

    def merges(self, by_score: bool = True) -> list[tuple[str, str]]:
        """The merges of a BPE model, best first: of equal ones that with the longer left side.

        So sentencepiece merges. transformers 5 takes the order of the ids instead, which differs
        for LLaMA's runs of spaces: their scores put them last, their ids do not.
        """
        known = {piece.text for piece in self.pieces}
        merges = [
            (piece.score, piece.text[:i], piece.text[i:])
            for piece in self.pieces
            for i in range(1, len(piece.text))
            if piece.text[:i] in known and piece.text[i:] in known
        ]
        if by_score:
            merges.sort(key=lambda merge: (-merge[0], -len(merge[1]), -len(merge[2])))
        return [(left, right) for _, left, right in merges]


def read_sentencepiece(path: Path) -> SentencePiece:
    """Open a sentencepiece model: `read_sentencepiece(Path("llama/tokenizer.model"))`."""
    data = path.read_bytes()
    try:
        model = _model(path, data)
    except (IndexError, ValueError, TypeError, struct.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path} is no sentencepiece model, or is damaged ({len(data):,} bytes: {error}); "
            "copy it again from where the checkpoint came"
        ) from None
    return model


def _model(path: Path, data: bytes) -> SentencePiece:
    pieces: list[Piece] = []
    trainer: dict[int, bytes | int] = {}
    normalizer: dict[int, bytes | int] = {}
    for number, value in _fields(data):
        if number == 1:
            fields = dict(_fields(_bytes(value)))
            score = struct.unpack("<f", _bytes(fields.get(2, b"\0\0\0\0")))[0]
            pieces.append(Piece(_text(fields[1]), score, _int(fields.get(3, NORMAL))))
        elif number == 2:
            trainer = dict(_fields(_bytes(value)))
        elif number == 3:
            normalizer = dict(_fields(_bytes(value)))
    if not pieces:
        raise ValueError("it has no pieces")
    kind = _int(trainer.get(3, 1))
    if kind not in (1, 2):
        raise DataError(
            f"{path} is a sentencepiece model of type {_MODELS.get(kind, kind)!r}; "
            "only unigram and bpe are known here: train the model anew as one of these"
        )
    if trainer.get(24, 0):
        raise DataError(
            f"{path} has treat_whitespace_as_suffix=true, which is not supported; "
            "train the model with spaces at the head of words, sentencepiece's default"
        )
    names = {}
    for name, at, piece_at, default in (
        ("unk", 40, 45, 0), ("bos", 41, 46, 1), ("eos", 42, 47, 2), ("pad", 43, 48, -1),
    ):  # fmt: skip
        i = _int(trainer.get(at, default))
        if 0 <= i < len(pieces):
            names[name] = _text(trainer[piece_at]) if piece_at in trainer else pieces[i].text
    return SentencePiece(
        path=path,
        pieces=tuple(pieces),
        model=_MODELS[kind],
        byte_fallback=bool(trainer.get(35, 0)),
        unk_id=_int(trainer.get(40, 0)),
        names=names,
        charsmap=_bytes(normalizer.get(2, b"")),
        dummy_prefix=bool(normalizer.get(3, 1)),
        squeeze=bool(normalizer.get(4, 1)),
    )


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(field number, value) of one message; a later value of a field replaces an earlier one."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        value: bytes | int
        if wire == 0:
            value, at = _varint(data, at)
        else:
            if wire == 2:
                size, at = _varint(data, at)
            elif wire in (1, 5):
                size = 8 if wire == 1 else 4
            else:
                raise ValueError(f"byte {at} starts a field of unknown kind {wire}")
            value = data[at : at + size]
            at += size
            if at > len(data):
                raise ValueError(f"a field reaches to byte {at}, past the end")
        yield tag >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if value >= 1 << 63:  # a negative number, in two's complement
        value -= 1 << 64
    return value, at


def _bytes(value: bytes | int) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"a field holds the number {value} where text or a message belongs")
    return value


def _int(value: bytes | int) -> int:
    if not isinstance(value, int):
        raise TypeError("a field holds text where a number belongs")
    return value


def _text(value: bytes | int) -> str:
    return _bytes(value).decode("utf-8")
