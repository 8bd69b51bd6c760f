"""How good is a run on pairs of text: scores of its translations and their likelihood."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from allformer.checkpoint.run import Run
from allformer.data.encoded import EncodedPairs
from allformer.generate.evaluate import score_translations
from allformer.generate.translate import Translator
from allformer.train.recipe import Recipe
from allformer.train.validate import validation_nll


def evaluate_run(
    run: Run,
    pairs: Iterable[tuple[str, str]],
    recipe: Recipe,
    *,
    beams: int | None = None,
    length_penalty: float | None = None,
    lowercase: bool = False,
    dtype: torch.dtype | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Translate the sources of `pairs` and score against the targets; the outputs come too.

    Perplexity is per token of the run's own tokeniser, </s> included, on all pairs.
    """
    pairs = list(pairs)
    translator = Translator(
        run,
        beams=beams or recipe.decode.beams,
        length_penalty=recipe.decode.length_penalty if length_penalty is None else length_penalty,
        dtype=dtype,
    )
    outputs = list(translator.lines(source for source, _ in pairs))
    references = [target for _, target in pairs]
    scores = score_translations(outputs, references, recipe.data.target, lowercase=lowercase)
    encoded = EncodedPairs.from_pairs(pairs, run.tokenizer)
    nll = validation_nll(run.model, encoded, run.tokenizer, dtype=dtype)
    return {**scores, "perplexity": math.exp(min(nll, 700.0)), "beams": translator.beams}, outputs
