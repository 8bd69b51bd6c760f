"""Prompts out of records, whatever form they have: what a model is asked, without an answer.

{"prompt": "…"}                      # a question, or messages (TRL)
{"messages": […]}                    # and every other form of a conversation, or of a pair of
{"instruction": "…", "input": "…"}   # answers: the last answer is left out
{"text": "…"}                        # a text that is continued as it stands, without a template
"""

from __future__ import annotations

from typing import Any, NamedTuple

from allformer.data.conversations import ANSWER, SHAPES, Message, read_conversation
from allformer.data.preferences import is_pair, read_pair
from allformer.data.records import Record
from allformer.errors import DataError

TEXT = "text"


class Asked(NamedTuple):
    """Messages that an answer comes behind, or a text that goes on."""

    messages: list[Message]
    tools: list[Any] | None = None
    text: str | None = None
    answer: str = ""  # that the data has, of which nothing is learnt

    @property
    def question(self) -> str:
        """What was said last by the one who asks, or the text."""
        if self.text is not None:
            return self.text
        asked = (m["content"] for m in reversed(self.messages) if m["role"] == "user")
        return next(asked, str(self.messages[-1]["content"]))


def read_prompt(record: Record) -> Asked:
    """`read_prompt({"instruction": "Add 1 and 2.", "output": "3"}).question` → "Add 1 and 2."."""
    if is_pair(record):
        pair = read_pair(record)
        messages, tools = pair.chosen
        return _cut(messages, pair.shared, tools)
    shape = prompt_shape(record)
    if shape == TEXT:
        if not isinstance(record[TEXT], str) or not record[TEXT].strip():
            raise DataError(f"text is {record[TEXT]!r}; it must be a text that can go on")
        return Asked([], None, record[TEXT])
    messages, tools = read_conversation(_answered(record, shape))
    last = max((i for i, m in enumerate(messages) if m["role"] != ANSWER), default=-1)
    if last < 0 or messages[0]["role"] == ANSWER:
        raise DataError("nobody asks anything: there is no message of a user before the answer")
    return _cut(messages, last + 1, tools)


def _cut(messages: list[Message], shared: int, tools: list[Any] | None) -> Asked:
    said = "\n".join(m["content"] for m in messages[shared:] if m["role"] == ANSWER)
    return Asked(messages[:shared], tools, None, said)


def prompt_shape(record: Record) -> str:
    """The key that tells a record's form: `prompt_shape({"prompt": "Hi"})` → "prompt"."""
    for key in (*SHAPES, TEXT):
        if record.get(key) is not None:
            return key
    if is_pair(record):
        return "chosen"
    there = ", ".join(map(str, list(record)[:12])) or "nothing"
    raise DataError(
        f"no prompt in a record with {there}; there must be prompt, messages (role, content), "
        f"conversations (from, value), instruction, or text"
    )


def _answered(record: Record, shape: str) -> Record:
    """With an empty answer where there is none, so that it is read as a conversation."""
    if shape == "instruction" and record.get("output") is None:
        return {**record, "output": ""}
    if shape == "prompt" and record.get("completion") is None:
        asked = record["prompt"]
        return {**record, "completion": "" if isinstance(asked, str) else [_EMPTY]}
    return record


_EMPTY = {"role": ANSWER, "content": ""}
