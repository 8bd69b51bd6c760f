"""Sentences of words with a tag each, as pieces: the first piece of a word has its tag.

The words are joined and read as a text, as the task `tag` reads one; the characters of each piece
say which word it belongs to.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from allformer.core.loss import IGNORE
from allformer.data.records import Record
from allformer.errors import DataError
from allformer.text.tokenizer import Tokenizer
from allformer.train.supervised.labels import Labels
from allformer.train.supervised.packed import rows_of


def words_in(record: Record, column: str = "tokens") -> list[str]:
    """The words of a sentence: a list, or a text with spaces between them."""
    value = record.get(column)
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise DataError(f"{column} is {value!r}; it must be a list of words")
    if not words:
        raise DataError(f"{column} has no word in it; leave the sentence out")
    return list(words)


def tags_in(record: Record, column: str = "tags") -> list[Any]:
    """The tags of a sentence: a list of names or numbers, or a text with spaces between them."""
    value = record.get(column)
    tags = value.split() if isinstance(value, str) else value
    if not isinstance(tags, list | tuple):
        raise DataError(f"{column} is {value!r}; it must be a list of tags")
    return list(tags)


@dataclass(frozen=True)
class EncodeWords:
    """Records as ids, labels of the pieces, and which word each labelled piece begins."""

    tokenizer: Tokenizer
    longest: int
    labels: tuple[str, ...]
    separator: str

    def __call__(self, records: list[Record]) -> dict[str, Any]:
        known = Labels(self.labels)
        words = [words_in(record) for record in records]
        tags = [[known.number(tag) for tag in tags_in(record)] for record in records]
        for some, each in zip(words, tags, strict=True):
            if len(some) != len(each):
                raise DataError(f"there are {len(some)} words and {len(each)} tags; give one each")
        batch = self.tokenizer(
            [self.separator.join(some) for some in words],
            padding_side="right", max_length=self.longest, truncate=True,
        )  # fmt: skip
        ids, cut = rows_of(batch), set(batch.cut)
        labels, begun = [], []
        for i, row in enumerate(ids):
            starts = first_pieces(words[i], self.separator, batch.offsets(i)[: len(row)])
            at = dict(zip(starts.values(), starts, strict=True))
            labels.append([tags[i][at[j]] if j in at else IGNORE for j in range(len(row))])
            begun.append(list(starts))
        columns = {"ids": ids, "labels": labels, "begun": begun, "tags": tags}
        if "token_type_ids" in batch:
            columns["types"] = rows_of(batch, "token_type_ids")
        text = [self.separator.join(some) for some in words]
        ends = [[len(word) for word in some] for some in words]
        cuts = [int(i in cut) for i in range(len(ids))]
        return {**columns, "text": text, "widths": ends, "cut": cuts}


def first_pieces(
    words: list[str], separator: str, offsets: list[tuple[int, int]]
) -> dict[int, int]:
    """By word, which piece it begins with: `first_pieces(["an", "ox"], " ", [(0, 2), (3, 5)])`.

    A word that was cut off, or whose characters are all in the piece of the word before, has none.
    """
    step = len(separator)
    ends = list(accumulate((len(word) + step for word in words), initial=0))
    ends = [end - step for end in ends[1:]]
    found: dict[int, int] = {}
    for piece, (start, end) in enumerate(offsets):
        if start == end:
            continue  # a special token
        word = bisect_right(ends, start)  # the first that ends behind the piece's start
        if word < len(words) and ends[word] - len(words[word]) < end:
            found.setdefault(word, piece)
    return found
