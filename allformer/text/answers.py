"""Which tokens of a conversation are the model's answers, in whatever template it is written.

A template that says so itself (`{% generation %}`) is believed. Of any other, an answer is what
comes to the text with it: from where the template asks for an answer (`add_generation_prompt`) to
the special token that ends the turn. That is also where the model's own turn begins and ends when
it is asked.

A template may write an earlier answer otherwise than the last one (without its thoughts): then each
answer has a text of its own, as it stood when it was given.

Special tokens in what people said are text, never commands: a mark cuts each in two, and the parts
are tokenised apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from allformer.errors import ConfigError, DataError
from allformer.text.chat import BEGIN, END
from allformer.text.wrapper import Tokenizer

ANSWER = "assistant"
_CUT = "\ue000cut\ue001"  # private-use characters, in no message
_LEAD = "\n"  # before a part, and taken off again: else sentencepiece would put a space there
_MARKS = re.compile(f"({BEGIN}|{END})")
Span = tuple[int, int]


class Written(NamedTuple):
    """A conversation as text, and where the answers to learn stand in it; cuts are in it still."""

    text: str
    spans: list[Span]


class Marked(NamedTuple):
    """A conversation as ids, and of each whether it is to be learnt."""

    ids: list[int]
    learnt: list[bool]


class Answers:
    """The tokeniser has a chat template.

    >>> answers = Answers(with_chat(tokenizer))
    >>> [marked] = answers.encode(answers.write([{"role": "user", "content": "Hi"}, …]))
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def write(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None
    ) -> list[Written]:
        """One text with all answers marked, or where history is rewritten one for each answer."""
        last = max((i for i, m in enumerate(messages) if m["role"] == ANSWER), default=-1)
        if last < 0:
            raise DataError("there is no answer (role assistant) to learn from; leave it out")
        if messages[0]["role"] == ANSWER:
            raise DataError("it begins with an answer that nobody has asked for; take it out")
        chat = [self._literal(message) for message in messages[: last + 1]]
        whole = self._text(chat, tools, marked=True)
        if BEGIN in whole:
            return [_unmarked(whole)]
        each = [self._one(chat[: i + 1], tools) for i, m in enumerate(chat) if m["role"] == ANSWER]
        if all(whole.startswith(text[: span[1]]) for text, (span,) in each):
            return [Written(whole, [span for _, (span,) in each])]
        return each

    def ask(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None
    ) -> Written:
        """The text behind which an answer to these is written; all of it is kept by `encode`."""
        chat = [self._literal(message) for message in messages]
        text = self._text(chat, tools, add_generation_prompt=True)
        return Written(text, [(0, len(text))])

    def encode(self, written: Iterable[Written]) -> list[Marked]:
        """Each as ids; what stands behind the last answer is left out, as nothing is learnt of it.

        A token is learnt if it has a character of an answer, as transformers has it: one that joins
        a space of the question to a word of the answer is the word.
        """
        written = list(written)
        parts = [part for each in written for part in _parts(each.text)]
        encodings = iter(self.tokenizer._inner.encode_batch(parts, add_special_tokens=False))
        return [self._marked(each, encodings) for each in written]

    def _marked(self, written: Written, encodings: Iterator[Any]) -> Marked:
        """The next encodings, one for each part of the text, joined."""
        ids, places, at = list[int](), [np.zeros((0, 2), np.int64)], 0
        for number, part in enumerate(_parts(written.text)):
            encoding = next(encodings)
            skip = self._lead if number else 0
            ids += encoding.ids[skip:]
            places.append(at + np.array(encoding.offsets, np.int64).reshape(-1, 2)[skip:])
            at += len(part) + len(_CUT) - len(_LEAD)
        begins, ends = np.concatenate(places).T
        learnt = np.zeros(len(ids), bool)
        for first, last in written.spans:
            learnt |= (ends > first) & (begins < last)
        end = int(np.flatnonzero(learnt)[-1]) + 1 if learnt.any() else 0
        return Marked(ids[:end], learnt[:end].tolist())

    def _one(self, chat: list[dict[str, Any]], tools: Sequence[Any] | None) -> Written:
        """A conversation that ends with the answer to learn."""
        asked = self._text(chat[:-1], tools, add_generation_prompt=True)
        text = self._text(chat, tools)
        if not text.startswith(asked):
            raise ConfigError(
                "the chat template asks for an answer otherwise than it writes one down, so that "
                "nobody can tell where it begins; give objective.template: a file whose template "
                "says it with {% generation %} … {% endgeneration %}"
            )
        end = len(text.rstrip())
        ends = text[len(asked) : end].endswith(tuple(self.specials))
        return Written(text, [(len(asked), end if ends else len(text))])

    def _text(self, chat: list[dict[str, Any]], tools: Any, **options: Any) -> str:
        text = self.tokenizer.apply_chat_template(chat, tools=tools, **options)
        assert isinstance(text, str)
        return text

    def _literal(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The message, special tokens in it cut in two."""
        content = message["content"]
        if self._commands is not None:
            content = self._commands.sub(lambda m: m[0][0] + _CUT + m[0][1:], content)
        return {**message, "content": content}

    @cached_property
    def specials(self) -> dict[str, int]:
        """The special tokens, by their text: `{"<|im_end|>": 2, …}`."""
        tokenizer = self.tokenizer
        named = zip(tokenizer.settings.names.values(), tokenizer.special_ids.values(), strict=True)
        added: dict[int, Any] = tokenizer._inner.get_added_tokens_decoder()  # type: ignore[union-attr]
        return {**dict(named), **{x.content: i for i, x in added.items() if x.special}}

    @cached_property
    def _lead(self) -> int:
        """Tokens of what stands before a part."""
        return len(self.tokenizer.encode(_LEAD, add_special_tokens=False))

    @cached_property
    def _commands(self) -> re.Pattern[str] | None:
        long = sorted((token for token in self.specials if len(token) > 1), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, long))) if long else None


def _parts(text: str) -> list[str]:
    """What is tokenised apart: all but the first with the lead before them."""
    return text.replace(_CUT, _CUT + _LEAD).split(_CUT)


def _unmarked(text: str) -> Written:
    """The text without the template's own marks, and what stood between them."""
    plain, spans, begin = "", list[Span](), 0
    for part in _MARKS.split(text):
        if part == BEGIN:
            begin = len(plain)
        elif part == END:
            spans.append((begin, len(plain)))
        else:
            plain += part
    return Written(plain, spans)
