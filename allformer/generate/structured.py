"""Output of a given form: a regular expression, a JSON schema, or a grammar.

    date = Structured.regex("[0-9]{4}-[0-9]{2}-[0-9]{2}")
    generate(model, ids, structured=date, tokenizer=tokenizer, max_new_tokens=20)

At each step only those tokens are left with which the text can still come to satisfy the form; the
end is allowed where it does, and is all that is left where nothing more can follow. The automaton
is llguidance's (pip install allformer[structured]).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from allformer.errors import ConfigError
from allformer.generate.form import Form
from allformer.generate.stop import Spelling, inner_tokenizer

# As Python's json writes: white space at will is what a model without an idea writes for ever.
_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Where but one text can follow, the model still says by which tokens: llguidance would force those
# that its own encoding gives, which is another than the tokeniser's inside a text.
_FREE = '\n%llguidance {"no_forcing": true}\n'


@dataclass(frozen=True)
class Structured:
    """The form that an output must have; `rules` are those of llguidance, checked.

    >>> Structured.regex("yes|no")
    >>> Structured.json_schema({"type": "array", "items": {"enum": ["red", "green"]}})
    >>> Structured.grammar('start: "(" start? ")"')
    """

    rules: str

    @classmethod
    def regex(cls, pattern: str) -> Structured:
        """The whole output matches: `Structured.regex("[0-9]+")`. Rust's syntax: no look-around."""
        _check_text("regex", pattern)
        rules = _checked(_library().grammar_from_regex(pattern), f"regex={pattern!r}")
        return cls(_free(json.loads(rules)["grammars"][0]["lark_grammar"]))

    @classmethod
    def json_schema(cls, schema: str | bool | Mapping[str, Any]) -> Structured:
        """JSON that satisfies a schema (a dict, or the text of one), spaced as json.dumps does.

        What a schema says that cannot be kept to ("not", "uniqueItems") is refused by name.
        """
        text = _schema_text(schema)
        rules = _library().grammar_from_json_schema(text, defaults=_JSON)
        _checked(rules, f"json_schema={_short(text)}")
        whole = json.loads(rules)["grammars"][0]["json_schema"]  # with our spaces in it
        return cls(_free(f"start: %json {json.dumps(whole)}"))

    @classmethod
    def grammar(cls, lark: str) -> Structured:
        """A context-free grammar in llguidance's dialect of Lark, from its rule `start` on."""
        _check_text("grammar", lark)
        _checked(_library().grammar_from_lark(lark), f"grammar={_short(lark)}")
        return cls(_free(lark))

    def form(self, tokenizer: Any, *, vocab: int, eos: Sequence[int], start: int) -> Form:
        """What keeps one call of `generate` to it: a processor (see `generate/form.py`).

        `vocab` is how many scores the model gives, `start` how many tokens stand before the first
        one that it may choose.
        """
        if not eos:
            raise ConfigError(
                "structured needs an end token, which says that the form is complete; give "
                "eos_token_id"
            )
        if tokenizer is None:
            raise ConfigError(
                "structured needs the tokeniser to spell tokens; give tokenizer=, or leave "
                "structured out"
            )
        words = _words(tokenizer, vocab, tuple(eos))
        matcher = _library()(words, self.rules, log_level=0)
        return Form(matcher, start=start, eos=eos, vocab=vocab)


def _library() -> Any:
    try:
        from llguidance import LLMatcher
    except ImportError:
        raise ConfigError(
            "structured output needs llguidance: pip install 'allformer[structured]'"
        ) from None
    return LLMatcher


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{name}={value!r} must be text; try {name}='…'")


def _schema_text(schema: object) -> str:
    """The schema as JSON; `true` is the empty one, which allows anything."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(dict(value) if isinstance(value, Mapping) else value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"json_schema={_short(str(schema))} is not JSON: {error}; give a schema, "
            f'{{"type": "object"}} for any object'
        ) from None
    if value is True:
        return "{}"
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"json_schema={_short(text)} must be an object, or true for anything; try "
            f'{{"type": "object"}}'
        )
    return text


def _checked(rules: str, what: str) -> str:
    wrong, said = _library().validate_grammar_with_warnings(rules)
    if not wrong:
        return rules
    inner = re.search(r"^error: (.*)$", said[0], re.MULTILINE)  # of a regular expression
    cause = inner[1] if inner else said[0].splitlines()[0]
    raise ConfigError(f"{what} cannot be used: {cause}; change that")


def _free(lark: str) -> str:
    return str(_library().grammar_from_lark(lark + _FREE))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "…"


@lru_cache(maxsize=4)
def _words(tokenizer: Any, vocab: int, eos: tuple[int, ...]) -> Any:
    """The vocabulary as llguidance wants it (kept: of a large one it takes a second)."""
    import llguidance

    words = llguidance.TokenizerWrapper(Words(tokenizer, vocab, eos))
    return llguidance.LLTokenizer(words, eos_token=list(eos))


class Words:
    """The bytes that each token adds to a text; those that add none, or are no text, are special.

    By our own spelling, not by llguidance's reading of tokenizer.json, so that every tokeniser that
    can stop at a string can keep to a form.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Any, vocab: int, eos: tuple[int, ...]) -> None:
        spelling, special = Spelling(tokenizer), {*eos, *special_tokens(tokenizer)}
        self.eos_token_id = eos[0]
        self.tokens = [spelling(token) for token in range(vocab)]
        special |= {token for token, text in enumerate(self.tokens) if text in (b"", b"\xff")}
        self.special_token_ids = sorted(token for token in special if token < vocab)
        for token in self.special_token_ids:
            self.tokens[token] = f"<{token}>".encode()  # no two of them alike


def special_tokens(tokenizer: Any) -> set[int]:
    """The ids that decoding leaves out."""
    named = set(getattr(tokenizer, "special_ids", {}).values())
    named |= set(getattr(tokenizer, "all_special_ids", ()))
    inner = inner_tokenizer(tokenizer)
    if inner is not None:
        added = inner.get_added_tokens_decoder()
        named |= {token for token, entry in added.items() if entry.special}
    return named
