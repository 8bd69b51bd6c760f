"""Word and character error rate: edits to turn what was said into what was wanted, by its length.

Spaces are characters, as jiwer counts them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def word_error(wanted: Sequence[str], given: Sequence[str]) -> float:
    """Of whole sets: substituted, left out and added words by the words that were wanted.

    >>> word_error(["the cat sat"], ["a cat sat down"])
    0.6666666666666666
    """
    return _rate([text.split() for text in wanted], [text.split() for text in given])


def character_error(wanted: Sequence[str], given: Sequence[str]) -> float:
    """The same of characters.

    >>> character_error(["cat"], ["cut"])
    0.3333333333333333
    """
    return _rate([text.strip() for text in wanted], [text.strip() for text in given])


def edits(wanted: Sequence[str], given: Sequence[str]) -> int:
    """The fewest substitutions, deletions and insertions between two sequences (Levenshtein).

    >>> edits("kitten", "sitting")
    3
    """
    known: dict[str, int] = {}
    a, b = ([known.setdefault(x, len(known)) for x in side] for side in (wanted, given))
    target, place = np.array(b, dtype=np.int64), np.arange(len(b) + 1)
    row = place
    for done, symbol in enumerate(a, 1):
        best = np.minimum(row[1:] + 1, row[:-1] + (target != symbol))
        # An insertion follows the best of what lies left of it: a running minimum.
        row = np.minimum.accumulate(np.concatenate([[done], best]) - place) + place
    return int(row[-1])


def _rate(wanted: Sequence[Sequence[str]], given: Sequence[Sequence[str]]) -> float:
    wrong = sum(edits(a, b) for a, b in zip(wanted, given, strict=True))
    length = sum(map(len, wanted))
    if not length:
        return float("inf") if wrong else 0.0
    return wrong / length
