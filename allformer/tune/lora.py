"""LoRA (Hu et al., 2021): a matrix's change is the product of two thin ones.

    y = x Wᵀ + s · x Aᵀ Bᵀ          A r × K, B N × r, s = alpha / r

Rank-stabilised (Kalajdzievski, 2023): s = alpha / √r. DoRA (Liu et al., 2024): with V = W + s B A,
y = x (m ⊙ V / ‖V‖)ᵀ, where ‖V‖ is each row's length and m, learned, starts as ‖W‖; the length is
taken for a constant in the backward pass, as its section 4.3 has it.

A starts as a linear layer of torch's does, B as zero, so that nothing is changed at first. Both
are held in fp32 at least, and computed with in the dtype of their input.

Legend: N outputs, K inputs, r rank, R the ranks of all parts of a fused product together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from allformer.core.dropout import drop
from allformer.core.matmul import added, matmul
from allformer.core.precision import cast
from allformer.errors import ConfigError
from allformer.tune.deltas import Change, Deltas, dense, device_of, spread, wide_dtype
from allformer.tune.method import Method, register
from allformer.tune.targets import ALL, WHOLE, Site, by_layer, find_sites, rows_of, sizes
from allformer.tune.tuning import Tuning


@register("lora")
@dataclass(frozen=True)
class Lora(Method):
    """`Lora(rank=16, alpha=32, targets=("q", "v"))`; see `tune.targets` for what can be named.

    `ranks` and `alphas` are those of some targets, by the end of their name:
    `ranks={"down": 4}`.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0  # of what A reads
    targets: str | tuple[str, ...] = ALL
    layers: tuple[int, ...] | None = None  # numbers of layers; None: all
    stabilised: bool = False
    dora: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ranks = {"rank": self.rank} | {f"ranks[{n!r}]": r for n, r in self.ranks.items()}
        for name, rank in ranks.items():
            if not isinstance(rank, int) or rank < 1:
                raise ConfigError(f"Lora.{name}={rank!r} must be a whole number, 1 at least; try 8")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"Lora.dropout={self.dropout!r} must be from 0 to below 1; try 0.05")

    def put(self, model: Any, tuning: Tuning, adapter: str, generator: torch.Generator) -> None:
        for path, found in by_layer(find_sites(model, self.targets, self.layers)).items():
            layer = model.get_submodule(path)
            change = LoraChange(self, layer, found)
            change.start(generator, device_of(layer))
            tuning.slot(model, path, "delta", Deltas).add(adapter, self.name, change)

    def rank_of(self, site: Site) -> int:
        """The rank at a site."""
        return int(_by_end(self.ranks, site, self.rank))

    def scale_of(self, site: Site) -> float:
        """What the product is multiplied by at a site."""
        rank, alpha = self.rank_of(site), float(_by_end(self.alphas, site, self.alpha))
        return alpha / (math.sqrt(rank) if self.stabilised else rank)


class Pair(nn.Module):
    """A and B of one matrix, and DoRA's lengths."""

    decays = ("a", "b")
    length: nn.Parameter

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float, **how: Any) -> None:
        super().__init__()
        self.scale = scale
        self.a = nn.Parameter(torch.empty(rank, inputs, **how))
        self.b = nn.Parameter(torch.zeros(outputs, rank, **how))

    def product(self) -> Tensor:
        """s B A: the change of the matrix, N K."""
        return self.scale * (self.b @ self.a)


class LoraChange(Change):
    """LoRA on a linear layer, or on some parts of a fused one: `change.parts["q"].a`."""

    def __init__(self, lora: Lora, layer: Any, found: Sequence[Site]) -> None:
        super().__init__()
        self.dropout, self.dora = lora.dropout, lora.dora
        self.draws = lora.dropout > 0
        inputs, self.outputs = sizes(layer)
        how = {"dtype": wide_dtype(layer), "device": "cpu"}
        found = sorted(found, key=lambda site: rows_of(layer, site.part).start)
        self.rows = {site.part or WHOLE: rows_of(layer, site.part) for site in found}
        self.parts = nn.ModuleDict()  # in the order of their rows
        for site in found:
            rows = self.rows[site.part or WHOLE]
            wide = rows.stop - rows.start
            pair = Pair(inputs, wide, lora.rank_of(site), lora.scale_of(site), **how)
            if lora.dora:
                pair.length = nn.Parameter(dense(layer, pair.a.dtype, rows).norm(dim=1))
            self.parts[site.part or WHOLE] = pair

    @torch.no_grad()
    def start(self, generator: torch.Generator, device: torch.device) -> None:
        """Fresh matrices, drawn on the CPU so that a seed means the same everywhere."""
        for pair in self.pairs.values():
            bound = 1 / math.sqrt(pair.a.shape[1])  # kaiming_uniform_(a=√5), as torch's Linear
            pair.a.uniform_(-bound, bound, generator=generator)
        self.to(device)

    @property
    def pairs(self) -> dict[str, Pair]:
        """A and B of each part."""
        return dict(self.parts.items())  # type: ignore[arg-type]

    def leave(self, x: Tensor, y: Tensor, layer: Any) -> Tensor:
        seen = drop(x, self.dropout, self.training)
        low = matmul(seen, cast(self._down(), x.dtype), None)  # … R
        up = cast(self._up(), x.dtype)  # N R
        if not self.dora:
            return added(y, low, up)
        base = layer.bare(seen) if self.training and self.dropout else y
        bias = layer.addend(y.dtype)
        base = base if bias is None else base - bias
        factor = cast(self._factor(layer), y.dtype)
        return y + (factor - 1) * base + factor * matmul(low, up, None)

    def _down(self) -> Tensor:
        """The A's one below the other, R K."""
        downs: list[Tensor] = [pair.a for pair in self.pairs.values()]
        return downs[0] if len(downs) == 1 else torch.cat(downs)

    def _up(self) -> Tensor:
        """The B's, scaled, each in its part's rows and its rank's columns, N R: one product."""
        ups = {name: pair.scale * pair.b for name, pair in self.pairs.items()}
        rows = 0
        placed: list[Tensor] = []
        for name, place in self.rows.items():
            if place.start > rows:
                placed.append(ups[name].new_zeros(place.start - rows, 0))
            placed.append(ups[name])
            rows = place.stop
        if rows < self.outputs:
            placed.append(placed[-1].new_zeros(self.outputs - rows, 0))
        if len(placed) == 1:
            return placed[0]
        up: Tensor = torch.block_diag(*placed)  # type: ignore[no-untyped-call]
        return up

    def _factor(self, layer: Any) -> Tensor:
        """m / ‖V‖ for each output; 1 for those of other parts."""
        factors: dict[str, Tensor] = {}
        for name, pair in self.pairs.items():
            with torch.no_grad():
                weight = dense(layer, pair.a.dtype, self.rows[name])
                length = (weight + pair.product()).norm(dim=1)
            factors[name] = pair.length / length
        return spread(factors, self.rows, self.outputs)

    def merged(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The matrix with the change in it, worked out in fp32 at least and rounded once."""
        out = weight.clone()
        for name, pair in self.pairs.items():
            wide = weight[self.rows[name]].to(pair.a.dtype) + pair.product()
            if self.dora:
                wide *= (pair.length / wide.norm(dim=1))[:, None]
            out[self.rows[name]] = wide.to(weight.dtype)
        return out, bias


def _by_end(chosen: Mapping[str, Any], site: Site, usual: Any) -> Any:
    """The value of the name that a site ends with, ours or theirs; names may be patterns."""
    for name, value in chosen.items():
        pattern = rf"(.*\.)?({name})$"
        if re.match(pattern, site.ours) or (site.theirs and re.match(pattern, site.theirs)):
            return value
    return usual
