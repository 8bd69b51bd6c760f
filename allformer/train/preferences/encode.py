"""Preferences as ids, and which of them are the answers that are compared: a row an answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from allformer.data.conversations import ANSWER, Conversation
from allformer.data.preferences import read_pair, read_verdicts
from allformer.data.records import Record
from allformer.errors import AllformerError
from allformer.text.answers import Answers, Written
from allformer.text.tokenizer import Tokenizer
from allformer.train.supervised.encode_chats import BLANK, BROKEN, GOOD, columns, headed, says

SAME = 1 + max(GOOD, BLANK, BROKEN)  # `fault` of a pair whose answers do not differ


class Row(NamedTuple):
    """A conversation whose last answer counts, what was asked, what is wrong, and its number: by
    how much the pair's answers differ in worth, or whether the answer is good."""

    written: Written
    question: str
    fault: int
    value: float


@dataclass(frozen=True)
class EncodePreferences:
    """Rows of answers, uncut. Of a pair two, the better one first; of a verdict one."""

    tokenizer: Tokenizer
    pairs: bool
    system: str | None = None  # before conversations that have none
    skip_bad: bool = False

    def __call__(self, records: list[Record]) -> dict[str, Any]:
        rows = [row for record in records for row in self._rows(record)]
        return {**columns(rows, self._answers), "value": [row.value for row in rows]}

    def _rows(self, record: Record) -> list[Row]:
        try:
            return self._pair(record) if self.pairs else self._verdicts(record)
        except AllformerError:
            if self.skip_bad:
                return [Row(Written("", []), "", BROKEN, 0.0)] * (2 if self.pairs else 1)
            raise

    def _pair(self, record: Record) -> list[Row]:
        pair = read_pair(record)
        sides = (pair.chosen, pair.rejected)
        rows = [self._row(side, pair.shared, pair.margin) for side in sides]
        same = pair.chosen.messages == pair.rejected.messages
        fault = SAME if same else max(row.fault for row in rows)
        return [row._replace(fault=fault) for row in rows]

    def _verdicts(self, record: Record) -> list[Row]:
        return [
            self._row(conversation, shared, float(good))
            for conversation, shared, good in read_verdicts(record)
        ]

    def _row(self, conversation: Conversation, shared: int, value: float) -> Row:
        """Of a template that rewrites history, a text of the last answer alone."""
        given, tools = conversation
        messages = headed(given, self.system)
        shared += len(messages) - len(given)
        own = [message for message in messages[shared:] if message["role"] == ANSWER]
        text, spans = self._answers.write(messages, tools)[-1]
        asked = (m["content"] for m in reversed(messages[:shared]) if m["role"] == "user")
        question = next(asked, str(messages[0]["content"]))
        fault = GOOD if any(map(says, own)) else BLANK
        return Row(Written(text, spans[-len(own) :]), question, fault, value)

    @cached_property
    def _answers(self) -> Answers:
        return Answers(self.tokenizer)
