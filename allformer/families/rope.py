"""Rotary positions in config.json, in both dialects.

transformers 4 has `rope_theta` and `rope_scaling`, transformers 5 has them together in
`rope_parameters`.
"""

from __future__ import annotations

from typing import Any

from allformer.config import LinearScaling, Llama3Scaling, Rotary
from allformer.errors import CheckpointError
from allformer.families.fields import Fields
from allformer.families.kinds import NUMBER, SIZE, Kind, check_kind, short


def read(fields: Fields, length: int = 2048) -> Rotary:
    """The slot that the fields mean; kinds that the core does not know are refused. `length` is
    the family's own where config.json has none."""
    theta = fields.take("rope_theta", 10_000.0)
    length = fields.take("max_position_embeddings", length)
    older, newer = (fields.take(name, {}) for name in ("rope_scaling", "rope_parameters"))
    rope = dict(older or newer)  # as transformers: the older one, where it says anything
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    rope.pop("type", None)
    theta = float(_number(rope, "rope_theta", theta))
    if _number(rope, "partial_rotary_factor", 1.0) != 1.0:
        kind = "partial"
    scaling: LinearScaling | Llama3Scaling | None = None
    if kind == "linear":
        scaling = LinearScaling(_number(rope, "factor"))
    elif kind == "llama3":
        low, high = (_number(rope, f"{end}_freq_factor") for end in ("low", "high"))
        known = int(_number(rope, _LENGTH, length, SIZE))
        scaling = Llama3Scaling(_number(rope, "factor"), low, high, known)
    elif kind != "default":
        raise CheckpointError(
            f"config.json asks for rotary positions of kind {short(kind)}, which is not supported; "
            f"supported are default, linear and llama3"
        )
    rope.pop(_LENGTH, None)
    if rope:
        name, value = next(iter(rope.items()))
        raise CheckpointError(
            f"config.json has {name}={short(value)} in its rotary parameters of kind {kind!r}, "
            f"which is not known there; remove it if it means nothing"
        )
    return Rotary(theta, scaling, length)


_LENGTH = "original_max_position_embeddings"


def _number(
    rope: dict[str, Any], name: str, default: float | None = None, kind: Kind = NUMBER
) -> float:
    """Take a number out of the rotary parameters; null counts as absent."""
    value = rope.pop(name, None)
    check_kind(f"rope_parameters.{name}", value, kind)
    if value is None and default is None:
        raise CheckpointError(f"config.json lacks {name!r} in its rotary parameters; add it")
    found = default if value is None else value
    assert found is not None
    return float(found)


def write(rotary: Rotary) -> dict[str, Any]:
    """`rope_parameters`, as transformers 5 has them."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": rotary.theta}
    scaling = rotary.scaling
    if isinstance(scaling, LinearScaling):
        rope |= {"rope_type": "linear", "factor": scaling.factor}
    elif scaling is not None:
        rope |= {"rope_type": "llama3", "factor": scaling.factor, "low_freq_factor": scaling.low}
        rope["high_freq_factor"] = scaling.high
        rope["original_max_position_embeddings"] = scaling.length
    return rope
