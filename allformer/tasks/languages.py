"""How a checkpoint is told which language to translate into: each family has its own way.

mBART: a code before or after the text, and one that the output begins with. T5: words before the
text. Multilingual Marian: a token such as `>>fra<<`. All others translate one way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from allformer.errors import ConfigError
from allformer.tasks.pipeline import Pipeline
from allformer.tasks.writing import settings
from allformer.text.vocabulary import LANGUAGES_50

_PAIR = re.compile(r"translation_(\w+)_to_(\w+)")


@dataclass(frozen=True)
class Way:
    """The pipeline for a source language, what stands before each text, options of generation."""

    pipeline: Pipeline
    prefix: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def way(pipeline: Pipeline, source: str | None, target: str | None) -> Way:
    """`way(pipeline, "en", "de")`: languages by code or by English name."""
    if pipeline.tokenizer.settings.language_at:
        return _codes(pipeline, source, target)
    tasks = pipeline.raw.get("task_specific_params") or {}
    pairs = {m.groups(): said for name, said in tasks.items() if (m := _PAIR.fullmatch(name))}
    if pairs:
        return _prefixes(pipeline, pairs, source, target)
    if target is not None and pipeline.tokenizer.token_to_id(f">>{target}<<") is not None:
        return Way(pipeline, f">>{target}<< ")
    if source is None and target is None:
        return Way(pipeline)
    prompts = pipeline.prompts
    if prompts.translate and source is not None and target is not None:
        return Way(pipeline, prompts.way(source, target))
    raise ConfigError(
        f"source={source!r}, target={target!r}: {pipeline.directory} is told no language; leave "
        f"both out if it translates one way, or give the words it was trained with as prefix="
    )


def _codes(pipeline: Pipeline, source: str | None, target: str | None) -> Way:
    tokenizer = pipeline.tokenizer
    at, own = tokenizer.settings.language_at, tokenizer.settings.target_language
    if source is not None:
        pipeline = replace(pipeline, tokenizer=tokenizer.with_language(_token(pipeline, source)))
    name = "forced_bos_token_id" if at == "before" else "decoder_start_token_id"
    if target is None and own is None:
        if getattr(settings(pipeline), name) is None:
            raise ConfigError(
                "target=None, but this checkpoint knows many languages; give one, such as de_DE"
            )
        return Way(pipeline)
    code = tokenizer.token_to_id(_token(pipeline, target or own or ""))
    if code is None:
        tokenizer.with_language(target or own or "")  # raises, and names the codes
    return Way(pipeline, options={name: code})


def _token(pipeline: Pipeline, language: str) -> str:
    """`de` or `German` → `de_DE`, where the vocabulary has it."""
    short = pipeline.prompts.code(language)
    known = (code for code in LANGUAGES_50 if code.split("_")[0] == short)
    found = (code for code in known if pipeline.tokenizer.token_to_id(code) is not None)
    return language if "_" in language else next(found, language)


def _prefixes(
    pipeline: Pipeline, pairs: dict[Any, dict[str, Any]], source: str | None, target: str | None
) -> Way:
    code = pipeline.prompts.code
    source, target = source and code(source), target and code(target)
    fits = [said for (a, b), said in pairs.items() if source in (None, a) and target in (None, b)]
    if len(fits) != 1:
        known = ", ".join(f"{a} to {b}" for a, b in pairs)
        raise ConfigError(
            f"source={source!r}, target={target!r}: this checkpoint translates {known}; choose one"
        )
    options = dict(fits[0])
    return Way(pipeline, options.pop("prefix", "") or "", options)
