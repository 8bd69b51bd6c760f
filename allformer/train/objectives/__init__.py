"""Objectives: what a model is taught, one file each; a new file registers itself."""

from __future__ import annotations

from typing import Any

from allformer.core.registry import import_all
from allformer.errors import ConfigError, did_you_mean
from allformer.train.objectives.objective import OBJECTIVES, Objective, register

__all__ = ["OBJECTIVES", "Objective", "find_objective", "register"]

import_all(__name__, __path__)


def find_objective(name: str) -> type[Objective[Any, Any]]:
    """`find_objective("seq2seq")`; an error that says which there are."""
    if name not in OBJECTIVES:
        hint = did_you_mean(name, OBJECTIVES)
        raise ConfigError(
            f"objective={name!r} is not known; {hint}there is {', '.join(sorted(OBJECTIVES))}; one "
            f"of your own must be imported first: its class says @register({name!r})"
        )
    return OBJECTIVES[name]
