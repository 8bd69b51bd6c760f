"""Special tokens around a text and a pair: `[CLS] text [SEP] pair [SEP]`."""

from __future__ import annotations

import re

import tokenizers
from tokenizers import processors

from allformer.errors import ConfigError

Special = tuple[str, int]  # a token and its id


def template(
    before: tuple[Special, ...],
    between: tuple[Special, ...],
    after: tuple[Special, ...],
    type_of_pair: int = 0,
) -> processors.PostProcessor:
    """What stands before a text, between it and its pair, and after the last."""

    def put(tokens: tuple[Special, ...], kind: int) -> list[str]:
        return [f"{token}:{kind}" for token, _ in tokens]

    pair = [*put(between, 0), f"$B:{type_of_pair}", *put(after, type_of_pair)]
    return processors.TemplateProcessing(
        single=[*put(before, 0), "$A:0", *put(after, 0)],
        pair=[*put(before, 0), "$A:0", *pair],
        special_tokens=list({*before, *between, *after}),
    )


def special(inner: tokenizers.Tokenizer, token: str) -> Special:
    """A token with its id; an error where the vocabulary lacks it."""
    i = inner.token_to_id(token)
    if i is None:
        raise ConfigError(f"{token[:80]!r} is not in the vocabulary; give a token that is")
    return token, i


def around_language(
    inner: tokenizers.Tokenizer, at: str, code: str, eos: str
) -> processors.PostProcessor:
    """mBART's: `text </s> en_XX`; mBART-50's, at="before": `en_XX text </s>`."""
    i = inner.token_to_id(code)
    if i is None:
        known = sorted(token for token in inner.get_vocab() if _LANGUAGE.fullmatch(token))
        said = f"language {code[:80]!r} is not in the vocabulary"
        raise ConfigError(f"{said}; try {', '.join(known)}")
    end = special(inner, eos)
    if at == "before":
        return template(((code, i),), (), (end,))
    return template((), (), (end, (code, i)))


_LANGUAGE = re.compile(r"[a-z]{2}_[A-Z]{2}")
