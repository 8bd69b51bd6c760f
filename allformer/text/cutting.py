"""Texts too long for a model: cut to a length, or laid out in windows that overlap."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import tokenizers

from allformer.errors import ConfigError, DataError, LengthError


def copy_tokenizer(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """One of its own, to be changed."""
    try:
        return tokenizers.Tokenizer.from_str(inner.to_str())
    except BaseException as error:  # the library raises plain Exception, or panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(
            f"the tokeniser cannot be copied ({str(error)[:300]}): two of its tokens may have one "
            f"id; copy its files again"
        ) from None


class Cutter:
    """Encodes with a limit. It works on a copy, so that no other caller meets the limit."""

    def __init__(self, inner: tokenizers.Tokenizer, side: str) -> None:
        self._inner = copy_tokenizer(inner)
        self._plain = copy_tokenizer(inner)  # puts nothing around a text
        self._plain.post_processor = None
        for copy in (self._inner, self._plain):
            copy.encode_special_tokens = inner.encode_special_tokens
        self._side = side
        self._lock = Lock()

    def encode_cut(
        self,
        texts: Sequence[Any],
        pairs: Sequence[Any] | None,
        max_length: int | None,
        windows: int | None,
        **options: bool,
    ) -> list[tokenizers.Encoding]:
        """Encodings of at most `max_length` ids; the rest of each is in its `overflowing`."""
        if max_length is None:
            raise ConfigError(
                "truncate and windows need max_length: this tokeniser says no model_max_length"
            )
        with self._lock:
            self._inner.no_truncation()
            self._check_room(texts, pairs, max_length, windows, options)
            inputs = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
            if windows is None:
                self._inner.enable_truncation(max_length, direction=self._side)
                return self._inner.encode_batch(inputs, **options)
            encodings = self._inner.encode_batch(inputs, **options)
            for i, encoding in enumerate(encodings):
                if len(encoding.ids) > max_length:
                    pair = None if pairs is None else pairs[i]
                    encodings[i] = self._windows(texts[i], pair, max_length, windows, options)
            return encodings

    def _windows(
        self, text: Any, pair: Any, max_length: int, shared: int, options: dict[str, bool]
    ) -> tokenizers.Encoding:
        """The first window, and in its `overflowing` the others.

        The whole text is encoded, then cut: with a limit set beforehand `tokenizers` 0.23.2 stops
        reading where the first window is full, and what comes after the second is lost.
        """
        split, special = options["is_pretokenized"], options["add_special_tokens"]
        room = max_length
        if special:
            room -= self._inner.num_special_tokens_to_add(pair is not None)
        first = self._plain.encode(text, is_pretokenized=split)
        if pair is None:
            first.truncate(room, stride=shared, direction=self._side)
            return self._inner.post_process(first, None, special)
        # Behind an empty text, so that it has a pair's token types in every window.
        second = self._plain.encode([] if split else "", pair, is_pretokenized=split)
        second.truncate(room - len(first.ids), stride=shared, direction=self._side)
        return self._inner.post_process(first, second, special)

    def _check_room(
        self,
        texts: Sequence[Any],
        pairs: Sequence[Any] | None,
        max_length: int,
        windows: int | None,
        options: dict[str, bool],
    ) -> None:
        room = max_length
        if options["add_special_tokens"]:
            room -= self._inner.num_special_tokens_to_add(pairs is not None)
        if room < 1 + (pairs is not None):
            raise ConfigError(
                f"max_length={max_length} leaves no room for text beside the special tokens"
            )
        if windows is None:
            return
        if windows < 0:
            raise ConfigError(f"windows={windows} must be 0 or more: ids shared by two windows")
        if pairs is not None:  # each window holds the whole text: that must leave room for the pair
            alone = {**options, "add_special_tokens": False}
            room -= max(map(len, self._inner.encode_batch(list(texts), **alone)), default=0)
        if windows >= room:
            raise LengthError(
                f"windows={windows} must be smaller than the {max(room, 0)} ids that "
                f"max_length={max_length} leaves for each window's part of the text; "
                "make windows smaller or max_length larger"
            )


def check_lengths(lengths: Sequence[int], max_length: int) -> None:
    """Refuse rows longer than `max_length`: `check_lengths([12, 700], 512)` names row 1."""
    for row, length in enumerate(lengths):
        if length > max_length:
            raise LengthError(
                f"text {row} has {length} ids, more than max_length={max_length}; shorten it, or "
                "pass truncate=True to cut it or windows=… to spread it over several rows"
            )
