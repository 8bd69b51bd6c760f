"""Rotary positions in config.json, in both dialects.

transformers 4 has `rope_theta` and `rope_scaling`, transformers 5 has them together in
`rope_parameters`.
"""

from __future__ import annotations

from typing import Any

from allformer.config import LinearScaling, Llama3Scaling, Rotary
from allformer.errors import CheckpointError
from allformer.families.fields import Fields


def read(fields: Fields) -> Rotary:
    """The slot that the fields mean; kinds that the core does not know are refused."""
    theta, length = (
        fields.take("rope_theta", 10_000.0),
        fields.take("max_position_embeddings", 2048),
    )
    rope = dict(fields.take("rope_parameters", fields.take("rope_scaling", {})))
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    rope.pop("type", None)
    theta = float(rope.pop("rope_theta", theta))
    if rope.pop("partial_rotary_factor", 1.0) != 1.0:
        kind = "partial"
    scaling: LinearScaling | Llama3Scaling | None = None
    if kind == "linear":
        scaling = LinearScaling(float(rope.pop("factor")))
    elif kind == "llama3":
        scaling = Llama3Scaling(
            float(rope.pop("factor")),
            float(rope.pop("low_freq_factor")),
            float(rope.pop("high_freq_factor")),
            rope.pop("original_max_position_embeddings", length),
        )
    elif kind != "default":
        raise CheckpointError(
            f"config.json asks for rotary positions of kind {kind!r}, which is not supported; "
            f"supported are default, linear and llama3"
        )
    rope.pop("original_max_position_embeddings", None)
    if rope:
        name, value = next(iter(rope.items()))
        raise CheckpointError(
            f"config.json has {name}={value!r} in its rotary parameters of kind {kind!r}, which "
            f"is not known there; remove it if it means nothing"
        )
    return Rotary(theta, scaling, length)


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
