"""Tokens into words, each with its own tokens.

    split(tokens, decode, end=50256, spaced=True)      # [(" Hello", [18435]), (",", [11]), …]

A token of a byte-level vocabulary may end within a character, so tokens are first joined until
they spell whole characters. Where a language puts spaces between words, those are then joined up
to the next space or sign of punctuation; Chinese, Japanese, Thai, Lao and Burmese do not, and each
run of whole characters stands alone there (the rule of openai-whisper).
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
_BROKEN = "\ufffd"  # what a decoder writes for bytes that are no character
_PATIENCE = 8  # tokens that are waited for: a character has four bytes at most

Spelling = Callable[[list[int]], str]
Spelt = tuple[str, list[int]]


def split(tokens: Sequence[int], decode: Spelling, end: int, spaced: bool) -> list[Spelt]:
    """The words of `tokens` and the tokens of each.

    `decode` spells any tokens, special ones (`end` and above) by their names; these are words of
    their own. `spaced`: the language has spaces between words.
    """
    characters = _characters(tokens, decode, end)
    return _between_spaces(characters, end) if spaced else characters


def _characters(tokens: Sequence[int], decode: Spelling, end: int) -> list[Spelt]:
    """The shortest runs of tokens that spell whole characters; no token is lost."""
    whole = decode(list(tokens))
    out: list[Spelt] = []
    waiting: list[int] = []
    seen = 0  # characters of `whole` that `out` has
    for token in tokens:
        if token >= end and waiting:  # bytes that never became a character
            out.append((decode(waiting), waiting))
            waiting = []
        waiting.append(token)
        text = decode(waiting)
        # A broken character counts as whole where it is broken in the whole text too.
        at = seen + text.find(_BROKEN)
        broken = _BROKEN in text and whole[at : at + 1] != _BROKEN
        if not broken or len(waiting) == _PATIENCE:
            out.append((text, waiting))
            waiting = []
            seen += len(text)
    return [*out, (decode(waiting), waiting)] if waiting else out


def _between_spaces(pieces: Sequence[Spelt], end: int) -> list[Spelt]:
    """Pieces joined up to the next one that starts a word: a space, punctuation, a special one."""
    out: list[Spelt] = []
    for text, tokens in pieces:
        # One sign, or several that stand so in the list of all (as in the reference); a piece of
        # spaces alone is such a sign too.
        starts = tokens[0] >= end or text.startswith(" ") or text.strip() in string.punctuation
        if starts or not out:
            out.append((text, list(tokens)))
        else:
            before, those = out[-1]
            out[-1] = (before + text, those + tokens)
    return out
