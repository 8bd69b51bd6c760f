"""How good is a translator on pairs of text: scores of its translations and their likelihood."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from allformer.data.encoded import EncodedPairs, chunks
from allformer.data.parallel import Corpus
from allformer.errors import ConfigError, TaskError
from allformer.evaluate.objective import recipe_of
from allformer.generate.evaluate import score_translations
from allformer.tasks.languages import way
from allformer.tasks.pipeline import Pipeline
from allformer.tasks.texts import translate
from allformer.tasks.verbs import need
from allformer.tasks.writing import settings
from allformer.train.objectives.seq2seq import Seq2Seq
from allformer.train.sections.recipe import Recipe
from allformer.train.validate import validate

_CHUNK = 1024  # sentences encoded together
_LONGEST = 1 << 20  # tokens of a side, where all count


def evaluate_run(
    pipeline: Pipeline,
    pairs: Iterable[tuple[str, str]],
    language: str,
    *,
    lowercase: bool = False,
    **options: Any,
) -> tuple[dict[str, Any], list[str]]:
    """Translate the sources of `pairs` and score against the targets; the outputs come too.

    >>> evaluate_run(open_pipeline("runs/m30k"), pairs, "de", num_beams=5)[0]["bleu"]
    42.88

    `language` is that of the targets; `options` are those of `model.generate`. A source that is
    longer than the run was trained for is cut, with a warning. Perplexity is per token of the run's
    own tokeniser, </s> included, on all pairs.
    """
    check_run(pipeline)
    pairs, recipe = list(pairs), recipe_of(pipeline.directory)
    told = {}
    if recipe is not None and pipeline.tokenizer.settings.language_at:  # tuned from an mBART
        told = {"source": recipe.data.source, "target": language}
    scores, outputs = _translated(pipeline, pairs, language, lowercase, {**told, **options})
    nll = _nll(pipeline, pairs, recipe)
    return {**scores, "perplexity": math.exp(min(nll, 700.0))}, outputs


def evaluate_translator(
    pipeline: Pipeline,
    pairs: Iterable[tuple[str, str]],
    source: str,
    target: str,
    *,
    lowercase: bool = False,
    **options: Any,
) -> tuple[dict[str, Any], list[str]]:
    """The same of any checkpoint that translates, but for perplexity: `(marian, pairs, "en", "de")`

    One of many languages is told which; one that translates one way is not.
    """
    need(pipeline, "translate")
    told = _languages(pipeline, source, target)
    return _translated(pipeline, list(pairs), target, lowercase, {**told, **options})


def _languages(pipeline: Pipeline, source: str, target: str) -> dict[str, str]:
    try:
        way(pipeline, source, target)
        return {"source": source, "target": target}
    except ConfigError:
        way(pipeline, None, None)
        return {}


def _nll(pipeline: Pipeline, pairs: list[tuple[str, str]], recipe: Recipe | None) -> float:
    """Of all pairs, however long, cut into tokens as the run was taught them."""
    objective = Seq2Seq(recipe)
    if objective.trained:
        encoded = EncodedPairs.from_pairs(pairs, pipeline.tokenizer)
        return validate(Seq2Seq(), pipeline.model, encoded)["nll"]
    whole = replace(objective.recipe.data, max_length=_LONGEST, prefix="")  # it is in the pairs
    budget = replace(objective.recipe.train, batch_tokens=_LONGEST)
    objective = Seq2Seq(replace(objective.recipe, data=whole, train=budget))
    objective.open(Corpus(pairs[:1], pairs))
    objective.encode(pipeline.tokenizer, lambda line: None)
    return validate(objective, pipeline.model, objective.validation)["nll"]


def _translated(
    pipeline: Pipeline,
    pairs: list[tuple[str, str]],
    language: str,
    lowercase: bool,
    options: dict[str, Any],
) -> tuple[dict[str, Any], list[str]]:
    outputs: list[str] = []
    for chunk in chunks(pairs, _CHUNK):
        outputs += translate(pipeline, [source for source, _ in chunk], truncate=True, **options)
    references = [target for _, target in pairs]
    scores = score_translations(outputs, references, language, lowercase=lowercase)
    search = {name: x for name, x in options.items() if name not in ("source", "target")}
    beams = settings(pipeline, options=search).num_beams or 1
    return {**scores, "beams": beams}, outputs


def check_run(pipeline: Pipeline) -> None:
    """Refuse what `allformer train` did not write: its pairs would be encoded another way."""
    need(pipeline, "translate")
    if "is" not in pipeline.raw:
        raise TaskError(
            f"{pipeline.directory} is a {pipeline.architecture} without data of its own; give "
            f"--data with --source and --target to score it, or `allformer translate` a text"
        )
