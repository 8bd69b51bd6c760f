"""Chat templates: a conversation to the one text that a chat model was trained on.

A template is a jinja2 program that came with the checkpoint, so it is not trusted: it runs in
jinja2's immutable sandbox, within bounds of time and memory (`text.sandbox`), and sees plain data
only. Same text as transformers gives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import numpy as np

from allformer.errors import ConfigError

_OTHERS = (  # transformers' arguments that we do not have: never handed to the template unseen
    "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs",
    "return_assistant_tokens_mask", "sanitize_control_tokens",
)  # fmt: skip
_THOUGHT = ("reasoning_content", "thinking", "reasoning")  # names of one thing in templates
_MARK = "\ue000continue\ue001 "  # private-use characters, in no message; the space shows a trim
BEGIN, END = "\ue000answer\ue001", "\ue000answered\ue001"  # around what `generation` holds


def apply_template(
    templates: str | Mapping[str, str] | None,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = False,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    chat_template: str | None = None,
    marked: bool = False,
    **variables: Any,
) -> str:
    """`apply_template("{{ messages[0].content }}", [{"role": "user", "content": "Hi"}])`.

    `marked` leaves BEGIN and END around what the template says the model wrote (`generation`).
    """
    refused = [name for name in _OTHERS if name in variables]
    if refused:
        raise ConfigError(
            f"apply_chat_template has no {', '.join(refused)}: take its text and call the "
            "tokeniser on it with add_special_tokens=False"
        )
    if not messages:
        raise ConfigError("messages is empty: a conversation has at least one message")
    if continue_final_message and add_generation_prompt:
        raise ConfigError(
            "continue_final_message leaves the last message open and add_generation_prompt starts "
            "a new one: choose one of them"
        )
    if any(callable(tool) for tool in tools or ()):
        raise ConfigError("tools must be JSON schemas (dicts); write the function's schema")
    template = _compile(_choose(templates, chat_template, tools))
    chat = [_with_thought(_plain(message)) for message in messages]
    if continue_final_message:
        _mark_end(chat[-1])
    from allformer.text.sandbox import bounded

    try:
        with bounded():
            text = template.render(
                messages=chat,
                tools=_plain(tools),
                documents=_plain(documents),
                add_generation_prompt=add_generation_prompt,
                **_plain(variables),
            )
    except Exception as error:  # whatever the template's own program does wrong
        said = str(error)[:500]
        raise ConfigError(f"the chat template refuses this conversation: {said}") from error
    text = _open_end(text) if continue_final_message else text
    return text if marked else text.replace(BEGIN, "").replace(END, "")


def _choose(templates: str | Mapping[str, str] | None, asked: str | None, tools: Any) -> str:
    if isinstance(templates, Mapping):
        if asked is None:
            asked = "tool_use" if tools is not None and "tool_use" in templates else "default"
            if asked not in templates:
                raise ConfigError(
                    "there are several chat templates and none is the default; name one with "
                    f"chat_template=: {', '.join(sorted(templates))}"
                )
        return templates.get(asked, asked)
    chosen = asked or templates
    if not chosen:
        raise ConfigError(
            "this tokeniser has no chat template: its checkpoint has no chat_template.jinja and "
            "no chat_template in tokenizer_config.json; give one with chat_template= "
            "(--chat-template FILE)"
        )
    return chosen


def _mark_end(message: dict[str, Any]) -> None:
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _MARK
        return
    for block in reversed(content or ()):
        if "text" in block:
            block["text"] += _MARK
            return
    raise ConfigError("continue_final_message: the last message has no content to go on with")


def _open_end(text: str) -> str:
    end = text.rfind(_MARK.strip())
    if end < 0:
        raise ConfigError("continue_final_message: the template leaves out the last message")
    # A template that trims the message would have trimmed what stands before the mark as well.
    kept = text[:end] if text.startswith(_MARK, end) else text[:end].rstrip()
    return kept.replace(_MARK, "")  # where a template writes a message twice


def _with_thought(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise ConfigError(f"a message must be a dict with role and content, not {message!r}")
    thought = next((message[key] for key in _THOUGHT if message.get(key) is not None), None)
    if thought is None:
        return {**message}
    return {"thinking": thought, **message, "reasoning_content": thought}


def _plain(value: Any) -> Any:
    """Plain JSON data, a copy: an object's methods are nothing for a template to call."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, str):
        return str.__str__(value)  # not an enum's own form
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    return f"<{type(value).__name__}>"


@lru_cache(maxsize=32)
def _compile(template: str) -> Any:
    try:
        import jinja2
        from jinja2.ext import Extension, loopcontrols

        from allformer.text.sandbox import Room, measured
    except ImportError:
        raise ConfigError("chat templates need jinja2: pip install 'jinja2>=3.1.6'") from None
    if tuple(int(part) for part in jinja2.__version__.split(".")[:3]) < (3, 1, 6):
        raise ConfigError(
            f"jinja2 {jinja2.__version__} has known ways out of its sandbox, and templates are "
            "not trusted: pip install -U 'jinja2>=3.1.6'"
        )

    class Generation(Extension):
        """`{% generation %}` says what the model wrote, for training: that stands between marks."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            begin, end = (
                jinja2.nodes.Output([jinja2.nodes.TemplateData(mark)]) for mark in (BEGIN, END)
            )
            return jinja2.nodes.Scope([begin, *body, end], lineno=line)

    class Namespace(jinja2.utils.Namespace):
        """A template's own variables, without a way to Python's insides."""

        def __init__(*args: Any, **values: Any) -> None:  # so that namespace(self=…) works
            self, *rest = args
            checked = dict(*rest, **values)
            for name in checked:
                _refuse_private(name)
            jinja2.utils.Namespace.__init__(self, checked)

        def __setitem__(self, name: str, value: Any) -> None:
            _refuse_private(name)
            super().__setitem__(name, value)

    def _refuse_private(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    environment = Room(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = measured("tojson", _to_json)
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "namespace": Namespace,
        "dict": lambda *args, **values: dict(*args, **values),
    }
    try:
        return environment.from_string(template)
    except (jinja2.exceptions.TemplateError, SyntaxError, RecursionError, MemoryError) as error:
        raise ConfigError(f"the chat template cannot be read: {error}") from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own escapes "<" for HTML.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
