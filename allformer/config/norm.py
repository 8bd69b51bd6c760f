"""Norms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from allformer.config.base import Config
from allformer.config.check import Rule
from allformer.config.counting import Part


@dataclass(frozen=True)
class Norm(Config):
    """LayerNorm (`"layer"`, mean and variance) or RMSNorm (`"rms"`, root mean square only)."""

    kind: Literal["layer", "rms"] = "layer"
    eps: Annotated[
        float, Rule(lambda x: 0 < x < 1, "must be a small positive number", "try 1e-5")
    ] = 1e-5

    def parameters(self, dim: int) -> int:
        """A gain and, of LayerNorm, a bias."""
        return 2 * dim if self.kind == "layer" else dim

    def line(self, name: str, dim: int, times: int | None = None) -> Part:
        """One norm, or `times` of them in a layer."""
        formula = "2d" if self.kind == "layer" else "d"
        formula = formula if times is None else f"{times}·{formula}"
        return Part(name, formula, (times or 1) * self.parameters(dim))
