"""Prompts as ids, with what a reward may want to know of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from allformer.data.prompts import Asked, read_prompt
from allformer.data.records import Record
from allformer.errors import AllformerError
from allformer.text.answers import Answers
from allformer.text.tokenizer import Tokenizer
from allformer.train.supervised.encode_chats import BROKEN, GOOD, headed


class Row(NamedTuple):
    """What is asked, the record it stands in, and what is wrong with it."""

    asked: Asked
    record: Record
    fault: int


@dataclass(frozen=True)
class EncodePrompts:
    """A row a prompt, uncut: `ids`, `question`, and as JSON the messages and the record."""

    tokenizer: Tokenizer
    system: str | None = None  # before conversations that have none
    skip_bad: bool = False

    def __call__(self, records: list[Record]) -> dict[str, Any]:
        rows = [self._row(record) for record in records]
        return {
            "ids": self._ids([row.asked for row in rows]),
            "question": [row.asked.question for row in rows],
            "answer": [row.asked.answer for row in rows],
            "messages": [json.dumps(row.asked.messages, ensure_ascii=False) for row in rows],
            "record": [json.dumps(dict(x.record), ensure_ascii=False, default=str) for x in rows],
            "fault": [row.fault for row in rows],
        }

    def _row(self, record: Record) -> Row:
        try:
            asked = read_prompt(record)
        except AllformerError as error:
            if self.skip_bad:
                return Row(Asked([], None, str(error)), {}, BROKEN)
            raise
        if asked.messages:
            asked = asked._replace(messages=headed(asked.messages, self.system))
        return Row(asked, record, GOOD)

    def _ids(self, asked: Sequence[Asked]) -> list[list[int]]:
        written = [self._answers.ask(x.messages, x.tools) for x in asked if x.text is None]
        chats = iter(self._answers.encode(written))
        return [next(chats).ids if x.text is None else self._plain(x.text) for x in asked]

    def _plain(self, text: str) -> list[int]:
        """With what the tokeniser puts before a text, and without what it puts behind it."""
        ids = list(self.tokenizer.encode(text))
        end = self.tokenizer.special_ids.get("eos")
        return ids[:-1] if len(ids) > 1 and ids[-1] == end else ids

    @cached_property
    def _answers(self) -> Answers:
        return Answers(self.tokenizer)
