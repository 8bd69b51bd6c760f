"""Full fine-tuning: every weight of the model is trained, in place.

Of the base nothing is kept, so that it cannot be switched off or taken off again: who needs it too
(as a reference, say) loads it a second time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from allformer.core.quantised import is_quantised
from allformer.errors import ConfigError
from allformer.tune.method import Method, register
from allformer.tune.tuning import Tuning


@register("full")
@dataclass(frozen=True)
class Full(Method):
    """`Full()`: all weights; `whole` has nothing to add."""

    def put(self, model: Any, tuning: Tuning, adapter: str, generator: torch.Generator) -> None:
        """Nothing is put anywhere: the model's own weights are what is trained."""
        if is_quantised(model):
            raise ConfigError(
                "Full trains every matrix, and this model has its in few bits, which have no "
                "gradient; widen them (core.quantised.widen_all), or train Lora beside them"
            )
        mine = tuning.adapters[adapter]
        if len(tuning.adapters) > 1 or len(mine.methods) > 1:
            raise ConfigError(
                "Full trains the model itself, under which nothing else can stand; take the other "
                "adapters off, or merge them"
            )
        mine.in_place = True
