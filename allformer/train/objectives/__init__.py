"""Objectives: what a model is taught, one file each; each registers itself."""

from __future__ import annotations

from typing import Any

from allformer.errors import ConfigError
from allformer.train.objectives import (
    answering,
    causal_lm,
    classification,
    denoising,
    masked_lm,
    seq2seq,
    span_corruption,
    tagging,
    vectors,
)
from allformer.train.objectives.objective import OBJECTIVES, Objective, register

__all__ = [
    "OBJECTIVES",
    "Objective",
    "answering",
    "causal_lm",
    "classification",
    "denoising",
    "find_objective",
    "masked_lm",
    "register",
    "seq2seq",
    "span_corruption",
    "tagging",
    "vectors",
]


def find_objective(name: str) -> type[Objective[Any, Any]]:
    """`find_objective("seq2seq")`; an error that says which there are."""
    if name not in OBJECTIVES:
        raise ConfigError(
            f"objective={name!r} is not known; there is {', '.join(sorted(OBJECTIVES))}; one of "
            f"your own must be imported first: its class says @register({name!r})"
        )
    return OBJECTIVES[name]
