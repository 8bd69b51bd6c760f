"""Texts that are read apart, side by side in a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from allformer.data.records import Record
from allformer.errors import DataError
from allformer.text.tokenizer import Tokenizer
from allformer.train.supervised.data import text_in
from allformer.train.supervised.labels import number_in
from allformer.train.supervised.packed import rows_of


@dataclass(frozen=True)
class EncodePairs:
    """A column of ids and one of texts for each side; `scored`: a number too."""

    tokenizer: Tokenizer
    longest: int
    sides: tuple[str, ...]
    scored: bool

    def __call__(self, records: list[Record]) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        cut = np.zeros(len(records), np.int64)
        for side in self.sides:
            texts = [text_in(record, side) for record in records]
            batch = self.tokenizer(
                texts, padding_side="right", max_length=self.longest, truncate=True
            )
            columns[side], columns[f"{side}_text"] = rows_of(batch), texts
            if not all(columns[side]):
                raise DataError(f"{side} has no tokens; leave the record out")
            cut[batch.cut] += 1
        if self.scored:
            columns["score"] = [_score(record) for record in records]
        return {**columns, "cut": cut}


def _score(record: Record) -> float:
    try:
        return number_in(record.get("score"))
    except DataError:
        raise DataError(f"score is {record.get('score')!r}; it must be a number") from None
