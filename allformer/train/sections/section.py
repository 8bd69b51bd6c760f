"""What every section of a recipe is: a frozen dataclass, checked by its annotations.

    @dataclass(frozen=True)
    class LogRecipe(Section, section="log"):
        every: Annotated[int, at_least(1)] = 50

    class Optim(Section, section="optim", key="name"): ...        # a choice among classes
    class AdamW(Optim, named="adamw"): ...                        # optim: {name: adamw, …}

A setting that belongs to no choice cannot be written down.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, ClassVar, Self, TypeVar

from allformer.config.check import Hint, Rule, hints_of
from allformer.errors import ConfigError, did_you_mean


def at_least(least: float) -> Rule:
    """`steps: Annotated[int, at_least(1)]`."""
    return Rule(lambda x: x >= least, f"must be at least {least}", f"try {least} or more")


def at_most(most: float) -> Rule:
    """`beams: Annotated[int, at_most(1000)]`."""
    return Rule(lambda x: x <= most, f"must be at most {most}", "try less")


def positive(example: str) -> Rule:
    """`rate: Annotated[float, positive("1e-3")]`."""
    return Rule(lambda x: x > 0, "must be positive", f"try {example}")


def share(example: str, whole: bool = False) -> Rule:
    """`smoothing: Annotated[float, share("0.1")]`: 0 … 1, with 1 itself where `whole`."""
    without = "" if whole else ", without 1"
    return Rule(
        lambda x: 0 <= x < 1 or (whole and x == 1), f"must be in 0 … 1{without}", f"try {example}"
    )


def one_of(*choices: str) -> Rule:
    """`kind: Annotated[str, one_of("bpe", "char")]`."""
    return Rule(lambda x: x in choices, "is not a choice", f"try {', '.join(choices)}")


Fraction = Annotated[float, share("0.1", whole=True)]
NotNegative = Annotated[float, Rule(lambda x: x >= 0, "must be at least 0", "try 0 or more")]
Whole = Annotated[int, at_least(0)]
Count = Annotated[int, at_least(1)]


@dataclass(frozen=True)
class Section:
    """A section of the recipe; the first value that cannot work is refused by its name there."""

    section: ClassVar[str] = "recipe"
    key: ClassVar[str] = ""  # what chooses among the classes of the section, if there are several
    default: ClassVar[str] = ""  # which of them, where none is named
    named: ClassVar[str] = ""  # which of them this is
    classes: ClassVar[dict[str, type[Section]]] = {}

    def __init_subclass__(
        cls, *, section: str = "", key: str = "", default: str = "", named: str = "", **more: Any
    ) -> None:
        super().__init_subclass__(**more)
        if section:
            cls.section = section
        if key:
            cls.key, cls.classes, cls.default = key, {}, default
        if named:
            cls.named = named
            cls.classes[named] = cls

    def __post_init__(self) -> None:
        own: type = type(self)
        for name, hint in hints_of(own).items():
            value = getattr(self, name)
            if hint is None:
                continue
            if found := hint.refusal(value):
                self.refuse(name, *found)
            if hint.items is not None and isinstance(value, tuple):
                for i, item in enumerate(value):
                    if found := hint.items.refusal(item):
                        must, way_out = found
                        raise ConfigError(f"{self.section}.{name}[{i}]={item!r} {must}; {way_out}")

    def refuse(self, name: str, must: str, way_out: str) -> typing.NoReturn:
        """Raise the one form of error that a recipe has."""
        value = getattr(self, name)
        raise ConfigError(f"{self.section}.{name}={value!r} {must}; {way_out}")

    @classmethod
    def read(cls, data: Any, where: str | None = None) -> Self:
        """From a section of `key: value` lines: `Schedule.read({"kind": "cosine"})`."""
        return read_section(cls, data, where or cls.section)

    def plain(self) -> dict[str, Any]:
        """As it stands in a recipe: what `read_section` reads back."""
        found: dict[str, Any] = {self.key: self.named} if self.key else {}
        return found | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.plain()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class NoOptions(Section, section="objective"):
    """Of an objective that has nothing to set."""


S = TypeVar("S", bound=Section)


def read_section(cls: type[S], data: Any, where: str) -> S:
    """A section from plain dicts: `read_section(TrainRecipe, {"steps": 5}, "recipe.train")`.

    Misspelt keys are refused with the nearest right one.
    """
    given = as_mapping(data, where)
    if cls.key and not cls.named:
        cls = _chosen(cls, given, where)
    if cls.key:
        given.pop(cls.key, None)
    for unknown in sorted(set(map(str, given)) - {f.name for f in fields(cls)}):
        _refuse_key(unknown, cls, where)
    own: type = cls
    hints, kinds = hints_of(own), typing.get_type_hints(own)
    return cls(
        **{
            name: field_value(hints[name], kinds[name], x, f"{where}.{name}")
            for name, x in given.items()
        }
    )


def _refuse_key(unknown: str, cls: type[Section], where: str) -> typing.NoReturn:
    owners = [n for n, c in cls.classes.items() if unknown in (f.name for f in fields(c))]
    if owners:
        raise ConfigError(
            f"{where}.{unknown} belongs to {', '.join(owners)}, not to {cls.named}; remove it, or "
            f"choose {where}.{cls.key}={owners[0]}"
        )
    own = [*([cls.key] if cls.key else []), *(f.name for f in fields(cls))]
    hint = did_you_mean(unknown, own)
    there = ", ".join(own) or "nothing to set"
    raise ConfigError(f"{where}.{unknown} is not known; {hint}there is {there}")


def _chosen(cls: type[S], given: dict[str, Any], where: str) -> type[S]:
    name = given.get(cls.key, cls.default)
    if not isinstance(name, str) or name not in cls.classes:
        hint = did_you_mean(str(name), cls.classes)
        raise ConfigError(
            f"{where}.{cls.key}={name!r} is not a choice; {hint}try {', '.join(cls.classes)}"
        )
    return typing.cast("type[S]", cls.classes[name])


def as_mapping(data: Any, where: str) -> dict[str, Any]:
    """A section's lines, or an error that says what must stand there."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} is {data!r}; it must be a section of `key: value` lines")
    return dict(data)


def field_value(hint: Hint | None, kind: Any, value: Any, where: str) -> Any:
    """What a file says for a field, as the field takes it, or an error that names the place."""
    if hint is None:
        return as_mapping(value, where) if _wants_mapping(kind) and value is not None else value
    inner = next((s for s in hint.slots if is_dataclass(s) and issubclass(s, Section)), None)
    if inner is not None and (isinstance(value, Mapping) or not hint.takes(value)):
        return read_section(inner, value, where)
    if hint.items is not None and isinstance(value, Sequence) and not isinstance(value, str):
        value = tuple(_number(hint.items, item) for item in value)
    value = _number(hint, value)
    if not hint.takes(value):
        must, way_out = hint.refusal(value) or ("", "")
        raise ConfigError(f"{where}={value!r} {must.replace('None', 'nothing')}; {way_out}")
    return value


def _wants_mapping(kind: Any) -> bool:
    arms = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return any(typing.get_origin(arm) in (Mapping, dict) for arm in arms)


def _number(hint: Hint, value: Any) -> Any:
    """YAML 1.1 reads 1e-3 as text, and 1 as a whole number."""
    if float not in hint.plain or isinstance(value, bool):
        return value
    if isinstance(value, int) and int not in hint.plain:
        return float(value)
    if isinstance(value, str) and str not in hint.plain:
        try:
            return float(value)
        except ValueError:
            pass
    return value
