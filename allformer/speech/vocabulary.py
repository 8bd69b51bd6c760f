"""What Whisper's vocabulary has beside words: tasks, languages, timestamps, silence.

    vocabulary = Vocabulary(tokenizer, size=51_865)
    vocabulary.start("zh", "transcribe")      # <|startoftranscript|><|zh|><|transcribe|>
    vocabulary.decode(tokens)                 # text; timestamps are left out

Ids stand in this order: words, <|endoftext|>, <|startoftranscript|>, languages, tasks and the other
special ones, <|notimestamps|>, then a timestamp for every 20 ms of 30 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Protocol

from allformer.errors import ConfigError, TaskError
from allformer.text.whisper import LANGUAGES, TASKS, language_code

__all__ = ["TASKS", "Spelling", "Vocabulary"]

MULTILINGUAL = 51_865  # words of the smallest vocabulary with more languages than English

# Signs that stand for what is heard but not said: "♪♪♪", "[DAVID] Hey there", "( APPLAUSE )".
_SIGNS = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』', "<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[",
    "('", '("', "((", "))", "(((", ")))", "[[", "]]", "{{", "}}", "♪♪", "♪♪♪",
)  # fmt: skip
# Of these the first token is enough: the first two bytes of each are the same.
_NOTES = "♩♪♫♬♭♮♯"


class Spelling(Protocol):
    """What is asked of a tokeniser."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """The ids of a text."""

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = ...) -> str:
        """The text of ids."""

    def token_to_id(self, token: str) -> int | None:
        """The id of a piece."""


class Vocabulary:
    """The ids that decoding must know; `size` is how many the model scores."""

    def __init__(self, tokenizer: Spelling, size: int) -> None:
        self.tokenizer, self.size = tokenizer, size
        self.end = self._id("<|endoftext|>")
        self.begin = self._id("<|startoftranscript|>")
        self.transcribe = self._id("<|transcribe|>")
        self.translate = self._id("<|translate|>")
        self.lone = self._id("<|startoflm|>")
        self.previous = self._id("<|startofprev|>")
        self.silence = self._id("<|nospeech|>", "<|nocaptions|>")  # the older name
        self.untimed = self._id("<|notimestamps|>")
        self.first_time = self.untimed + 1  # <|0.00|>; older files do not name the timestamps
        self.multilingual = size >= MULTILINGUAL

    def _id(self, *names: str) -> int:
        found = next((i for i in map(self.tokenizer.token_to_id, names) if i is not None), None)
        if found is None:
            raise TaskError(
                f"the tokeniser has no {names[0]}, which Whisper's have; give the tokeniser of a "
                f"Whisper checkpoint"
            )
        return found

    @cached_property
    def languages(self) -> dict[str, int]:
        """The languages that it has: `{"en": 50259, "zh": 50260, …}`; none of an English one."""
        if not self.multilingual:
            return {}
        ids = {code: self.tokenizer.token_to_id(f"<|{code}|>") for code in LANGUAGES}
        return {code: i for code, i in ids.items() if i is not None}

    def language(self, name: str) -> str:
        """The code of a language by its code or name: `vocabulary.language("Chinese")` → "zh"."""
        code = language_code(name)
        if self.multilingual and code not in self.languages:
            known = ", ".join(self.languages)
            raise ConfigError(f"language={name!r} is not known to this model; give one of {known}")
        if not self.multilingual and code != "en":
            raise ConfigError(
                f"language={name!r}: this model knows English alone; leave it out, or give a "
                f"checkpoint without .en in its name"
            )
        return code

    def start(self, language: str | None, task: str, timed: bool = True) -> tuple[int, ...]:
        """What stands before the text; an English model is told neither language nor task."""
        if task == "translate" and not self.multilingual:
            raise ConfigError(
                "task='translate': this model knows English alone, and writes down what it hears; "
                "leave it out, or give a checkpoint without .en in its name"
            )
        tokens = [self.begin]
        if self.multilingual:
            tokens.append(self.languages[language or "en"])
            tokens.append(self.translate if task == "translate" else self.transcribe)
        return (*tokens,) if timed else (*tokens, self.untimed)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text that goes on after others: a space comes first."""
        return self.tokenizer.encode(" " + text.strip(), add_special_tokens=False)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; timestamps are left out."""
        words = [token for token in tokens if token < self.first_time]
        return self.tokenizer.decode(words, skip_special_tokens=False)

    @cached_property
    def blank(self) -> tuple[int, ...]:
        """What no text begins with: a lone space, and its end."""
        return (*self.tokenizer.encode(" ", add_special_tokens=False), self.end)

    @cached_property
    def not_speech(self) -> tuple[int, ...]:
        """Tokens for what is not said: brackets, notes, tags of speakers. Hyphens and apostrophes
        may stand within a word, not before it."""

        def cut(text: str) -> list[int]:
            return self.tokenizer.encode(text, add_special_tokens=False)

        found = {cut(" -")[0], cut(" '")[0]}
        for sign in (*_SIGNS, *_NOTES):
            for tokens in (cut(sign), cut(" " + sign)):
                if len(tokens) == 1 or sign in _NOTES:
                    found.add(tokens[0])
        return tuple(sorted(found))

    def forbidden(self, asked: Sequence[int] | None) -> tuple[int, ...]:
        """Tokens that are never said: those asked for (−1: `not_speech`), and what only stands
        before a text. Where none is asked for, none is forbidden, as in openai-whisper."""
        if not asked:
            return ()
        given = set(asked)
        if -1 in given:
            given = {token for token in given if token >= 0} | set(self.not_speech)
        wrong = [token for token in given if not 0 <= token < self.size]
        if wrong:
            raise ConfigError(
                f"suppress_tokens has {wrong[0]}, but the vocabulary is 0 … {self.size - 1}; "
                f"give ids of it, or -1 for signs that are not spoken"
            )
        heads = (self.transcribe, self.translate, self.begin, self.previous, self.lone)
        return tuple(sorted({*given, *heads, self.silence}))
