"""The first batch of a recipe, to look at before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allformer.errors import ConfigError
from allformer.train.loop import open_objective
from allformer.train.objectives import find_objective
from allformer.train.objectives.objective import Objective
from allformer.train.sections.recipe import Recipe
from allformer.train.shown_batch import ShownRow
from allformer.train.stream import Place, micro_batches, prefetch
from allformer.train.tokenizing import make_tokenizer


def first_batch(
    recipe: Recipe, *, corpus: Any = None, say: Callable[[str], None] = print
) -> tuple[ShownRow, ...]:
    """Its rows, without reading weights: `first_batch(read_recipe("recipes/smollm2-zh.yaml"))`."""
    if find_objective(recipe.objective).shown is Objective.shown:
        raise ConfigError(
            f"objective={recipe.objective!r} has no batch to show: --show-batch is for those that "
            f"learn a part of a text, such as instruction"
        )
    objective = open_objective(recipe, corpus)
    objective.encode(make_tokenizer(objective, say), say)
    batches = prefetch(micro_batches(objective, objective.recipe.train, None, Place()), ahead=1)
    try:
        rows: tuple[ShownRow, ...] = objective.shown(next(batches)[0])
    finally:
        batches.close()
    return rows
