"""Rotary positions in config.json, in both dialects.

transformers 4 has `rope_theta` and `rope_scaling`, transformers 5 has them together in
`rope_parameters`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from allformer.config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    ProportionalScaling,
    Rotary,
    YarnScaling,
)  # fmt: skip
from allformer.config.rotary import AnyScaling
from allformer.errors import CheckpointError
from allformer.families.family import expect
from allformer.families.fields import Fields
from allformer.families.kinds import FLAG, NUMBER, NUMBERS, SIZE, Kind, check_kind, short

_LENGTH = "original_max_position_embeddings"
_SHARE = "partial_rotary_factor"


def read(fields: Fields, length: int = 2048) -> Rotary:
    """The slot that the fields mean; kinds that the core does not know are refused. `length` is
    the family's own where config.json has none."""
    theta = fields.take("rope_theta", 10_000.0)
    length = fields.take("max_position_embeddings", length)
    older, newer = (fields.take(name, {}) for name in ("rope_scaling", "rope_parameters"))
    rope = dict(older or newer)  # as transformers: the older one, where it says anything
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    rope.pop("type", None)
    said = _Said(rope, length)
    theta = said.number("rope_theta", theta)
    if kind != "proportional" and said.number(_SHARE, 1.0) != 1.0:
        kind = "partial"
    if kind not in _READ:
        raise CheckpointError(
            f"config.json asks for rotary positions of kind {short(kind)}, which is not supported; "
            f"supported are {', '.join(_READ)}"
        )
    scaling = _READ[kind](said)
    rope.pop(_LENGTH, None)
    if rope:
        name, value = next(iter(rope.items()))
        raise CheckpointError(
            f"config.json has {name}={short(value)} in its rotary parameters of kind {kind!r}, "
            f"which is not known there; remove it if it means nothing"
        )
    return Rotary(theta, scaling, length)


@dataclass(frozen=True)
class _Said:
    """The rotary parameters, of which each is taken once; null counts as absent."""

    rope: dict[str, Any]
    longest: int  # max_position_embeddings

    def take(self, name: str, default: Any = None, kind: Kind = NUMBER) -> Any:
        value = self.rope.pop(name, None)
        check_kind(f"rope_parameters.{name}", value, kind)
        return default if value is None else value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.take(name, default)
        if value is None:
            raise CheckpointError(f"config.json lacks {name!r} in its rotary parameters; add it")
        return float(value)

    def gain(self) -> float | None:
        """What the angles' sines and cosines are multiplied by, where it is told."""
        value = self.take("attention_factor")
        return None if value is None else float(value)

    def length(self) -> int:
        return int(self.take(_LENGTH, self.longest, SIZE))

    def factor(self, length: int) -> float:
        """Null: how much longer the longest text is than those of pre-training."""
        told = "factor" in self.rope and self.rope["factor"] is None
        return self.number("factor", self.longest / length if told else None)


def _llama3(said: _Said) -> Llama3Scaling:
    low, high = (said.number(f"{end}_freq_factor") for end in ("low", "high"))
    return Llama3Scaling(said.number("factor"), low, high, said.length())


def _yarn(said: _Said) -> YarnScaling:
    length = said.length()
    factor, gain = said.factor(length), said.gain()
    one, all_ = said.take("mscale"), said.take("mscale_all_dim")
    if gain is None and one and all_ and factor > 1:  # DeepSeek's two factors
        log = 0.1 * math.log(factor)
        gain = (log * one + 1.0) / (log * all_ + 1.0)
    fast, slow = said.take("beta_fast") or 32, said.take("beta_slow") or 1  # 0 counts as absent
    whole = said.take("truncate", True, FLAG)
    return YarnScaling(factor, length, float(fast), float(slow), gain, whole)


def _long(said: _Said) -> LongScaling:
    length = said.length()
    said.rope.setdefault("factor", None)
    short, long = (
        tuple(map(float, said.take(f"{name}_factor", [], NUMBERS))) for name in ("short", "long")
    )
    return LongScaling(said.factor(length), length, short, long, said.gain())


_READ: dict[Any, Callable[[_Said], AnyScaling | None]] = {
    "default": lambda said: None,
    "linear": lambda said: LinearScaling(said.number("factor")),
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _long,
    "dynamic": lambda said: DynamicScaling(said.number("factor"), said.longest),
    "proportional": lambda said: ProportionalScaling(
        said.number(_SHARE, 1.0), said.number("factor", 1.0)
    ),
}


def write(rotary: Rotary) -> dict[str, Any]:
    """`rope_parameters`, as transformers 5 has them."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": rotary.theta}
    match rotary.scaling:
        case LinearScaling(factor):
            return rope | {"rope_type": "linear", "factor": factor}
        case Llama3Scaling(factor, low, high, length):
            rope |= {"rope_type": "llama3", "factor": factor, "low_freq_factor": low}
            return rope | {"high_freq_factor": high, _LENGTH: length}
        case YarnScaling(factor, length, fast, slow, gain, whole):
            rope |= {"rope_type": "yarn", "factor": factor, _LENGTH: length}
            rope |= {} if (fast, slow) == (32.0, 1.0) else {"beta_fast": fast, "beta_slow": slow}
            rope |= {} if whole else {"truncate": False}
            return rope | ({} if gain is None else {"attention_factor": gain})
        case LongScaling(factor, length, short, long, gain):
            rope |= {"rope_type": "longrope", "factor": factor, _LENGTH: length}
            rope |= {"short_factor": list(short), "long_factor": list(long)}
            return rope | ({} if gain is None else {"attention_factor": gain})
        case DynamicScaling(factor, length):
            expect(length == rotary.length, "has dynamic rotary positions that begin elsewhere")
            return rope | {"rope_type": "dynamic", "factor": factor}
        case ProportionalScaling(share, factor):
            rope |= {"rope_type": "proportional", _SHARE: share}
            return rope | ({} if factor == 1.0 else {"factor": factor})
    return rope
