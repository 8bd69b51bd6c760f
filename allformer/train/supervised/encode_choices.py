"""Questions with their choices as columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from allformer.data.records import Record
from allformer.errors import DataError
from allformer.text.tokenizer import Tokenizer
from allformer.train.supervised.data import text_in
from allformer.train.supervised.packed import rows_of


class Question(NamedTuple):
    """What is asked, the texts that may follow, as they are read, and which of them is right."""

    text: str
    choices: list[str]
    right: int


def question_in(record: Record, several: Sequence[str] = ()) -> Question:
    """A record's question; `several`: its choices stand in columns of their own.

    >>> question_in({"question": "2 + 2?", "choices": ["3", "4"], "label": "B"})
    Question(text='2 + 2?', choices=['3', '4'], right=1)
    """
    names: Sequence[Any] = ()
    if several:
        found = [text_in(record, column) for column in several]
        while found and not found[-1].strip():  # a row of a table that has fewer of them
            found.pop()
    else:
        value = record.get("choices")
        if isinstance(value, dict):  # {"text": […], "label": ["A", …]}, as in ARC
            names, value = value.get("label") or (), value.get("text")
        found = _texts(value)
    if len(found) < 2:
        raise DataError(f"there are {len(found)} choices; a question needs two or more")
    right = _right(record.get("label"), found, list(names))
    begun = text_in(record, "beginning").strip() if "beginning" in record else ""
    return Question(text_in(record, "question"), [f"{begun} {x}".strip() for x in found], right)


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list | tuple):
        raise DataError(f"choices is {value!r}; it must be a list of texts")
    odd = next((i for i, x in enumerate(value) if not isinstance(x, str) or not x.strip()), None)
    if odd is not None:
        raise DataError(f"choices[{odd}] is {value[odd]!r}; it must be a text")
    return list(value)


def _right(value: Any, choices: list[str], names: list[Any]) -> int:
    """The number of the right choice: the label is it, or its letter, its name, or its text."""
    text = value.strip() if isinstance(value, str) else value
    if names:
        found = {i for i, name in enumerate(names) if str(name) == str(text)}
    elif isinstance(text, str):
        found = {i for i, choice in enumerate(choices) if choice.strip() == text}
        letter = len(text) == 1 and text.isascii() and text.isalpha()
        found |= {int(text)} if text.isdecimal() else set()
        found |= {ord(text.upper()) - ord("A")} if letter else set()
    else:
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0
        found = {int(value)} if whole else set()
    found &= set(range(len(choices)))
    if len(found) != 1:
        may = "several choices" if found else "none of the choices"
        raise DataError(
            f"label is {value!r}, which means {may}; of {len(choices)} it must be the number of "
            f"the right one from 0, its letter from A, or its text"
        )
    return found.pop()


@dataclass(frozen=True)
class EncodeChoices:
    """Of each question the ids of all its choices, each behind the question, end to end; `sizes`
    has the length of each."""

    tokenizer: Tokenizer
    longest: int
    several: tuple[str, ...]

    def __call__(self, records: list[Record]) -> dict[str, Any]:
        found = [question_in(record, self.several) for record in records]
        asked = [one.text for one in found for _ in one.choices]
        flat = [choice for one in found for choice in one.choices]
        batch = self.tokenizer(
            asked, flat, padding_side="right", max_length=self.longest, truncate=True
        )
        rows, cut = rows_of(batch), set(batch.cut)
        ends = accumulate((len(one.choices) for one in found), initial=0)
        spans = [slice(a, b) for a, b in pairwise(ends)]
        columns: dict[str, Any] = {
            "ids": _joined(rows, spans),
            "sizes": [[len(row) for row in rows[span]] for span in spans],
            "label": [one.right for one in found],
            "text": [one.text for one in found],
            "right": [one.choices[one.right] for one in found],
            "choices": ["\n".join(x.replace("\n", " ") for x in one.choices) for one in found],
            "cut": [sum(i in cut for i in range(span.start, span.stop)) for span in spans],
        }
        if "token_type_ids" in batch:
            columns["types"] = _joined(rows_of(batch, "token_type_ids"), spans)
        return columns


def _joined(rows: list[list[int]], spans: list[slice]) -> list[list[int]]:
    return [[x for row in rows[span] for x in row] for span in spans]
