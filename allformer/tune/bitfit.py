"""BitFit (Ben Zaken et al., 2021): the biases alone are trained, those of norms among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from allformer.errors import ConfigError
from allformer.tune.method import Method, register
from allformer.tune.tuning import Tuning


@register("bitfit")
@dataclass(frozen=True)
class BitFit(Method):
    """`BitFit()`: the adapter has its own values of every bias; the base's are kept."""

    def put(self, model: Any, tuning: Tuning, adapter: str, generator: torch.Generator) -> None:
        """Biases by their name; those of a head that is trained whole come with it."""
        names = [name for name, _ in model.named_parameters()]
        biases = [name for name in names if name.rpartition(".")[2] == "bias"]
        if not any(".layers." in name for name in biases):
            raise ConfigError(
                f"BitFit trains biases, and the layers of this {model.provenance.family or 'model'}"
                f" have none; try Lora(), or Ia3() for as few parameters"
            )
        tuning.own(model, adapter, biases)
