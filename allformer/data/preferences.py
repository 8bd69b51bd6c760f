"""Preferences out of records, whatever form they have: pairs of answers, or answers with a verdict.

    {"prompt": "…", "chosen": "…", "rejected": "…"}            # texts, or messages (TRL)
    {"chosen": [messages], "rejected": [messages]}             # what both begin with is the prompt
    {"conversations": […], "chosen": {"from": "gpt", …}, "rejected": …}   # LLaMA-Factory, ShareGPT
    {"messages": […], "chosen": {"role": "assistant", …}, "rejected": …}
    {"instruction": "…", "input": "…", "chosen": "…", "rejected": "…"}    # LLaMA-Factory, Alpaca

    {"messages": […], "label": true}        # any form of a conversation, and whether it is good
    {"prompt": "…", "completion": "…", "label": false}

`system` and `tools` stand beside any of them, and so may a pair's `margin`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from allformer.data.conversations import (
    ANSWER,
    SHAPES,
    Conversation,
    read_conversation,
    shape_of,
)
from allformer.data.records import Record
from allformer.errors import DataError

CHOSEN, REJECTED = "chosen", "rejected"
VERDICTS = ("label", "kto_tag")  # TRL's name and LLaMA-Factory's
_YES, _NO = (True, 1, "true", "True", "1"), (False, 0, "false", "False", "0")


class Pair(NamedTuple):
    """Two conversations that begin alike; the first one ends better."""

    chosen: Conversation
    rejected: Conversation
    shared: int  # messages that both begin with
    margin: float = 0.0  # by how much it is better, where the data says so


class Verdict(NamedTuple):
    """A conversation, and whether its answer is a good one."""

    conversation: Conversation
    shared: int  # messages before the answer that is judged
    good: bool


def is_pair(record: Record) -> bool:
    """Whether a record has two answers: `is_pair({"prompt": "…", "completion": "…"})` is False."""
    return record.get(CHOSEN) is not None or record.get(REJECTED) is not None


def pair_shape(record: Record) -> str:
    """The key that tells what was asked: `pair_shape({"chosen": […], "rejected": […]})` →
    "chosen", as the prompt is in there."""
    if is_pair(record) and not any(record.get(key) is not None for key in SHAPES):
        return CHOSEN
    return shape_of(record)


def read_pair(record: Record) -> Pair:
    """`read_pair({"prompt": "1 + 1?", "chosen": "2", "rejected": "3"}).shared` → 1."""
    for name in (CHOSEN, REJECTED):
        if record.get(name) is None:
            there = ", ".join(map(str, list(record)[:12])) or "nothing"
            raise DataError(
                f"no pair in a record with {there}: {name} is missing; there must be chosen and "
                f"rejected beside prompt, conversations, messages or instruction"
            )
    chosen, rejected = (_whole(record, name) for name in (CHOSEN, REJECTED))
    both = zip(chosen.messages, rejected.messages, strict=False)
    shared = next((i for i, (a, b) in enumerate(both) if a != b), -1)
    if shared < 0:  # one goes on where the other ends, or they are the same
        shared = min(len(chosen.messages), len(rejected.messages)) - 1
    for name, side in ((CHOSEN, chosen), (REJECTED, rejected)):
        if not any(message["role"] == ANSWER for message in side.messages[shared:]):
            raise DataError(f"{name} has no answer (role assistant) of its own; give it one")
    if not shared:
        raise DataError("chosen and rejected begin with different messages; give both one prompt")
    return Pair(chosen, rejected, shared, _margin(record.get("margin")))


def read_verdicts(record: Record) -> list[Verdict]:
    """A record's verdict; of a pair two, a good one and a bad one.

    >>> read_verdicts({"prompt": "1 + 1?", "completion": "3", "label": False})[0].good
    False
    """
    if is_pair(record):
        pair = read_pair(record)
        return [Verdict(pair.chosen, pair.shared, True), Verdict(pair.rejected, pair.shared, False)]
    name = next((name for name in VERDICTS if record.get(name) is not None), None)
    if name is None:
        raise DataError("there is no label; it must say whether the answer is good: true or false")
    value = record[name]
    if value not in _YES and value not in _NO:
        raise DataError(f"{name} is {value!r}; it must say whether the answer is good: true, false")
    conversation = read_conversation(record)
    answers = [i for i, m in enumerate(conversation.messages) if m["role"] == ANSWER]
    if not answers:
        raise DataError("there is no answer (role assistant) to judge; leave it out")
    return [Verdict(conversation, answers[-1], value in _YES)]


def _whole(record: Record, name: str) -> Conversation:
    """The conversation with one of the two answers."""
    asked, said = _asked(record), _said(record[name], name, alone=pair_shape(record) == CHOSEN)
    beside = {key: record[key] for key in ("system", "tools") if record.get(key) is not None}
    return read_conversation({"messages": [*asked, *said], **beside})


def _asked(record: Record) -> list[Any]:
    """The messages before the answers, as they are written in the record."""
    shape = pair_shape(record)
    if shape == CHOSEN:
        return []
    if shape == "instruction":
        return read_conversation({**record, "output": "", "system": None}).messages[:-1]
    asked = record[shape]
    if isinstance(asked, str):
        return [{"role": "user", "content": asked}]
    if not isinstance(asked, list):
        raise DataError(f"{shape} is {asked!r}; it must be a text or a list of messages")
    return asked


def _said(value: Any, name: str, alone: bool) -> list[Any]:
    """An answer as messages: a text, a message or a list of them."""
    if isinstance(value, str):
        if alone:
            raise DataError(
                f"{name} is a text and there is no prompt, so that nobody can tell where the "
                f"answer begins; give prompt, or messages with their roles"
            )
        return [{"role": ANSWER, "content": value}]
    if isinstance(value, Mapping):
        return [value]
    if isinstance(value, list) and value:
        return value
    raise DataError(f"{name} is {value!r}; it must be a text, a message or a list of messages")


def _margin(value: Any) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"margin is {value!r}; it must be a number: how much better chosen is")
    return float(value)
