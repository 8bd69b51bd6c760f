"""The built-in phrasebook: English and Chinese sentence pairs, made by a grammar of our own.

No download and no licence: the grammar draws a meaning and says it in both languages. Either
language determines the other, so a model can be right to the letter, and the sentences held out
combine content words that training never saw together.
"""

import zlib
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from allformer.data.phrasebook.clauses import Sentence
from allformer.data.phrasebook.phrases import Draw
from allformer.data.phrasebook.rules import sentence
from allformer.errors import DataError

# Below, the parts held out would be too small to measure anything; above, the short rules (prices,
# ages, places) are used up and the mixture tilts.
SMALLEST, LARGEST = 2_000, 400_000
_HELD_OUT_PER_MILLE = 12  # of the combinations, for validation and for test each


class Pair(NamedTuple):
    """A sentence in English and in Chinese."""

    en: str
    zh: str


@dataclass(frozen=True)
class Phrasebook:
    """The corpus in its three parts."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]


def part_of(cores: tuple[str, ...]) -> str | None:
    """The part that a sentence with these combinations belongs to, or None if it fits no part.

    A combination belongs to one part for ever, whatever the seed: `part_of(("book+buy+he",))`.
    """
    parts = {_part_of_core(core) for core in cores} - {"train"}
    if len(parts) == 2:
        return None  # half validation, half test: in neither would it be unseen
    return parts.pop() if parts else "train"


@cache
def _part_of_core(core: str) -> str:
    place = zlib.crc32(core.encode()) % 1000  # `hash` would differ from process to process
    if place < _HELD_OUT_PER_MILLE:
        return "validation"
    return "test" if place < 2 * _HELD_OUT_PER_MILLE else "train"


def split_sentences(seed: int, pairs: int) -> dict[str, list[Sentence]]:
    """The sentences of each part with their combinations; `phrasebook` keeps just the pairs."""
    held_out = max(100, pairs // 120)
    room = {"train": pairs - 2 * held_out, "validation": held_out, "test": held_out}
    parts: dict[str, list[Sentence]] = {part: [] for part in room}
    draw, seen, missing = Draw(seed), set[str](), pairs
    while missing:
        drawn = sentence(draw)
        part = part_of(drawn.cores)
        if part is None or drawn.en in seen or len(parts[part]) == room[part]:
            continue
        seen.add(drawn.en)
        parts[part].append(drawn)
        missing -= 1
    return parts


def phrasebook(seed: int = 0, pairs: int = 240_000) -> Phrasebook:
    """The phrasebook with that many pairs in all, the same for the same seed on every machine.

    A 120th of the pairs each (2,000 of 240,000) is for validation and for test::

        book = phrasebook()
        print(book.train[0].en, book.train[0].zh)
    """
    if not SMALLEST <= pairs <= LARGEST:
        raise DataError(
            f"phrasebook: pairs={pairs} is out of range; "
            f"ask for {SMALLEST:,} at least and {LARGEST:,} at most"
        )
    parts = split_sentences(seed, pairs)
    return Phrasebook(**{part: [Pair(s.en, s.zh) for s in drawn] for part, drawn in parts.items()})
