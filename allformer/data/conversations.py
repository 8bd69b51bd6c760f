"""Conversations out of records, whatever form they have; its keys tell which it is.

    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
    {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}  # ShareGPT
    {"instruction": "…", "input": "…", "output": "…"}                                    # Alpaca
    {"prompt": "…", "completion": "…"}                      # texts, or messages as in the first

`system` beside any of them is what stands before; Alpaca may have a `history` of earlier pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from allformer.data.records import Record
from allformer.errors import DataError

Message = dict[str, Any]
ANSWER = "assistant"
# Who speaks, as chat templates call them, and as data does (ShareGPT, LLaMA-Factory).
ROLES = {
    "system": "system", "user": "user", "human": "user", ANSWER: ANSWER, "gpt": ANSWER,
    "chatgpt": ANSWER, "model": ANSWER, "tool": "tool", "observation": "tool",
}  # fmt: skip


class Conversation(NamedTuple):
    """Messages with `role` and `content`, and the tools that a template may want to tell of."""

    messages: list[Message]
    tools: list[Any] | None = None


def read_conversation(record: Record) -> Conversation:
    """`read_conversation({"instruction": "Add 1 and 2.", "output": "3"}).messages`."""
    messages = SHAPES[shape_of(record)](record)
    system = record.get("system")
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": _text(system, "system")})
    tools = record.get("tools") or None
    if tools is not None and not isinstance(tools, list):
        raise DataError(f"tools is {_short(tools)}; it must be a list of JSON schemas")
    return Conversation(messages, tools)


def shape_of(record: Record) -> str:
    """The key that tells a record's form: `shape_of({"messages": […]})` → "messages"."""
    for key in SHAPES:
        if record.get(key) is not None:
            return key
    there = ", ".join(map(str, list(record)[:12])) or "nothing"
    raise DataError(
        f"no conversation in a record with {there}; there must be messages (role, content), "
        f"conversations (from, value), instruction and output, or prompt and completion"
    )


def told_apart(shape: str) -> str | tuple[str, ...]:
    """The keys that say what is asked in records of a shape: `told_apart("instruction")` →
    ("instruction", "input"), as one instruction may go with many inputs."""
    return (shape, "input") if shape == "instruction" else shape


def read_messages(value: Any, name: str = "messages") -> list[Message]:
    """Messages by our names of the roles: `read_messages([{"from": "human", "value": "Hi"}])`."""
    if not isinstance(value, list) or not value:
        raise DataError(f"{name} is {_short(value)}; it must be a list of messages")
    return [_message(entry, f"{name}[{i}]") for i, entry in enumerate(value)]


def _message(entry: Any, where: str) -> Message:
    if not isinstance(entry, Mapping):
        raise DataError(f"{where} is {_short(entry)}; it must be an object with role and content")
    who, what = ("from", "value") if "from" in entry else ("role", "content")
    role = ROLES.get(str(entry.get(who)))
    if role is None:
        raise DataError(
            f"{where}.{who} is {_short(entry.get(who))}; it must be one of {', '.join(ROLES)}"
        )
    content = entry.get(what)
    if content is None and entry.get("tool_calls"):  # said by nothing but a call
        content = ""
    rest = {key: x for key, x in entry.items() if key not in (who, what)}
    return {**rest, "role": role, "content": _text(content, f"{where}.{what}")}


def _text(value: Any, where: str) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        kinds = {part.get("type", "text") for part in value}
        if kinds == {"text"}:
            return "".join(_text(part.get("text"), f"{where}.text") for part in value)
    if not isinstance(value, str):
        raise DataError(f"{where} is {_short(value)}; it must be a text")
    return value


def _alpaca(record: Record) -> list[Message]:
    """The input stands below the instruction, as LLaMA-Factory and others put it."""
    found: list[Message] = []
    for i, pair in enumerate(record.get("history") or ()):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise DataError(f"history[{i}] is {_short(pair)}; it must be a question and an answer")
        found += _pair(*(_text(text, f"history[{i}]") for text in pair))
    asked = [_text(record["instruction"], "instruction")]
    if record.get("input"):
        asked.append(_text(record["input"], "input"))
    return found + _pair("\n".join(asked), _text(record.get("output"), "output"))


def _completion(record: Record) -> list[Message]:
    prompt, completion = record["prompt"], record.get("completion")
    if isinstance(prompt, str):
        return _pair(prompt, _text(completion, "completion"))
    return read_messages(prompt, "prompt") + read_messages(completion, "completion")


def _pair(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": ANSWER, "content": answer}]


SHAPES: dict[str, Callable[[Record], list[Message]]] = {
    "messages": lambda record: read_messages(record["messages"]),
    "conversations": lambda record: read_messages(record["conversations"], "conversations"),
    "instruction": _alpaca,
    "prompt": _completion,
}


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 60 else said[:59] + "…"
