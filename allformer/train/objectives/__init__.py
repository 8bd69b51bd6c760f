"""Objectives: what a model is taught, one file each; each registers itself."""

from __future__ import annotations

from typing import Any

from allformer.errors import ConfigError
from allformer.train.objectives import answering, classification, seq2seq, tagging, vectors
from allformer.train.objectives.objective import OBJECTIVES, Objective, register

__all__ = [
    "OBJECTIVES",
    "Objective",
    "answering",
    "classification",
    "find_objective",
    "register",
    "seq2seq",
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
