"""The likeliest span of a passage, from scores of where it begins and ends.

A span's score is P(it begins here) · P(it ends there), each a softmax over the passage and the
first token (the place of "no answer"). A long passage is read in windows that overlap, each with
the whole question and a softmax of its own; the best span of all windows wins.

Legend: T tokens of a window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Words = dict[int, tuple[int, int]]  # by number, the characters of a passage's words


class Span(NamedTuple):
    """Characters of the passage, and how likely they are the answer."""

    start: int
    end: int
    score: float


class Window:
    """One row: where an answer may be, and how likely it begins and ends at each place.

    `first` and `last` are scores, T; `passage` says which tokens are the passage's, `nothing` which
    stand for no answer; `offsets` and `words` are each token's characters and word.
    """

    def __init__(
        self,
        first: Tensor,
        last: Tensor,
        passage: Sequence[bool],
        nothing: Sequence[bool],
        offsets: Sequence[tuple[int, int]],
        words: Sequence[int | None],
    ) -> None:
        self.offsets, self.words = offsets, words
        self.passage, empty = torch.tensor(passage), torch.tensor(nothing)
        away = ~(self.passage | empty)
        self.first = first.masked_fill(away, float("-inf")).softmax(-1)
        self.last = last.masked_fill(away, float("-inf")).softmax(-1)
        self.empty = float((self.first * self.last)[empty].sum())  # that there is no answer

    def best(self, top: int, longest: int, words: Words | None) -> list[Span]:
        """The likeliest spans of at most `longest` tokens, widened to whole `words` if given."""
        first, last = self.first * self.passage, self.last * self.passage
        scores = (first[:, None] * last[None, :]).triu().tril(longest - 1)  # T T
        values, flat = scores.flatten().topk(min(top, scores.numel()))
        out = []
        for value, where in zip(values.tolist(), flat.tolist(), strict=True):
            i, j = divmod(where, len(first))
            if self.passage[i] and self.passage[j]:
                start, end = self.offsets[i][0], self.offsets[j][1]
                if words is not None:
                    start, end = self._word(words, i)[0], self._word(words, j)[1]
                out.append(Span(start, end, value))
        return out

    def _word(self, words: Words, i: int) -> tuple[int, int]:
        """The characters of the word that token i is a part of."""
        word = self.words[i]
        return self.offsets[i] if word is None else words[word]


def add_words(words: Words, tokens: Iterable[tuple[int | None, tuple[int, int]]]) -> None:
    """Add the words of a window's passage; one that a window cuts through goes on in the next."""
    for word, (start, end) in tokens:
        if word is not None:
            first, last = words.get(word, (start, end))
            words[word] = min(first, start), max(last, end)


def ranked(spans: Iterable[Span], top: int) -> list[Span]:
    """Best first, each once: two windows, or two cuts of a word, may give the same."""
    best: dict[tuple[int, int], Span] = {}
    for one in sorted(spans, key=lambda one: -one.score):
        best.setdefault((one.start, one.end), one)
    return list(best.values())[:top]


def trimmed(passage: str, span: Span) -> Span:
    """Without spaces at its ends: some tokens hold the space before them."""
    start, end, score = span
    while start < end and passage[start].isspace():
        start += 1
    while end > start and passage[end - 1].isspace():
        end -= 1
    return Span(start, end, score)
