"""Bytes as ids without a search: of a tokeniser whose pieces are the 256 bytes, one look-up each.

The `tokenizers` library makes an object for every piece, 200 bytes of memory a byte of text: a text
of a hundred million bytes as one document (enwik8) would not fit. Here it is a table of 256 ids.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Pipeline

from allformer.text.tokenizer import Tokenizer

Array = np.ndarray[Any, Any]


def byte_table(tokenizer: Tokenizer) -> Array | None:
    """The id of each byte, where the tokeniser takes every byte for a piece and special tokens for
    text: `byte_table(train_tokenizer(texts, "bytes", 300))`; of any other `None`."""
    inner = tokenizer._inner
    if not isinstance(inner, Pipeline) or not tokenizer.settings.split_special_tokens:
        return None
    said: dict[str, Any] = json.loads(inner.to_str())
    model, before = said["model"], said["pre_tokenizer"] or {}
    plain = (
        model["type"] == "BPE"
        and not model["merges"]
        and said["normalizer"] is None
        and before.get("type") == "ByteLevel"
        and not before["add_prefix_space"]
        and not before["use_regex"]
    )
    if not plain:
        return None
    return np.array([model["vocab"][letter] for letter in _letters()], np.uint16)


def byte_ids(table: Array, text: str) -> Array:
    """`byte_ids(byte_table(tokenizer), "Ünïcode")`: as `tokenizer.encode`."""
    return np.asarray(table[np.frombuffer(text.encode("utf-8"), np.uint8)])


def _letters() -> list[str]:
    """The letter that stands for each byte, as GPT-2 chose them: printable ones for themselves, the
    others in their order from 256 on."""
    own = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in own else chr(next(others)) for byte in range(256)]
