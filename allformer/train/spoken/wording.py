"""What a decoder reads before a text and says after it, by its tokeniser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allformer.errors import ConfigError
from allformer.text.tokenizer import Tokenizer
from allformer.text.whisper import END, START, TASKS, language_code


@dataclass(frozen=True)
class Wording:
    """`before` is given, `end` is said last. Whisper's texts begin with a space."""

    before: tuple[int, ...]
    end: int
    space: bool

    @classmethod
    def of(cls, tokenizer: Tokenizer, language: str, task: str) -> Wording:
        """Whisper's start, language, task and "no timestamps" (of one that knows English alone the
        first and the last); `<s>` and `</s>` of a tokeniser that we trained.

        >>> Wording.of(load_tokenizer("openai/whisper-tiny"), "en", "transcribe").before
        (50258, 50259, 50359, 50363)
        """
        if tokenizer.token_to_id(START) is None:
            ids = tokenizer.special_ids
            if not {"bos", "eos"} <= ids.keys():
                raise ConfigError(
                    "the tokeniser has no beginning and end of text; train one, or take Whisper's"
                )
            return cls((ids["bos"],), ids["eos"], False)
        code = language_code(language)
        names = [START, f"<|{code}|>", f"<|{task}|>", "<|notimestamps|>"]
        if _english_alone(tokenizer):
            if code != "en" or task != TASKS[1]:
                raise ConfigError(
                    f"objective.language={language!r}, task={task!r}: this Whisper transcribes "
                    f"English alone; take one of many languages (without .en)"
                )
            names = [START, "<|notimestamps|>"]
        return cls(tuple(_id(tokenizer, name) for name in names), _id(tokenizer, END), True)

    def encode(self, tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        """Each text with what stands around it."""
        put = [f" {text.strip()}" if self.space and text.strip() else text for text in texts]
        rows = tokenizer.encode_batch(put, add_special_tokens=False)
        return [[*self.before, *row, self.end] for row in rows]


def _english_alone(tokenizer: Tokenizer) -> bool:
    """Whether the vocabulary is the first, of GPT-2's words: <|endoftext|> is its 50,257th."""
    return tokenizer.token_to_id(END) == 50_256


def _id(tokenizer: Tokenizer, name: str) -> int:
    found = tokenizer.token_to_id(name)
    if found is None:
        raise ConfigError(f"the tokeniser has no {name}; take the one of the Whisper checkpoint")
    return found
