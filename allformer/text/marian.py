"""Marian's tokeniser: a sentencepiece model cuts the text, and a table of its own gives the ids.

A Marian checkpoint has one sentencepiece model a language and one `vocab.json` for both, numbered
otherwise than either. No pipeline of the `tokenizers` library does that: an unknown character of
the source may well stand in the table, as a piece of the target. So this class cuts with the
model itself and looks the pieces up, with the methods of
`tokenizers.Tokenizer` that `Tokenizer` uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, models

from allformer.errors import ConfigError
from allformer.text.charsmap import Normalizer
from allformer.text.sentencepiece import (
    CONTROL,
    SPACE,
    SentencePiece,
)
from allformer.text.unigram import Unigram

_BYTE = re.compile("<0x([0-9A-F]{2})>")
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
        self,
        i: int,
        token: str,
        place: tuple[int, int],
        sequence: int | None,
        *,
        word: int | None = None,
        starts: bool = True,
    ) -> None:
        """One more id; `starts` says whether it starts a word, where `word` does not say which."""
        if word is None and sequence is not None:
            last = self.word_ids[-1] if sequence in self.sequence_ids[-1:] else None
            word = 0 if last is None else last + starts
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
                row.add(self.vocab[self.eos], self.eos, (0, 0), None)
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
        text, run = "", b""
        for i in ids:
            piece = self.written.get(i, "")
            if piece in self.added and self.added[piece].special:
                if not skip_special_tokens:
                    text, run = text + self._join(run) + piece + " ", b""
            elif self.spm.byte_fallback and (byte := _BYTE.fullmatch(piece)):
                run += bytes.fromhex(byte[1])
            elif piece not in self._control:
                run += piece.replace(SPACE, " ").encode()
        return (text + self._join(run)).strip()

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
                row.add(self.vocab[match[0]], match[0], (left, right), sequence, word=word)
                at = right
                if token.rstrip:
                    at = len(text) - len(text[right:].lstrip())
        self._cut(row, text[at:], at, sequence, word)

    def _cut(self, row: Pieces, text: str, at: int, sequence: int, word: int | None) -> None:
        if match := _LANGUAGE.match(text):
            code = match[0]
            i = self.vocab.get(code, self.unk)
            row.add(i, code, (at, at + len(code)), sequence, word=word)
            text, at = text[len(code) :], at + len(code)
        normal, places = self._normalize(text)
        left = 0
        for piece, known in self._pieces(normal):
            right = left + len(piece)
            marked = piece.startswith(SPACE) and len(piece) > 1  # the mark is no part of the word
            place = at + places[left + marked][0], at + places[right - 1][1]
            starts = left == 0 or piece.startswith(SPACE)
            for token in [piece] if known or not self.spm.byte_fallback else _as_bytes(piece):
                i = self.vocab.get(token, self.unk)
                row.add(i, token, place, sequence, word=word, starts=starts)
                starts = False
            left = right

    def _join(self, run: bytes) -> str:
        text = run.decode("utf-8", "replace")
        if self.spm.squeeze:
            return text.lstrip(" ")
        return text.removeprefix(" ") if self.spm.dummy_prefix else text

    def _pieces(self, text: str) -> list[tuple[str, bool]]:
        if isinstance(self.model, Unigram):
            return self.model.cut(text)
        unk = self.spm.pieces[self.spm.unk_id].text
        data = text.encode()  # the library counts bytes
        return [
            (data[slice(*token.offsets)].decode(), token.value != unk)
            for token in (self.model.tokenize(text) if text else ())
        ]


def _as_bytes(text: str) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in text.encode()]


def _cutter(model: SentencePiece) -> Unigram | models.BPE:
    if model.model == "unigram":
        return Unigram(model)
    return models.BPE(
        {piece.text: i for i, piece in enumerate(model.pieces)},
        model.merges(),
        unk_token=model.pieces[model.unk_id].text,
        fuse_unk=True,
    )
