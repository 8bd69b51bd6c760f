"""Conversations as ids, and which of them are answers to learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from allformer.data.conversations import ANSWER, Message, read_conversation
from allformer.data.records import Record
from allformer.errors import AllformerError
from allformer.text.answers import Answers, Written
from allformer.text.tokenizer import Tokenizer

GOOD, BLANK, BROKEN = range(3)  # `fault` of a row


class Row(NamedTuple):
    """A text with answers to learn, and the question of the first of them."""

    written: Written
    question: str  # of a broken one what is wrong
    fault: int


@dataclass(frozen=True)
class EncodeChats:
    """A row a conversation, or several where the template rewrites history; uncut, as long as they
    are. `fault` says of a row why nothing can be learnt of it."""

    tokenizer: Tokenizer
    system: str | None = None  # before conversations that have none
    skip_bad: bool = False

    def __call__(self, records: list[Record]) -> dict[str, Any]:
        rows = [row for record in records for row in self._rows(record)]
        return columns(rows, self._answers)

    def _rows(self, record: Record) -> list[Row]:
        try:
            messages, tools = read_conversation(record)
            written = self._answers.write(messages := headed(messages, self.system), tools)
        except AllformerError as error:
            if self.skip_bad:
                return [Row(Written("", []), str(error), BROKEN)]
            raise
        answers = [i for i, message in enumerate(messages) if message["role"] == ANSWER]
        fault = GOOD if any(says(messages[i]) for i in answers) else BLANK
        questions = (_question(messages[:i]) for i in answers)
        return [Row(text, asked, fault) for text, asked in zip(written, questions, strict=False)]

    @cached_property
    def _answers(self) -> Answers:
        return Answers(self.tokenizer)


def columns(rows: Sequence[Any], answers: Answers) -> dict[str, Any]:
    """Rows with `written`, `question` and `fault` as columns of a table."""
    marked = answers.encode(row.written for row in rows)
    return {
        "ids": [each.ids for each in marked],
        "learnt": [[int(is_so) for is_so in each.learnt] for each in marked],
        "question": [row.question for row in rows],
        "fault": [row.fault for row in rows],
    }


def headed(messages: list[Message], system: str | None) -> list[Message]:
    """With `system` before a conversation that has none of its own."""
    if system is None or messages[0]["role"] == "system":
        return messages
    return [{"role": "system", "content": system}, *messages]


def says(message: Message) -> bool:
    """Whether an answer is more than white space; from others a model would learn silence."""
    return bool(message["content"].strip() or message.get("tool_calls"))


def _question(messages: list[Message]) -> str:
    """What an answer behind these is to."""
    asked = (m["content"] for m in reversed(messages) if m["role"] == "user")
    return next(asked, str(messages[-1]["content"]))
