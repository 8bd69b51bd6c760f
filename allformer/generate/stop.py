"""When a sequence is done: an end token, a stop string, or no time left.

A stop string is found in the text that the tokens spell, over token borders and inside tokens, as
soon as the token that completes it is there. It may have begun in the prompt.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import tokenizers
import torch
from torch import Tensor

from allformer.errors import ConfigError

_BEFORE = "abcdef"  # what a token is spelt after, so that a mark of its left border shows
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Stop:
    """`Stop(eos=(3,), strings=("\\n",), tokenizer=tok)(ids)` → which rows are done."""

    def __init__(
        self,
        eos: Sequence[int] = (),
        strings: Sequence[str] = (),
        tokenizer: Any = None,
        max_time: float | None = None,
    ) -> None:
        self.eos = tuple(eos)
        self.spelling = Spelling(tokenizer) if strings else None
        self.strings = [text.encode() for text in strings]
        # A string of n characters ends with the last token and began at most n tokens before.
        self.reach = max(map(len, strings), default=0)
        if self.spelling is not None and self.spelling.kind:
            self.reach = max(map(len, self.strings))
        self.deadline = None if max_time is None else time.monotonic() + max_time

    @property
    def needs_host(self) -> bool:
        """Whether it can only be said by looking at the tokens, or at the clock."""
        return self.spelling is not None or self.deadline is not None

    @property
    def late(self) -> bool:
        """Whether there is no time left."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def __call__(self, ids: Tensor) -> Tensor:
        """rows L → rows, True where the last token ends the sequence."""
        last = ids[:, -1]
        done = torch.zeros_like(last, dtype=torch.bool)
        for token in self.eos:
            done = done | (last == token)
        if self.spelling is not None:
            ends = [self._ends(row) for row in ids[:, -self.reach :].tolist()]
            done = done | torch.tensor(ends, device=ids.device)
        if self.late:
            done = torch.ones_like(done)
        return done

    def _ends(self, row: list[int]) -> bool:
        assert self.spelling is not None
        *before, last = (self.spelling(token) for token in row)
        head = b"".join(before)
        # What is found must use the last token (an earlier one was the prompt's own), so all but
        # one of its bytes may stand before it.
        return any(
            string in head[max(0, len(head) - len(string) + 1) :] + last for string in self.strings
        )


class Spelling:
    """The bytes that a token adds to a text: `Spelling(tokenizer)(id)`.

    Takes a `tokenizers.Tokenizer`, what holds one (Allformer's and transformers' fast tokenisers),
    what has `convert_tokens_to_string` (transformers' slow ones), or what can `decode` ids.
    """

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer is None:
            raise ConfigError(
                "stop_strings needs the tokeniser to spell tokens; give tokenizer=, "
                "or leave stop_strings out"
            )
        inner = inner_tokenizer(tokenizer)
        self._cache: dict[int, bytes] = {}
        self._token: Any
        self._join: Any
        self._base: list[str] | None
        self.kind = ""
        if inner is not None:
            self._token = inner.id_to_token
            self._base = inner.encode(_BEFORE, add_special_tokens=False).tokens
            decoder = inner.decoder
            self._join = " ".join if decoder is None else decoder.decode
            self.kind = _byte_kind(decoder)
        elif hasattr(tokenizer, "convert_tokens_to_string"):
            self._token = tokenizer.convert_ids_to_tokens
            ids = tokenizer(_BEFORE, add_special_tokens=False)["input_ids"]
            self._base = [tokenizer.convert_ids_to_tokens(i) for i in ids]
            self._join = tokenizer.convert_tokens_to_string
        elif hasattr(tokenizer, "decode"):
            # Nothing is known of its pieces: a token is spelt after itself.
            self._token, self._base = int, None
            self._join = partial(_whole(tokenizer).decode, skip_special_tokens=False)
        else:
            raise ConfigError(
                f"tokenizer={type(tokenizer).__name__} cannot spell its tokens; give a "
                f"tokenizers.Tokenizer, or one of Allformer or transformers"
            )

    def __call__(self, token: int) -> bytes:
        if token not in self._cache:
            self._cache[token] = self._spell(token)
        return self._cache[token]

    def _spell(self, token: int) -> bytes:
        piece = self._token(token)
        if piece is None:  # an id that the model has and the tokeniser has not
            return b"\xff"  # is in no text
        raw = _raw_bytes(piece, self.kind)
        if raw is not None:
            return raw
        base = [piece] if self._base is None else self._base
        before, text = self._join(base), self._join([*base, piece])
        return str(text[len(before) :] if text.startswith(before) else piece).encode()


def inner_tokenizer(tokenizer: Any) -> Any:
    """The `tokenizers.Tokenizer` that does the work, if there is one."""
    inside = (tokenizer, getattr(tokenizer, "backend_tokenizer", None), _whole(tokenizer))
    return next((each for each in inside if isinstance(each, tokenizers.Tokenizer)), None)


def _whole(tokenizer: Any) -> Any:
    """What is inside an Allformer tokeniser: it decodes special tokens too."""
    return getattr(tokenizer, "_inner", tokenizer)


def _byte_kind(decoder: Any) -> str:
    """How a token may be part of a character: "fallback" has <0xE4>, "level" GPT-2's alphabet."""
    if decoder is None:
        return ""
    if type(decoder).__name__ == "ByteLevel":
        return "level"
    try:
        kinds = _types(json.loads(decoder.__getstate__()))
    except (TypeError, ValueError, AttributeError):
        return ""
    return "fallback" if "ByteFallback" in kinds else "level" if "ByteLevel" in kinds else ""


def _types(state: Any) -> set[str]:
    if isinstance(state, dict):
        return {str(state.get("type"))}.union(*map(_types, state.values()))
    return set().union(*map(_types, state)) if isinstance(state, list) else set()


def _raw_bytes(piece: str, kind: str) -> bytes | None:
    if kind == "fallback":
        byte = _BYTE.fullmatch(piece)
        return bytes([int(byte[1], 16)]) if byte else None
    if kind == "level" and all(letter in _ALPHABET for letter in piece):
        return bytes(_ALPHABET[letter] for letter in piece)
    return None


def _byte_alphabet() -> dict[str, int]:
    """GPT-2 writes each byte as one visible character: itself, or the next free one from 256 on."""
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = [byte for byte in range(256) if byte not in own]
    return {chr(b): b for b in own} | {chr(256 + n): b for n, b in enumerate(rest)}


_ALPHABET = _byte_alphabet()
