"""How long a text may be: the positions of the model, less those that a method stands on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allformer.errors import ConfigError
from allformer.train.sections.recipe import Recipe


def room_of(recipe: Recipe, tree: Any) -> int | None:
    """The most tokens that every stack of `tree` that reads tokens can number; None: any.

    >>> room_of(make_recipe({"tune": "prefix", …}), preset("gpt2"))  # of 1,024, 20 are the prefix's
    1004
    """
    methods = () if recipe.tune is None else recipe.tune.methods
    rooms = []
    for name, stack in tree.stacks.items():
        if stack.source.vocab and stack.longest is not None:
            rooms.append(stack.longest - sum(m.ahead(tree).get(name, 0) for m in methods))
    return min(rooms, default=None)


def within(recipe: Recipe, tree: Any) -> Recipe:
    """The recipe with texts no longer than the model has room for."""
    room, data = room_of(recipe, tree), recipe.data
    if room is None or data.max_length <= room:
        return recipe
    return replace(recipe, data=replace(data, max_length=room))


def check_length(recipe: Recipe, tree: Any, longest: int) -> None:
    """Refuse rows that are longer than the model has room for."""
    room = room_of(recipe, tree)
    if room is not None and room < longest:
        raise ConfigError(
            f"data.max_length={longest} is more than the model's {room} positions; "
            f"set data.max_length={room} or less"
        )
