"""Questions on passages as windows: ids, and between which tokens the answer stands."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from allformer.data.records import Record
from allformer.errors import DataError
from allformer.text.batch import Batch
from allformer.text.tokenizer import Tokenizer
from allformer.train.supervised.data import text_in
from allformer.train.supervised.packed import rows_of


class Wanted(NamedTuple):
    """An answer and the character of the passage where it begins."""

    text: str
    start: int


def answers_in(record: Record) -> list[Wanted]:
    """SQuAD's answers: `{"text": […], "answer_start": […]}`, or a list of objects; none: there is
    no answer (SQuAD 2). One that does not stand where it says is refused."""
    value, passage = record.get("answers"), text_in(record, "context")
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start")
        if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
            value = [{"text": t, "answer_start": s} for t, s in zip(texts, starts, strict=True)]
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise DataError(
            f"answers is {str(value)[:60]!r}; it must be text and answer_start, as SQuAD has them"
        )
    found = [Wanted(one.get("text"), one.get("answer_start")) for one in value]
    for text, start in found:
        right = isinstance(text, str) and isinstance(start, int) and start >= 0
        if not right or not passage.startswith(text, start) or not text.strip():
            raise DataError(
                f"the answer {text!r} does not stand at answer_start={start!r} of the context; "
                f"mend the offset (characters, not bytes)"
            )
    return found


@dataclass(frozen=True)
class EncodeQuestions:
    """A record as one row or several; `whole` keeps what is needed to find answers in them."""

    tokenizer: Tokenizer
    longest: int
    stride: int
    whole: bool

    def __call__(self, records: list[Record]) -> dict[str, Any]:
        questions = [text_in(record, "question") for record in records]
        passages = [text_in(record, "context") for record in records]
        wanted = [answers_in(record) for record in records]
        batch = self.tokenizer(
            questions, passages, padding_side="right",
            max_length=self.longest, windows=min(self.stride, self.longest // 2),
        )  # fmt: skip
        ids = rows_of(batch)
        rows = [Row.read(batch, i, len(row)) for i, row in enumerate(ids)]
        first = [not i or text != batch.texts[i - 1] for i, text in enumerate(batch.texts)]
        nothing = [row.index(self.tokenizer.cls_id) for row in ids]
        spans = [
            row.tokens(wanted[text][:1]) or (none, none)
            for row, text, none in zip(rows, batch.texts, nothing, strict=True)
        ]
        columns: dict[str, Any] = {
            "ids": ids, "first": list(map(int, first)), "nothing": nothing,
            "start": [span[0] for span in spans], "end": [span[1] for span in spans],
        }  # fmt: skip
        if "token_type_ids" in batch:
            columns["types"] = rows_of(batch, "token_type_ids")
        if not self.whole:
            return columns
        texts = {"question": questions, "context": passages, "answers": list(map(_told, wanted))}
        for name, side in texts.items():  # with the first window alone
            each = zip(batch.texts, first, strict=True)
            columns[name] = [side[text] if begins else "" for text, begins in each]
        columns |= {"from": [row.first for row in rows], "words": [row.words for row in rows]}
        columns["begins"] = [[place[0] for place in row.places] for row in rows]
        columns["ends"] = [[place[1] for place in row.places] for row in rows]
        return columns


def _told(wanted: list[Wanted]) -> str:
    return json.dumps([one.text for one in wanted], ensure_ascii=False)


class Row(NamedTuple):
    """The passage in one window: its first token, and each token's characters and word."""

    first: int
    places: list[tuple[int, int]]
    words: list[int]  # −1: none

    @classmethod
    def read(cls, batch: Batch, row: int, length: int) -> Row:
        sequences, words = batch.sequence_ids(row)[:length], batch.word_ids(row)
        inside = [i for i, sequence in enumerate(sequences) if sequence == 1]
        if not inside:
            raise DataError("the context has no tokens; leave the question out")
        offsets = batch.offsets(row)
        numbers = [-1 if words[i] is None else int(words[i] or 0) for i in inside]
        return cls(inside[0], [offsets[i] for i in inside], numbers)

    def tokens(self, wanted: list[Wanted]) -> tuple[int, int] | None:
        """The first and the last token of the answer; None where it is not all in the window."""
        if not wanted:
            return None
        start = wanted[0].start
        end = start + len(wanted[0].text)
        if self.places[0][0] > start or self.places[-1][1] < end:
            return None
        first = max(i for i, place in enumerate(self.places) if place[0] <= start)
        last = min(i for i, place in enumerate(self.places) if place[1] >= end)
        return self.first + first, self.first + max(first, last)
