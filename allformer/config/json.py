"""A config tree as JSON, and back: `config_from_json(config.to_json()) == config`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from itertools import groupby
from typing import Any

from allformer.config.check import CLASSES, Hint, hints_of
from allformer.errors import ConfigError, did_you_mean

MOST_LAYERS = 10_000


def to_dict(config: Any) -> dict[str, Any]:
    """A config as plain dicts; each names its class under `"is"`, equal blocks are counted."""
    out: dict[str, Any] = {"is": type(config).__name__}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name == "blocks":
            runs = ((block, len(list(run))) for block, run in groupby(value))
            out[field.name] = [{"times": n, **to_dict(block)} for block, n in runs]
        elif isinstance(value, tuple):
            out[field.name] = [to_dict(item) if is_dataclass(item) else item for item in value]
        else:
            out[field.name] = to_dict(value) if is_dataclass(value) else value
    return out


def from_dict(data: Any, where: str = "config") -> Any:
    """The inverse of `to_dict`; unknown classes and fields are refused by name."""
    try:
        return _node(data, where)
    except RecursionError:
        raise ConfigError(f"{where} is nested too deeply; no config is: check the file") from None


def config_from_json(text: str) -> Any:
    """`config_from_json(config.to_json()) == config`."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"config is not JSON (line {error.lineno}: {error.msg}); check the file"
        ) from None
    except (RecursionError, ValueError) as error:  # nested without end, a number without end
        raise ConfigError(f"config cannot be read ({error}); check the file") from None
    return from_dict(data)


def _node(data: Any, where: str) -> Any:
    if not isinstance(data, dict) or "is" not in data:
        raise ConfigError(f'{where} is {data!r}; it must be an object with its class under "is"')
    if isinstance(data["is"], str) and data["is"] in LEGACY:
        data = LEGACY[data["is"]](data)
    data = dict(data)
    name = data.pop("is")
    cls = CLASSES.get(name) if isinstance(name, str) else None
    if cls is None:
        hint = did_you_mean(name, CLASSES) if isinstance(name, str) else ""
        hint = hint or f"try {', '.join(CLASSES)}; "
        raise ConfigError(
            f"{where}.is={name!r} is not known; {hint}a class of "
            f"your own must be imported before, and one of a newer version needs that version"
        )
    known = {field.name: field for field in fields(cls)}
    unknown = sorted(set(data) - set(known), key=str)
    if unknown:
        hint = did_you_mean(str(unknown[0]), known)
        raise ConfigError(
            f"{where} has no field {unknown[0]!r}; {hint}{name} has {', '.join(known)}"
        )
    for field in known.values():
        given = field.name in data or field.default_factory is not dataclasses.MISSING
        if not given and field.default is dataclasses.MISSING:
            raise ConfigError(f"{where} lacks {name}.{field.name}; give it a value")
    hints = hints_of(cls)
    values = {key: _field(value, hints[key], f"{where}.{key}") for key, value in data.items()}
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _field(value: Any, hint: Hint | None, where: str) -> Any:
    if where.endswith(".blocks"):
        return _blocks(value, where)
    if isinstance(value, dict):
        return _node(value, where)
    if isinstance(value, list) and (hint is None or hint.items is not None):
        inner = [(f"{where}[{i}]", item) for i, item in enumerate(value)]
        return tuple(_node(x, here) if isinstance(x, dict) else x for here, x in inner)
    if hint is not None and float in hint.plain and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return value
    return value  # the class checks its type and names the choices


def _blocks(value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{where} is {value!r}; it must be a list of blocks")
    blocks: list[Any] = []
    for i, item in enumerate(value):
        item = dict(item) if isinstance(item, dict) else item
        times = item.pop("times", 1) if isinstance(item, dict) else 1
        if type(times) is not int or times < 1:
            raise ConfigError(
                f"{where}[{i}].times={times!r} must be a whole number of at least 1; try 1 or more"
            )
        if times > MOST_LAYERS - len(blocks):
            raise ConfigError(
                f"{where}[{i}].times={times} makes more than {MOST_LAYERS:,} layers; try fewer"
            )
        blocks += [_node(item, f"{where}[{i}]")] * times
    return tuple(blocks)


def _pretrain_head(data: dict[str, Any]) -> dict[str, Any]:
    """BERT's pair, as it was written before heads side by side were data."""
    rest = {key: value for key, value in data.items() if key not in ("words", "pair")}
    outputs = {"words": ("prediction_logits", "labels"),
               "pair": ("seq_relationship_logits", "next_sentence_label")}  # fmt: skip
    parts = [
        {"is": "Beside", "name": name, "head": data.get(name), "output": output, "target": target}
        for name, (output, target) in outputs.items()
    ]
    return {**rest, "is": "Several", "parts": parts}


# Classes that are no more, and how what they said is said now.
LEGACY: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"PretrainHead": _pretrain_head}
