"""Texts too long for a model: cut to a length, or laid out in windows that overlap."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import tokenizers

from allformer.errors import ConfigError, LengthError


class Cutter:
    """Encodes with a limit. It works on a copy, so that no other caller meets the limit."""

    def __init__(self, inner: tokenizers.Tokenizer, side: str) -> None:
        self._inner = tokenizers.Tokenizer.from_str(inner.to_str())
        self._inner.encode_special_tokens = inner.encode_special_tokens
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
            self._inner.enable_truncation(
                max_length,
                stride=windows or 0,
                strategy="longest_first" if windows is None or pairs is None else "only_second",
                direction=self._side,
            )
            inputs = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
            return self._inner.encode_batch(inputs, **options)

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
