"""Texts, or pairs of them, and their labels as columns of a table."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from allformer.data.records import Record
from allformer.errors import DataError
from allformer.text.tokenizer import Tokenizer
from allformer.train.supervised.data import text_in
from allformer.train.supervised.labels import Labels, labels_in, number_in
from allformer.train.supervised.packed import rows_of


def tokenizer_key(tokenizer: Tokenizer) -> int:
    """What tells one tokeniser from another."""

    return zlib.crc32(repr(tokenizer.__reduce__()[1]).encode("utf-8", "surrogatepass"))


@dataclass(frozen=True)
class EncodeTexts:
    """Records as ids and labels; in a process of its own too."""

    tokenizer: Tokenizer
    longest: int
    pair: bool
    problem: str
    labels: tuple[str, ...]
    separator: str

    def __call__(self, records: list[Record]) -> dict[str, Any]:
        texts = [text_in(record, "text") for record in records]
        others = [text_in(record, "text_pair") for record in records] if self.pair else None
        labels = [self._label(record.get("label")) for record in records]
        batch = self.tokenizer(
            texts, others, padding_side="right", max_length=self.longest, truncate=True
        )
        ids, cut = rows_of(batch), set(batch.cut)
        if not all(ids):
            raise DataError("the text has no tokens; leave it out")
        columns = {"ids": ids, "label": np.array(labels), "text": texts}
        if others is not None:
            columns["text_pair"] = others
        if "token_type_ids" in batch:
            columns["types"] = rows_of(batch, "token_type_ids")
        return {**columns, "cut": [int(i in cut) for i in range(len(ids))]}

    def _label(self, value: Any) -> Any:
        if self.problem == "regression":
            return number_in(value)
        known = Labels(self.labels)
        if self.problem == "single":
            return known.number(value)
        row = np.zeros(len(self.labels), np.float32)
        row[[known.number(one) for one in labels_in(value, self.separator)]] = 1.0
        return row
