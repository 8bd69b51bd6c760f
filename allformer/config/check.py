"""What an annotation lets into a field: types, choices, slots, tuples, ranges.

heads: Positive                       # Annotated[int, Rule(…)]
norm_at: Literal["pre", "post"]       # a choice
position: Position | None             # a slot: any class of that kind, a user's own too
blocks: tuple[Block, ...]
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, get_args, get_origin

from allformer.errors import ConfigError

CLASSES: dict[str, type] = {}  # every class that may stand in a tree, by its name
_PLAIN = (int, float, bool, str, NoneType)
_LARGEST = sys.float_info.max  # a whole number can be larger and would not be finite as a float


def refuse(owner: object, field: str, must: str, way_out: str) -> NoReturn:
    """Raise the one form of error a config has: field, value, what must hold, a way out."""
    name = type(owner).__name__
    raise ConfigError(f"{name}.{field}={getattr(owner, field)!r} {must}; {way_out}")


class Rule(NamedTuple):
    """What must hold of a value beside its type: `Annotated[int, Rule(test, must, way_out)]`."""

    holds: Callable[[Any], bool]
    must: str
    way_out: str


def above(low: float, way_out: str) -> Rule:
    """`theta: Annotated[float, above(1, "LLaMA has 10000.0")]`."""
    return Rule(
        lambda x: x > low, f"must be greater than {low}" if low else "must be positive", way_out
    )


def choice(choices: Sequence[object]) -> Rule:
    """`act: Annotated[str, choice(("relu", "gelu"))]`."""
    return Rule(lambda x: x in choices, "is not a choice", f"try {', '.join(map(repr, choices))}")


@dataclass(frozen=True)
class Hint:
    """An annotation, read: the value may be of a plain type, a choice, of a slot, or a tuple."""

    plain: frozenset[type]
    choices: tuple[object, ...]
    slots: tuple[type, ...]
    items: Hint | None
    rules: tuple[Rule, ...]

    def check(self, owner: object, name: str) -> None:
        """Refuse what stands in a field of `owner` and does not belong there."""
        value = getattr(owner, name)
        if found := self.refusal(value):
            refuse(owner, name, *found)
        if self.items is None or not isinstance(value, tuple):
            return
        for i, item in enumerate(value):
            if found := self.items.refusal(item):
                must, way_out = found
                if not self.items.takes(item):
                    must = f"is not a {self.items.names()}"
                    way_out = self.rules[0].way_out if self.rules else "correct its type"
                raise ConfigError(f"{type(owner).__name__}.{name}[{i}]={item!r} {must}; {way_out}")

    def refusal(self, value: Any) -> tuple[str, str] | None:
        """What must hold of a value and does not, and the way out."""
        if not self.takes(value):
            return self._wants()
        if value is None or self._known(value):
            return None
        if float in self.plain and type(value) is not tuple and not abs(value) <= _LARGEST:
            return "must be a finite number", "correct its value"
        return next((rule[1:] for rule in self.rules if not rule.holds(value)), None)

    def takes(self, value: object) -> bool:
        """Whether a value is of the right kind; an int may stand for a float."""
        if type(value) in self.plain or (float in self.plain and type(value) is int):
            return True
        return self._known(value) or (self.items is not None and isinstance(value, tuple))

    def _known(self, value: object) -> bool:
        """Whether it is one of the choices, or of a class of the slot."""
        same = (type(value) is type(known) and value == known for known in self.choices)
        return isinstance(value, self.slots) or any(same)

    def names(self) -> str:
        """`bool or tuple of str`."""
        found = [
            "None" if kind is NoneType else kind.__name__ for kind in (*self.plain, *self.slots)
        ]
        if self.items is not None:
            found.append(f"tuple of {self.items.names()}")
        return " or ".join(sorted(found))

    def _wants(self) -> tuple[str, str]:
        """What must hold, and the way out."""
        none = (None,) if NoneType in self.plain else ()
        if self.items is not None and self.rules:
            return self.rules[0].must, self.rules[0].way_out
        if self.choices:
            return choice((*self.choices, *none))[1:]
        if self.slots:
            fits = [name for name, cls in CLASSES.items() if issubclass(cls, self.slots)]
            return "does not fit this slot", f"it takes {', '.join([*fits, *map(str, none)])}"
        return f"must be {self.names()}", "correct its type"


@cache
def hints_of(cls: type) -> dict[str, Hint | None]:
    """The fields of a class and what they take; None: nothing is known of it, so anything."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"{cls.__name__} has an annotation that cannot be read ({error}); "
            f"define what it names at the top of a module"
        ) from None
    return {field.name: _read(hints[field.name]) for field in fields(cls)}


def _read(hint: Any) -> Hint | None:
    plain: set[type] = set()
    choices: list[object] = []
    slots: list[type] = []
    rules: list[Rule] = []
    items: Hint | None = None
    for arm, more in _arms(hint):
        rules += more
        if arm in _PLAIN:
            plain.add(arm)
        elif get_origin(arm) is Literal:
            choices += get_args(arm)
        elif get_origin(arm) is tuple and get_args(arm)[1:] == (...,):
            items = _read(get_args(arm)[0])
            if items is None:
                return None
        elif isinstance(arm, type) and not get_args(arm):
            slots.append(arm)
        else:
            return None
    return Hint(frozenset(plain), tuple(choices), tuple(slots), items, tuple(rules))


def _arms(hint: Any) -> Iterator[tuple[Any, list[Rule]]]:
    """The alternatives of a union, each with the rules that are written on it."""
    if get_origin(hint) is Annotated:
        inner, *rules = get_args(hint)
        for arm, more in _arms(inner):
            yield arm, [*more, *(rule for rule in rules if isinstance(rule, Rule))]
    elif get_origin(hint) in (typing.Union, UnionType):
        for arm in get_args(hint):
            yield from _arms(arm)
    else:
        yield hint, []
