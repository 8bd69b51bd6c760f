"""Linformer: attention over a few keys and values, each a mixture of all tokens.

    softmax(Q (E K)ᵀ · scale) F V,   E and F rank × length          (Wang et al., 2020, eq. 7)

A token meets the column of its number in its row: padding is left out before anything is projected,
on whichever side it stands, and a shorter row meets the first columns alone.

Legend: B batch, T tokens, H heads, G key/value heads, D head size, r rank.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.kernels import Case, choose
from allformer.core.kernels import Plan as Kernels
from allformer.core.layout import Packed
from allformer.core.look import Look
from allformer.core.mixers.full import Full
from allformer.core.mixers.mixer import Mixer, Scene
from allformer.core.precision import cast
from allformer.core.registry import implements
from allformer.core.relatives.relative import Extra
from allformer.core.states import State
from allformer.core.taps import tap
from allformer.errors import ConfigError


class Along(nn.Module):
    """E and F, S r length: one for all heads or one for each; without `values` F is E.

    A column is a position's, so they are tables, which do not decay.
    """

    def __init__(self, many: int, rank: int, length: int, values: bool) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.empty(many, rank, length))
        self.values = nn.Parameter(torch.empty(many, rank, length)) if values else None

    def reset_parameters(self) -> None:
        """So that a projected key is about as large as a key of a whole row."""
        for matrix in self.parameters():
            nn.init.normal_(matrix, std=matrix.shape[-1] ** -0.5)

    def forward(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """B T G D → B G r D."""
        values = self.keys if self.values is None else self.values
        return self._project(self.keys, k), self._project(values, v)

    def _project(self, matrix: Tensor, x: Tensor) -> Tensor:
        matrix = cast(matrix[..., : x.shape[1]], x.dtype)
        if matrix.shape[0] == 1:
            return torch.einsum("rt,btgd->bgrd", matrix[0], x)
        return torch.einsum("grt,btgd->bgrd", matrix, x)


class Plan(NamedTuple):
    """`order` (B T) puts the real tokens of a row first, in their order; `real` (B T) says how many
    those are. None: all are."""

    kernels: Kernels
    order: Tensor | None = None
    real: Tensor | None = None


@implements(config.LowRank)
class LowRank(Full):
    """`rank` keys and values for all queries."""

    fixed = False  # all tokens at once
    shown = "low_scores", "low_weights"  # of no token with a token

    def __init__(self, attention: config.Attention, dim: int, path: str) -> None:
        super().__init__(attention, dim, path)
        own = self.config
        many = self.groups if own.share == "none" else 1
        self.along = Along(many, own.rank, own.length, own.share in ("none", "heads"))

    def share(self, first: Mixer) -> None:
        if self.config.share == "layers":
            assert isinstance(first, LowRank)
            self.along = first.along

    def plan(self, scene: Scene) -> Plan:  # type: ignore[override]
        layout, longest = scene.query, self.config.length
        if scene.relation.adds:
            raise ConfigError(
                "LowRank leaves no key at its place, so there is nothing that a relative position "
                "could be added to; try relative=Rotary()"
            )
        if layout.total > longest:
            raise ConfigError(
                f"the input is {layout.total} tokens wide, but LowRank.length={longest}; cut it to "
                f"{longest}, or build the model with a greater length"
            )
        if scene.cached:
            raise ConfigError(
                "LowRank projects whole rows, so they cannot be cut among processes or read step "
                "by step; train with data or pipeline parallelism"
            )
        packed = layout if isinstance(layout, Packed) else None
        kernel = choose(Case(scene.kernel, scene.device, scene.dtype, self.size))
        kernels = Kernels(kernel, Look(), query=packed)
        if layout.keep is None:
            return Plan(kernels)
        order = (~layout.keep).to(torch.int8).argsort(dim=-1, stable=True)
        return Plan(kernels, order, layout.keep.gather(1, order))

    def narrow(self, plan: Plan) -> Plan:  # type: ignore[override]
        return plan  # every query looks at the same few keys

    def takes_whole(self, plan: Plan) -> bool:  # type: ignore[override]
        return False

    def put(self, x: Tensor, plan: Plan, key: bool) -> Tensor:  # type: ignore[override]
        return super().put(x, plan.kernels, key)

    def forward(  # type: ignore[override]
        self, parts: dict[str, Tensor], plan: Plan, state: State | None, extra: Extra | None
    ) -> Tensor:
        q = self._split(parts["q"], self.heads, plan.kernels)  # B H T D
        k, v = (x.view(*x.shape[:-1], self.groups, self.size) for x in (parts["k"], parts["v"]))
        q, k, v = tap(self, "q", q), tap(self, "k", k), tap(self, "v", v)  # k, v: B T G D
        if plan.order is not None and plan.real is not None:
            cells = plan.order[..., None, None].expand(k.shape)
            k, v = (x.gather(1, cells) * plan.real[..., None, None] for x in (k, v))
        k, v = self.along(k, v)
        k, v = tap(self, "low_k", k), tap(self, "low_v", v)  # B G r D
        return self._merge(self._attend(q, k, v, plan.kernels), plan.kernels)
