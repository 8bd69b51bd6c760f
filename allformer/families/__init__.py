"""Families: presets over the one core. A family is a file here and an entry in `PRESETS`."""

from __future__ import annotations

from collections.abc import Callable

from allformer import config
from allformer.errors import ConfigError
from allformer.families import original

PRESETS: dict[str, Callable[[], config.Model]] = {**original.PRESETS}


def presets() -> list[str]:
    """The names that `preset` knows."""
    return sorted(PRESETS)


def preset(name: str) -> config.Model:
    """A ready config by name: `preset("original-base")`."""
    if name not in PRESETS:
        raise ConfigError(f"preset={name!r} is not known; try {', '.join(presets())}")
    return PRESETS[name]()
