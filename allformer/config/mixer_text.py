"""A mixer on a command line: `window:512`, `window:512,0`, `full`.

The name of its class in small letters, and its fields in order; a window with one number looks as
far ahead as back.
"""

from __future__ import annotations

from dataclasses import fields

from allformer.config.check import CLASSES
from allformer.config.mixer import Mixer, Window
from allformer.errors import ConfigError


def mixer_from_text(text: str) -> Mixer:
    """`mixer_from_text("window:256")` → `Window(256, 256)`."""
    known = {n.lower(): c for n, c in CLASSES.items() if issubclass(c, Mixer) and not c._slot}
    name, _, rest = text.strip().partition(":")
    kind = known.get(name.lower().replace("_", "").replace("-", ""))
    if kind is None:
        raise ConfigError(f"mixer {text!r} is not known; try window:512, or {', '.join(known)}")
    values = [_value(word) for word in rest.split(",")] if rest else []
    names = [field.name for field in fields(kind)]
    if len(values) > len(names):
        raise ConfigError(
            f"mixer {text!r} has {len(values)} values; {kind.__name__} takes {', '.join(names)}"
        )
    wrong = [word for word in values if isinstance(word, str) and kind is Window]
    if wrong:
        raise ConfigError(
            f"mixer {text!r}: {kind.__name__}.{names[values.index(wrong[0])]}={wrong[0]!r} must be "
            f"a whole number; try {name}:512"
        )
    if kind is Window and len(values) == 1:
        values *= 2
    try:
        return kind(*values)
    except TypeError:  # a field that must be said
        raise ConfigError(
            f"mixer {text!r} says too little; {kind.__name__} takes {', '.join(names)}: try "
            f"{name}:{','.join('512' for _ in names[:1])}"
        ) from None


def _value(word: str) -> int | str:
    word = word.strip()
    return int(word) if word.removeprefix("-").isdecimal() else word
