"""A recipe's tune section: what is trained of the model, by which method.

    tune: lora                                         # the method with its defaults
    tune: {is: lora, rank: 16, targets: [q, v]}        # with settings (`allformer.tune`)
    tune: [{is: lora, rank: 16}, bitfit]               # several make one adapter

Left out, every weight is trained, as in any other run.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from allformer.config.check import hints_of
from allformer.errors import ConfigError, did_you_mean
from allformer.train.sections.section import Section, as_mapping, field_value
from allformer.tune.method import METHODS, Method


@dataclass(frozen=True)
class TuneRecipe(Section, section="tune"):
    """`TuneRecipe((Lora(rank=16),))`: methods that are put on the model as one adapter."""

    methods: tuple[Method, ...]

    def plain(self) -> Any:
        """As it stands in a recipe: one section, or a list of them."""
        said = [_plain_method(method) for method in self.methods]
        return said[0] if len(said) == 1 else said

    @property
    def told(self) -> str:
        """`lora, bitfit`."""
        return ", ".join(type(method).name for method in self.methods)


def read_tune(data: Any, where: str) -> TuneRecipe:
    """`read_tune({"is": "lora", "rank": 16}, "recipe.tune")`."""
    several = isinstance(data, Sequence) and not isinstance(data, str)
    if several and not data:
        raise ConfigError(f"{where} is an empty list; name a method, or leave it out")
    if not several:
        return TuneRecipe((_method(data, where),))
    return TuneRecipe(tuple(_method(one, f"{where}[{i}]") for i, one in enumerate(data)))


def _method(data: Any, where: str) -> Method:
    given = {"is": data} if isinstance(data, str) else as_mapping(data, where)
    name = given.pop("is", None)
    if name not in METHODS:
        hint = did_you_mean(str(name), METHODS)
        raise ConfigError(
            f"{where}.is={name!r} is not a method; {hint}try {', '.join(sorted(METHODS))}"
        )
    kind = METHODS[name]
    known = [field.name for field in fields(kind)]
    if unknown := sorted(set(map(str, given)) - set(known)):
        owners = [n for n, m in METHODS.items() if unknown[0] in (f.name for f in fields(m))]
        whose = f"belongs to {', '.join(owners)}, not to {name}" if owners else "is not known"
        hint = did_you_mean(unknown[0], known)
        raise ConfigError(f"{where}.{unknown[0]} {whose}; {hint}there is is, {', '.join(known)}")
    own: type = kind
    hints, kinds = hints_of(own), typing.get_type_hints(own)
    values = {
        key: field_value(hints[key], kinds[key], _tuples(x), f"{where}.{key}")
        for key, x in given.items()
    }
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _plain_method(method: Method) -> dict[str, Any]:
    said = {field.name: _plain(getattr(method, field.name)) for field in fields(method)}
    return {"is": type(method).name, **said}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value
