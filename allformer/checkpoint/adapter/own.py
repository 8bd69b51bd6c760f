"""Adapters in our own words, for what PEFT has none: `adapter_config.json` with an "is" in it.

    {"is": "adapter", "methods": [{"is": "bitfit", "whole": ["head"]}], "revision": null, …}

Its tensors have the names of `tune.adapter_state`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allformer.errors import CheckpointError, ConfigError
from allformer.families.kinds import short
from allformer.tune.method import Method, find_method

OWN = "adapter"


def methods_to_json(methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Each method by its name and its settings: `[{"is": "lora", "rank": 8, …}]`."""
    return [{"is": type(m).name, **{k: _plain(v) for k, v in vars(m).items()}} for m in methods]


def methods_from_json(raw: Mapping[str, Any], file: Path) -> tuple[Method, ...]:
    """The inverse; an unknown method or setting is refused by name."""
    given = raw.get("methods")
    if raw.get("is") != OWN or not isinstance(given, list) or not given:
        raise CheckpointError(
            f"{file} has is={short(raw.get('is'))} and methods={short(given)}; it must be "
            f"{OWN!r} with a list of methods: write it again with af.save_adapter"
        )
    try:
        return tuple(_method(one) for one in given)
    except (ConfigError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: {error}") from None


def _method(said: Any) -> Method:
    if not isinstance(said, dict) or not isinstance(said.get("is"), str):
        raise ConfigError(f"methods has {short(said)}; each must name its method under 'is'")
    kind = find_method(said["is"])
    known = {field.name for field in dataclasses.fields(kind)}
    odd = next((name for name in said if name != "is" and name not in known), None)
    if odd is not None:
        raise ConfigError(f"{said['is']} has no setting {odd!r}; it has {', '.join(sorted(known))}")
    return kind(**{name: _tuples(value) for name, value in said.items() if name != "is"})


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(x) for x in value] if isinstance(value, tuple | list) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(x) for x in value) if isinstance(value, list) else value
