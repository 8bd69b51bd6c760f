"""Marian's tokeniser: a sentencepiece model cuts the text, and a table of its own gives the ids.

A Marian checkpoint has one sentencepiece model a language and one `vocab.json` for both, numbered
otherwise than either. No pipeline of the `tokenizers` library does that: an unknown character of
the source may well stand in the table, as a piece of the target. So this class cuts with the
library's Unigram or BPE model and looks the pieces up itself, with the methods of
`tokenizers.Tokenizer` that `Tokenizer` uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models

from allformer.errors import ConfigError, DataError
from allformer.text.charsmap import Normalizer
from allformer.text.sentencepiece import (
    CONTROL,
    NORMAL,
    SPACE,
    USER_DEFINED,
    SentencePiece,
    read_sentencepiece,
)
from allformer.text.sidecar import read_json

_LANGUAGE = re.compile(r">>.*?<<", re.DOTALL)  # ">>fra<< Hello": the language to translate into


@dataclass
class Pieces:
    """An encoded text, with the names of `tokenizers.Encoding`."""

    ids: list[int] = field(default_factory=list)
    type_ids: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    offsets: list[tuple[int, int]] = field(default_factory=list)
    word_ids: list[int | None] = field(default_factory=list)
    sequence_ids: list[int | None] = field(default_factory=list)
    overflowing: list[Pieces] = field(default_factory=list)

    def add(
        self, i: int, token: str, place: tuple[int, int], word: int | None, sequence: int | None
    ) -> None:
        self.ids.append(i)
        self.type_ids.append(sequence or 0)
        self.tokens.append(token)
        self.offsets.append(place)
        self.word_ids.append(word)
        self.sequence_ids.append(sequence)

    def cut(self, size: int) -> None:
        """Drop all but the first `size` ids, and say so in `overflowing`."""
        if len(self.ids) > size:
            self.overflowing = [Pieces()]
            for name in ("ids", "type_ids", "tokens", "offsets", "word_ids", "sequence_ids"):
                del getattr(self, name)[size:]


class MarianPipeline:
    """`MarianPipeline(source, vocab, decoder, added, "<unk>", "</s>")`: one language's side."""

    encode_special_tokens = False  # True: "</s>" in the text is text
    decoder = None
    target: MarianPipeline  # the other language's side
    files: dict[str, bytes]  # what it was read from

    def __init__(
        self,
        model: SentencePiece,
        vocab: dict[str, int],
        written: dict[int, str],
        added: dict[str, AddedToken],
        unk: str,
        eos: str,
    ) -> None:
        self.spm = model
        self.vocab = vocab  # of the text that is read
        self.written = written  # id → piece of what the model writes
        self.added = added
        self.unk, self.eos = vocab[unk], eos
        self.model = _cutter(model)
        self._normalize = Normalizer(model)
        self._control = {piece.text for piece in model.pieces if piece.kind == CONTROL}
        names = sorted(added, key=len, reverse=True)
        self._split = re.compile("|".join(map(re.escape, names))) if names else None

    def encode_batch(
        self,
        inputs: Sequence[Any],
        add_special_tokens: bool = True,
        is_pretokenized: bool = False,
        max_length: int | None = None,
    ) -> list[Pieces]:
        """Like `tokenizers.Tokenizer.encode_batch`; an input is a text or a (text, pair)."""
        out = []
        for one in inputs:
            row = Pieces()
            for sequence, text in enumerate(one if isinstance(one, tuple) else (one,)):
                for number, word in enumerate(text if is_pretokenized else (text,)):
                    self._encode(row, word, sequence, number if is_pretokenized else None)
            if max_length is not None:
                row.cut(max_length - add_special_tokens)
            if add_special_tokens:
                row.add(self.vocab[self.eos], self.eos, (0, 0), None, None)
            out.append(row)
        return out

    encode_batch_fast = encode_batch

    def encode_cut(
        self,
        texts: Sequence[Any],
        pairs: Sequence[Any] | None,
        max_length: int | None,
        windows: int | None,
        **flags: bool,
    ) -> list[Pieces]:
        """At most `max_length` ids a text; what is cut off shows in `overflowing`."""
        if windows is not None:
            raise ConfigError("windows are for questions and passages; Marian translates sentences")
        inputs = texts if pairs is None else list(zip(texts, pairs, strict=True))
        return self.encode_batch(inputs, max_length=max_length, **flags)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Join the pieces of what the model wrote; each special token stands alone."""
        text, run = "", ""
        for i in ids:
            piece = self.written.get(i, "")
            if piece in self.added and self.added[piece].special:
                if not skip_special_tokens:
                    text, run = text + run.lstrip(" ") + piece + " ", ""
            elif piece not in self._control:
                run += piece.replace(SPACE, " ")
        return (text + run.lstrip(" ")).strip()

    def token_to_id(self, token: str) -> int | None:
        return self.vocab.get(token)

    def id_to_token(self, i: int) -> str | None:
        return self.written.get(i)

    def get_vocab_size(self) -> int:
        return len(self.vocab)

    def no_truncation(self) -> None:
        """It never cuts unless asked."""

    def no_padding(self) -> None:
        """It never pads."""

    def _encode(self, row: Pieces, text: str, sequence: int, word: int | None) -> None:
        at = 0
        if self._split is not None and not self.encode_special_tokens:
            for match in self._split.finditer(text):
                token = self.added[match[0]]
                left, right = match.span()
                before = text[at:left].rstrip() if token.lstrip else text[at:left]
                self._cut(row, before, at, sequence, word)
                row.add(self.vocab[match[0]], match[0], (left, right), word, sequence)
                at = right
                if token.rstrip:
                    at = len(text) - len(text[right:].lstrip())
        self._cut(row, text[at:], at, sequence, word)

    def _cut(self, row: Pieces, text: str, at: int, sequence: int, word: int | None) -> None:
        if match := _LANGUAGE.match(text):
            code = match[0]
            row.add(self.vocab.get(code, self.unk), code, (at, at + len(code)), word, sequence)
            text, at = text[len(code) :], at + len(code)
        normal, places = self._normalize(text)
        starts = _characters(normal)
        number = row.word_ids[-1] if row.word_ids and row.sequence_ids[-1] == sequence else None
        for token in self.model.tokenize(normal) if normal else ():
            left, right = starts[token.offsets[0]], starts[token.offsets[1]]
            if word is None and (number is None or token.value.startswith(SPACE)):
                number = 0 if number is None else number + 1
            place = at + places[left][0], at + places[right - 1][1]
            if normal[left] == SPACE and left + 1 < right:  # the mark is no part of the word
                place = at + places[left + 1][0], place[1]
            row.add(
                self.vocab.get(token.value, self.unk),
                token.value,
                place,
                number if word is None else word,
                sequence,
            )


def _cutter(model: SentencePiece) -> Any:
    if model.model == "bpe":
        return models.BPE(
            {piece.text: i for i, piece in enumerate(model.pieces)},
            model.merges(),
            unk_token=model.pieces[model.unk_id].text,
            fuse_unk=True,
            byte_fallback=model.byte_fallback,
        )
    best = max((p.score for p in model.pieces if p.kind == NORMAL), default=0.0)
    pieces = [(model.pieces[model.unk_id].text, 0.0)]
    for piece in model.pieces:
        if piece.kind == NORMAL or (model.byte_fallback and piece.text.startswith("<0x")):
            pieces.append((piece.text, piece.score))
        elif piece.kind == USER_DEFINED:  # the score that sentencepiece gives them
            pieces.append((piece.text, len(piece.text.encode()) * best - 0.1))
    return models.Unigram(pieces, unk_id=0, byte_fallback=model.byte_fallback)


def _characters(text: str) -> dict[int, int]:
    """Where each character starts in UTF-8 → its number; the library counts bytes there."""
    out, at = {}, 0
    for i, char in enumerate(text):
        out[at] = i
        at += len(char.encode("utf-8", "surrogatepass"))
    out[at] = len(text)
    return out


def read_marian(
    directory: Path,
    names: dict[str, str],
    added: dict[int, AddedToken],
    extra: Sequence[str | AddedToken],
    separate: bool,
) -> MarianPipeline:
    """The pipeline of a directory's files; that of its target language is its `target`."""
    files = ["source.spm", "target.spm", "vocab.json"] + ["target_vocab.json"] * separate
    missing = [name for name in files if not (directory / name).is_file()]
    if missing:
        raise DataError(
            f"{directory} has no {' and no '.join(missing)}: a MarianTokenizer needs it"
        )
    tokens = {token.content: token for _, token in sorted(added.items())}
    for token in (*names.values(), *extra):
        tokens.setdefault(
            str(token),
            token if isinstance(token, AddedToken) else AddedToken(token, special=True),
        )
    vocabs = [_read_vocab(directory / name, names["unk"], tokens, added) for name in files[2:]]
    written = {i: token for token, i in vocabs[-1].items()}
    sides = [
        MarianPipeline(read_sentencepiece(directory / name), vocab, written, tokens,
                       names["unk"], names["eos"])
        for name, vocab in zip(files, (vocabs[0], vocabs[-1]), strict=False)
    ]  # fmt: skip
    for side in sides:
        side.target = sides[1]
        side.files = {name: (directory / name).read_bytes() for name in files}
    return sides[0]


def _read_vocab(
    file: Path, unk: str, tokens: dict[str, AddedToken], added: dict[int, AddedToken]
) -> dict[str, int]:
    vocab = read_json(file) or {}
    if unk not in vocab:
        raise DataError(f"{file} has no {unk}, the token of what it lacks: a Marian model needs it")
    vocab |= {token.content: i for i, token in added.items()}
    for token in tokens:
        vocab.setdefault(token, len(vocab))
    return vocab
