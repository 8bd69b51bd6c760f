"""Labels: what they are called, in which order, and which number each has."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from allformer.errors import ConfigError, DataError

_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")
_MANY = 100  # labels; beyond that, they may be no labels at all


@dataclass(frozen=True)
class Labels:
    """`Labels(("negative", "positive")).number("positive")` → 1.

    Where the data has numbers and the labels are words, number i means the i-th of them.
    """

    names: tuple[str, ...]

    def number(self, value: Any) -> int:
        """Which label it is; one that is not known is an error in words."""
        text = label_text(value)
        found = self._numbers.get(text)
        if found is None:
            raise DataError(
                f"label {text!r} is not known; there is {', '.join(self.names[:20])}"
                f"{' …' if len(self.names) > 20 else ''}: correct it, name all in model.head."
                f"labels, or put a new head in the old one's place (allformer tune: --new-head)"
            )
        return found

    @cached_property
    def _numbers(self) -> dict[str, int]:
        numbers = {name: i for i, name in enumerate(self.names)}
        if not any(map(_NUMBER.fullmatch, self.names)):
            numbers |= {str(i): i for i in range(len(self.names))}
        return numbers


def label_text(value: Any) -> str:
    """A label as it is called: `label_text(1)` → "1"."""
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, bool | int | float) and (value == value):
        return str(value)
    raise DataError(f"label is {value!r}; it must be a word or a number")


def labels_in(value: Any, separator: str) -> list[Any]:
    """Several labels of one record: a list, or a text of them; an empty one has none."""
    if isinstance(value, str):
        return [part for part in value.split(separator) if part.strip()]
    if isinstance(value, list | tuple):
        return list(value)
    raise DataError(f"label is {value!r}; several labels are a list, or a text with {separator!r}")


def number_in(value: Any) -> float:
    """The value of a regression: `number_in("3.5")` → 3.5."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, bool):
        raise DataError(
            f"label is {value!r}; of a regression it must be a number: for classes set "
            f"objective.problem=single"
        )
    return number


def found_labels(values: Iterable[str], where: str) -> tuple[str, ...]:
    """All that occur, sorted, numbers as numbers: `found_labels(["10", "2"], "a.csv")`."""
    counts = Counter(values)
    total = counts.total()
    if len(counts) > _MANY and 2 * len(counts) > total:
        raise DataError(
            f"{where} has {len(counts):,} different labels in {total:,} records; is data.label the "
            f"right column? Numbers are learnt with objective.problem=regression"
        )
    if len(counts) < 2:
        there = ", ".join(counts) or "none"
        raise DataError(f"{where} has one label alone ({there}); there is nothing to tell apart")
    if all(map(_NUMBER.fullmatch, counts)):
        return tuple(sorted(counts, key=lambda text: (float(text), text)))
    return tuple(sorted(counts))


def given_labels(recipe: Any) -> tuple[str, ...]:
    """The labels that a recipe names: in the objective's options, or in the head."""
    own: tuple[str, ...] = recipe.options.labels
    head: tuple[str, ...] = getattr(getattr(recipe.model, "head", None), "labels", ())
    if own and head and own != head:
        raise ConfigError(
            f"objective.labels={list(own)} and model.head.labels={list(head)} differ; say one"
        )
    return own or head
