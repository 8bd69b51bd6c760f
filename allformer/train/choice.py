"""A section of a recipe that is one of several: a dataclass for each choice, with its own fields.

    class Schedule(Choice, section="schedule", key="kind", default="constant"): …

    @dataclass(frozen=True)
    class Constant(Schedule, named="constant"):                   # what may stand in it
        warmup: Natural = 1000

    Schedule.read({"kind": "constant", "warmup": 10})             # Constant(warmup=10)

A key that belongs to another choice cannot be held by this one, so it is refused, by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Self, cast

from allformer.config.check import Hint, Rule, hints_of
from allformer.errors import ConfigError, did_you_mean

Fraction = Annotated[float, Rule(lambda x: 0 <= x <= 1, "must be in 0 … 1", "try 0.1")]
NotNegative = Annotated[float, Rule(lambda x: x >= 0, "must be at least 0", "try 0 or more")]


@dataclass(frozen=True)
class Choice:
    """What all of them do: check their fields by annotation, and go to and from a recipe."""

    section: ClassVar[str]
    key: ClassVar[str]
    name: ClassVar[str]
    default: ClassVar[str]  # what is meant where the key is not given
    choices: ClassVar[dict[str, type[Choice]]]  # of the slot, by name

    def __init_subclass__(
        cls, *, section: str = "", key: str = "", default: str = "", named: str = ""
    ) -> None:
        super().__init_subclass__()
        if section:
            cls.section, cls.key, cls.default, cls.choices = section, key, default, {}
        if named:
            cls.name = named
            cls.choices[named] = cls

    def __post_init__(self) -> None:
        own: type = type(self)
        for name, hint in hints_of(own).items():
            if hint is not None:
                _check(hint, getattr(self, name), f"{self.section}.{name}")

    def plain(self) -> dict[str, Any]:
        """What `read` reads back, in plain values: `{"kind": "constant", "warmup": 10}`."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        lists = {n: list(x) if isinstance(x, tuple) else x for n, x in found.items()}
        return {self.key: self.name, **lists}

    @classmethod
    def read(cls, data: Any, where: str | None = None) -> Self:
        """One of the slot's choices from a section of `key: value` lines."""
        where = where or cls.section
        if not isinstance(data, Mapping):
            raise ConfigError(f"{where} is {data!r}; it must be a section of `key: value` lines")
        given = dict(data)
        name = given.pop(cls.key, cls.default)
        if not isinstance(name, str) or name not in cls.choices:
            hint, there = did_you_mean(str(name), cls.choices), ", ".join(cls.choices)
            raise ConfigError(f"{where}.{cls.key}={name!r} is not a choice; {hint}try {there}")
        chosen: type = cls.choices[name]
        hints = hints_of(chosen)
        for unknown in sorted(set(map(str, given)) - set(hints)):
            cls._refuse(unknown, chosen, where)
        return cast(Self, chosen(**{n: _adapted(hints[n], x) for n, x in given.items()}))

    @classmethod
    def _refuse(cls, unknown: str, chosen: type[Choice], where: str) -> None:
        own = [cls.key, *(f.name for f in fields(chosen))]
        owners = [n for n, c in cls.choices.items() if unknown in (f.name for f in fields(c))]
        if owners:
            raise ConfigError(
                f"{where}.{unknown} belongs to {', '.join(owners)}, not to {chosen.name}; remove "
                f"it, or choose {where}.{cls.key}={owners[0]}"
            )
        hint = did_you_mean(unknown, own)
        raise ConfigError(f"{where}.{unknown} is not known; {hint}there is {', '.join(own)}")


def _adapted(hint: Hint | None, value: Any) -> Any:
    """A list as a tuple, and numbers as floats where floats belong: YAML 1.1 reads 1e-3 as text."""
    if hint is None:
        return value
    if isinstance(value, list) and hint.items is not None:
        return tuple(_adapted(hint.items, x) for x in value)
    if float in hint.plain and isinstance(value, str | int) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    return value


def _check(hint: Hint, value: Any, name: str) -> None:
    if found := hint.refusal(value):
        raise ConfigError(f"{name}={value!r} {found[0]}; {found[1]}")
    if hint.items is not None and isinstance(value, tuple):
        for i, item in enumerate(value):
            if found := hint.items.refusal(item):
                raise ConfigError(f"{name}[{i}]={item!r} {found[0]}; {found[1]}")
