"""A checkpoint's config.json, field by field: each is read, checked, or known to change nothing.

A field that nobody asked for is refused by name: it might change the numbers. Every field's type is
checked, of those too that change nothing (`families.kinds`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from allformer.errors import CheckpointError
from allformer.families.kinds import FLAG, INERT, LABELS, SIZE, Kind, check_kind, kind_of, short

# What must have a certain value, else the model is another one.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "pruned_heads": ({}, None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "cross_attention_hidden_size": (None,),
    "tie_encoder_decoder": (False, None),
    "layer_norm_type": (None,),
}
_MISSING: Any = object()


class Fields:
    """`fields.take("hidden_size", 768)`; afterwards `fields.close()` refuses what nobody took.

    `usual` has the values of absent fields, as the family's files leave them out.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        kind: str,
        usual: Mapping[str, Any] | None = None,
        ignore: Iterable[str] = (),
    ) -> None:
        self.raw, self.kind, self.usual = dict(raw), kind, usual or {}
        self.taken: set[str] = set()
        self.known: set[str] = set()  # looked at, and of no effect as they stand
        self.ignore = frozenset(ignore)
        for name, each in INERT.items():
            if name not in self.ignore:
                check_kind(name, self.raw.get(name), each)

    def take(
        self,
        name: str,
        default: Any = _MISSING,
        *,
        older: str | None = None,
        kind: Kind | None = None,
    ) -> Any:
        """The field's value, under this or an older name; null counts as absent.

        It must be of the `kind`: unless given, that of the default or usual value, or else a size.
        """
        names = (name,) if older is None else (name, older)
        self.taken.update(names)
        default = self.usual.get(name, _MISSING) if default is _MISSING else default
        if kind is None:
            kind = SIZE if default is _MISSING else kind_of(default)
        for known in names:
            if self.raw.get(known) is not None:
                check_kind(known, self.raw[known], kind)
                return self.raw[known]
        if default is _MISSING:
            raise CheckpointError(
                f"config.json lacks {name!r}, which a {self.kind} model needs; add it"
            )
        return default

    def flag(self, name: str, default: bool) -> bool:
        """A switch of which null is no: transformers sets what config.json says after its own."""
        value = self.take(name, default, kind=FLAG)
        return False if self.raw.get(name, default) is None else bool(value)

    def must(self, name: str, *allowed: Any) -> None:
        """Refuse any value but these (or none): the core cannot say what it means."""
        self.known.add(name)
        value = self.raw.get(name)
        if value is not None and not _among(value, allowed) and name not in self.ignore:
            raise CheckpointError(
                f"config.json has {name}={short(value)}, which is not supported and would "
                f"change the numbers (supported: {', '.join(map(repr, allowed)) or 'absent'}); "
                f"load(…, ignore=[{name!r}]) goes on without it"
            )

    def inert(self, kind: Kind, *names: str) -> None:
        """Fields of this family that change nothing, whatever they say, but are of this kind."""
        self.known.update(names)
        for name in names:
            if name not in self.ignore:
                check_kind(name, self.raw.get(name), kind)

    def causal(self) -> None:
        """A decoder looks back alone.

        transformers 5 gives it a mask for both directions where `is_causal` is false, or null.
        """
        self.inert(FLAG, "is_causal")
        if not self.raw.get("is_causal", True) and "is_causal" not in self.ignore:
            raise CheckpointError(
                f"config.json has is_causal={self.raw['is_causal']!r}, which is not supported: the "
                f"decoder of a {self.kind} model looks back alone here; set it to true, or "
                f"load(…, ignore=['is_causal']) goes on without it"
            )

    def choice(self, name: str, known: Mapping[str, str], default: Any = _MISSING) -> str:
        """A name that the table translates: `fields.choice("hidden_act", ACT, "gelu")`."""
        value = self.take(name, default)
        if value not in known:
            raise CheckpointError(
                f"config.json has {name}={short(value)}, which is not known; try {', '.join(known)}"
            )
        return known[value]

    def token(self, name: str, vocab: int) -> int | None:
        """A token id of the vocabulary; the first of a list; None where it points outside."""
        value = self.raw.get(name, self.usual.get(name))
        value = value[0] if isinstance(value, list) and value else value
        return value if type(value) is int and 0 <= value < vocab else None

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in order; where their number is said and is another, it counts,
        as in transformers."""
        names, said = self.raw.get("id2label"), self.raw.get("num_labels")
        if not names or (said and isinstance(names, dict) and len(names) != said):
            count = said or self.usual.get("num_labels", 2)
            check_kind("num_labels", count, LABELS)
            return tuple(f"LABEL_{i}" for i in range(count))
        try:
            ordered = sorted((int(key), _label(name)) for key, name in names.items())
        except (AttributeError, ValueError):
            raise CheckpointError(
                f"config.json has id2label={short(names)}; it must name the label of each number"
            ) from None
        if [key for key, _ in ordered] != list(range(len(ordered))):
            raise CheckpointError(
                f"config.json has id2label with the numbers {short([key for key, _ in ordered])}; "
                f"they must run from 0 without gaps"
            )
        return tuple(name for _, name in ordered)

    def close(self) -> dict[str, Any]:
        """Refuse what is left; returns what changes nothing, to be written back as it was."""
        for name, values in NEUTRAL.items():
            if name not in self.taken:
                self.must(name, *values)
        left = {
            name: value
            for name, value in self.raw.items()
            if name not in self.taken | self.known | INERT.keys() | self.ignore and not _off(value)
        }
        if left:
            names = [name[:80] for name in left][:20]
            name, value = names[0], next(iter(left.values()))
            raise CheckpointError(
                f"config.json has {name}={short(value)}, which allformer does not know for a "
                f"{self.kind} model and which may change its numbers"
                + (f" (and {', '.join(names[1:])})" if len(left) > 1 else "")
                + f"; load(…, ignore={names}) goes on without"
            )
        return {n: v for n, v in self.raw.items() if n not in self.taken | self.ignore}


def _off(value: Any) -> bool:
    """Unknown and switched off: it asks for nothing."""
    return value is None or value is False or value == {} or value == []


def _among(value: Any, allowed: Iterable[Any]) -> bool:
    """0 is 0.0, but 1 is not True."""
    flag = isinstance(value, bool)
    return any(isinstance(each, bool) is flag and value == each for each in allowed)


def _label(name: Any) -> str:
    if not isinstance(name, str | int | float):
        raise ValueError
    return str(name)
