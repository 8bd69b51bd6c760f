"""A recipe: everything that a training run is, as YAML.

    recipe = read_recipe("recipes/multi30k-en-de.yaml", ["train.steps=500"])

Sections are dataclasses (`train/sections/`); an unknown key or a wrong type is refused by name with
what there is. The objective says how its own two sections are read.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from allformer.errors import ConfigError, did_you_mean
from allformer.train.objectives import find_objective
from allformer.train.plain_yaml import read_yaml
from allformer.train.recipe_file import recipe_text, way_out_of
from allformer.train.sections.common import (
    CheckpointTokenizer,
    DecodeRecipe,
    LogRecipe,
    NoTokenizer,
    ParallelRecipe,
    TokenizerRecipe,
    TrainRecipe,
)
from allformer.train.sections.data import PairData
from allformer.train.sections.model import (
    CheckpointModel,
    ModelRecipe,
    PresetRecipe,
    TreeRecipe,
    read_model,
)
from allformer.train.sections.moved import MOVED, moved
from allformer.train.sections.recipe import Recipe
from allformer.train.sections.section import as_mapping, read_section
from allformer.train.sections.tune import read_tune
from allformer.train.sections.vocabulary import Vocabulary

__all__ = [
    "CheckpointModel", "CheckpointTokenizer", "DecodeRecipe", "LogRecipe", "ModelRecipe",
    "PairData", "ParallelRecipe", "PresetRecipe", "Recipe", "TokenizerRecipe", "TrainRecipe",
    "TreeRecipe", "Vocabulary", "make_recipe", "read_override", "read_recipe",
]  # fmt: skip

SECTIONS = tuple(f.name for f in fields(Recipe) if f.name != "options")


def read_recipe(path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a YAML recipe; `overrides` are `section.key=value` and win."""
    path = Path(path)
    data = read_yaml(recipe_text(path), f"recipe {path}", way_out_of(path)) or {}
    try:
        return make_recipe(data, overrides)
    except ConfigError as error:
        told = re.sub(r"^recipe\.", f"{path}: ", re.sub("^recipe is ", f"{path} is ", str(error)))
        raise ConfigError(told) from None


def make_recipe(data: Any, overrides: Iterable[str] = (), where: str = "recipe") -> Recipe:
    """A recipe from plain dicts and overrides."""
    given = moved(as_mapping(data, where))
    for override in overrides:
        section, name, value = read_override(override)
        if not name:
            given[section] = value
            continue
        before = given.get(section, {})
        if section in ("objective", "tune") and isinstance(before, str):
            before = {"is": before}
        before = as_mapping(before, f"{where}.{section}")
        path = name.split(".")
        if section == "model" and path[0] == "change":  # what follows is a path of the tree
            path = name.split(".", 1)
        given[section] = _with(before, path, value, f"{where}.{section}")
        if (section, name) == ("train", "steps") and value is not None:
            given[section].pop("epochs", None)  # else they would say the steps, and this nothing
    return _recipe(given, where)


def _with(given: dict[str, Any], path: list[str], value: Any, where: str) -> dict[str, Any]:
    """A section with a value in it or, as data.augment.flip, in one that is inside."""
    name, *rest = path
    if rest:
        inner = as_mapping(given.get(name) or {}, f"{where}.{name}")
        value = _with(inner, rest, value, f"{where}.{name}")
    return {**given, name: value}


def read_override(override: str) -> tuple[str, str, Any]:
    """`read_override("train.steps=500")` → `("train", "steps", 500)`; `"tune=lora"`, where the
    section is one word, → `("tune", "", "lora")`."""
    key, equals, text = override.partition("=")
    key = MOVED.get(key.strip(), key.strip())
    section, dot, name = key.partition(".")
    alone = not dot and section in SECTIONS
    if not equals or not (dot or alone) or not all(key.split(".")):
        meant = _in_section(key) if equals else ""
        hint = f"did you mean {meant}={text}?" if meant else "try train.steps=500"
        raise ConfigError(f"--set {override!r} is not section.key=value; {hint}")
    try:
        return section, name, read_yaml(text, text)
    except ConfigError:
        raise ConfigError(f"--set {override!r}: {text!r} is not YAML; try quotes") from None


def _in_section(key: str) -> str:
    """`_in_section("steps")` → "train.steps", if there is a section with such a key."""
    hints = typing.get_type_hints(Recipe)
    for section in ("train", "optim", "schedule", "log", "parallel", "decode"):
        if key in {field.name for field in fields(hints[section])}:
            return f"{section}.{key}"
    return ""


def _recipe(given: dict[str, Any], where: str) -> Recipe:
    unknown = sorted(set(map(str, given)) - set(SECTIONS))
    if unknown:
        hint, there = did_you_mean(unknown[0], SECTIONS), ", ".join(SECTIONS)
        raise ConfigError(f"{where}.{unknown[0]} is not known; {hint}there is {there}")
    found: dict[str, Any] = {}
    if "name" in given:
        if not isinstance(given["name"], str):
            raise ConfigError(f"{where}.name={given['name']!r} must be str; put it in quotes")
        found["name"] = given["name"]
    name, options = _objective(given.get("objective", "seq2seq"), f"{where}.objective")
    objective = find_objective(name)
    found["objective"] = name
    for section, values in objective.usual.items():
        given[section] = {**values, **as_mapping(given.get(section, {}), f"{where}.{section}")}
    found["options"] = read_section(objective.Options, options, f"{where}.objective")
    found["data"] = read_section(objective.Data, given.get("data", {}), f"{where}.data")
    if "model" in given:
        found["model"] = read_model(given["model"], f"{where}.model")
    if not objective.words:
        if "tokenizer" in given:
            raise ConfigError(
                f"{where}.tokenizer is for text, which objective={name!r} has none of; remove it"
            )
        found["tokenizer"] = NoTokenizer()
    elif "tokenizer" in given:
        found["tokenizer"] = _tokenizer(given["tokenizer"], f"{where}.tokenizer")
    if (tune := given.pop("tune", None)) is not None:
        found["tune"] = read_tune(tune, f"{where}.tune")
    hints = typing.get_type_hints(Recipe)
    for section in set(given) - set(found) - {"objective"}:
        found[section] = read_section(hints[section], given[section], f"{where}.{section}")
    recipe = Recipe(**found)
    if not isinstance(recipe.model, CheckpointModel):  # which may be gone when a run goes on
        recipe.model.tree(objective.shape)
    return recipe


def _objective(given: Any, where: str) -> tuple[str, dict[str, Any]]:
    if isinstance(given, str):
        return given, {}
    options = as_mapping(given, where)
    name = options.pop("is", None)
    if not isinstance(name, str):
        raise ConfigError(f"{where} needs `is: NAME` among its keys; try is: causal-lm")
    return name, options


def _tokenizer(data: Any, where: str) -> Any:
    given = as_mapping(data, where)
    form = CheckpointTokenizer if "checkpoint" in given else TokenizerRecipe
    return read_section(form, given, where)
