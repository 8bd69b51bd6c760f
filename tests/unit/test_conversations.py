"""Conversations of records: every usual shape gives the same messages, a broken one is named."""

from __future__ import annotations

from typing import Any

import pytest

from allformer.data.conversations import read_conversation, shape_of
from allformer.errors import DataError

PAIR = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
SHAPES: dict[str, dict[str, Any]] = {
    "messages": {"messages": PAIR},
    "parts of a message": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, PAIR[1]]
    },
    "ShareGPT": {
        "id": "1",
        "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}],
    },
    "ShareGPT with roles": {"conversations": PAIR},
    "Alpaca": {"instruction": "Hi", "input": "", "output": "Hello!"},
    "prompt": {"prompt": "Hi", "completion": "Hello!"},
    "prompt as messages": {"prompt": PAIR[:1], "completion": PAIR[1:]},
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_found_by_its_keys(name):
    assert read_conversation(SHAPES[name]) == (PAIR, None)


def test_alpaca_has_an_input_below_and_a_history_before():
    record = {
        "instruction": "Translate.", "input": "你好", "output": "Hello", "system": "Be brief.",
        "history": [["One?", "1"]],
    }  # fmt: skip
    messages = read_conversation(record).messages
    assert [(m["role"], m["content"]) for m in messages] == [
        ("system", "Be brief."), ("user", "One?"), ("assistant", "1"),
        ("user", "Translate.\n你好"), ("assistant", "Hello"),
    ]  # fmt: skip


def test_a_system_message_of_its_own_stays_alone():
    said = {"messages": [{"role": "system", "content": "A"}, *PAIR], "system": "B"}
    assert [m["content"] for m in read_conversation(said).messages] == ["A", "Hi", "Hello!"]


def test_calls_of_tools_and_the_tools_are_kept():
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    back = {"role": "tool", "content": "3", "name": "f"}
    found = read_conversation(
        {"messages": [PAIR[0], call, back, PAIR[1]], "tools": [{"name": "f"}]}
    )
    assert found.messages[1] == {**call, "content": ""}
    assert found.messages[2] == back
    assert found.tools == [{"name": "f"}]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"text": "x"}, "no conversation in a record with text; there must be messages"),
        ({"messages": []}, r"messages is \[\]; it must be a list"),
        ({"messages": ["Hi"]}, r"messages\[0\] is 'Hi'; it must be an object"),
        ({"messages": [{"role": "robot", "content": "x"}]}, r"messages\[0\].role is 'robot'"),
        ({"conversations": [{"from": "gpt"}]}, r"conversations\[0\].value is None; .* a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "must be a text"),
        ({"instruction": "x"}, "output is None; it must be a text"),
        ({"instruction": "x", "output": "y", "history": ["a"]}, r"history\[0\] is 'a'"),
        ({"prompt": "x"}, "completion is None"),
        ({"messages": PAIR, "tools": "f"}, "tools is 'f'; it must be a list"),
    ],
)
def test_what_is_broken_is_named(record, said):
    with pytest.raises(DataError, match=said):
        read_conversation(record)


def test_a_key_without_a_value_does_not_tell():
    assert shape_of({"messages": None, "instruction": "x"}) == "instruction"
