"""(IA)³ (Liu et al., 2022): keys, values and the inner activations are multiplied, each feature by
a learned number.

    k ⊙ l_k,   v ⊙ l_v,   W₂ (l_ff ⊙ act(W₁ x))

All start as ones, so that nothing is changed at first. What a layer gives is multiplied with its
bias in it, as PEFT has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from allformer.core.precision import cast
from allformer.errors import ConfigError
from allformer.tune.deltas import Change, Deltas, device_of, spread, wide_dtype
from allformer.tune.method import Method, register
from allformer.tune.targets import WHOLE, Site, by_layer, find_sites, rows_of, sizes
from allformer.tune.tuning import Tuning


@register("ia3")
@dataclass(frozen=True)
class Ia3(Method):
    """`Ia3()`: of `targets` what they give is multiplied, of `inputs` what they read."""

    targets: str | tuple[str, ...] = ("k", "v")
    inputs: str | tuple[str, ...] = ("down",)
    layers: tuple[int, ...] | None = None  # numbers of layers; None: all

    def put(self, model: Any, tuning: Tuning, adapter: str, generator: torch.Generator) -> None:
        """Ones everywhere."""
        given = find_sites(model, self.targets, self.layers) if self.targets else []
        read = by_layer(find_sites(model, self.inputs, self.layers) if self.inputs else [])
        if not given and not read:
            raise ConfigError("Ia3.targets and Ia3.inputs are empty; try targets=('k', 'v')")
        gives = by_layer(given)
        for path in dict.fromkeys((*gives, *read)):
            layer = model.get_submodule(path)
            change = Ia3Change(layer, gives.get(path, ()), path in read)
            tuning.slot(model, path, "delta", Deltas).add(adapter, self.name, change)


class Ia3Change(Change):
    """Factors of what a layer reads (`into`, K), and of its parts' outputs (`parts["k"]`)."""

    into: nn.Parameter | None

    def __init__(self, layer: Any, found: Sequence[Site], reads: bool) -> None:
        super().__init__()
        inputs, self.outputs = sizes(layer)
        how: Any = {"dtype": wide_dtype(layer), "device": device_of(layer)}
        self.rows = {site.part or WHOLE: rows_of(layer, site.part) for site in found}
        self.parts = nn.ParameterDict(
            {name: torch.ones(rows.stop - rows.start, **how) for name, rows in self.rows.items()}
        )
        self.into = nn.Parameter(torch.ones(inputs, **how)) if reads else None

    def enter(self, x: Tensor) -> Tensor:
        return x if self.into is None else x * cast(self.into, x.dtype)

    def leave(self, x: Tensor, y: Tensor, layer: Any) -> Tensor:
        return y * cast(self._factor(), y.dtype) if self.rows else y

    def _factor(self) -> Tensor:
        """One number for each output, 1 for those of other parts, N."""
        return spread(dict(self.parts.items()), self.rows, self.outputs)

    def merged(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Rows and columns of the matrix, and the bias, multiplied."""
        kind = torch.promote_types(weight.dtype, torch.float32)
        wide = weight.to(kind)
        if self.into is not None:
            wide = wide * self.into
        if self.rows:
            factor = self._factor()
            wide = wide * factor[:, None]
            bias = None if bias is None else (bias * factor).to(bias.dtype)
        return wide.to(weight.dtype), bias
