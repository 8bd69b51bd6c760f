"""Tokens in clusters: wide vectors for frequent words, narrow ones for rare words, all projected.

Legend: N tokens, dim model width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.linear import Linear
from allformer.core.registry import implements
from allformer.core.sources.tokens import Tokens
from allformer.core.table import Embedding


class Clusters(nn.Module):
    """The tables of all clusters, and the matrices that make their vectors dim wide."""

    def __init__(self, tokens: config.AdaptiveTokens, dim: int) -> None:
        super().__init__()
        self.config, self.dim = tokens, dim
        shapes = tokens.tables(dim)
        self.tables = nn.ModuleList(Embedding(*shape) for shape in shapes)
        widths = [width for _, width in shapes] if tokens.projected(dim) else []
        self.projections = nn.ModuleList(Linear(width, dim, bias=False) for width in widths)

    def forward(self, ids: Tensor, fixed: int | None = None) -> Tensor:
        """ids … → … dim; the row `fixed` gets no gradient."""
        if len(self.tables) == 1:
            return self._vectors(0, ids, fixed)
        flat = ids.flatten()
        table: Tensor = self.tables[0].weight  # type: ignore[assignment]
        out = table.new_zeros(len(flat), self.dim)
        for i, (first, end) in enumerate(self.config.clusters):
            where = ((flat >= first) & (flat < end)).nonzero().squeeze(1)
            hold = None if fixed is None or not first <= fixed < end else fixed - first
            out = out.index_copy(0, where, self._vectors(i, flat[where] - first, hold))
        return out.view(*ids.shape, self.dim)

    def _vectors(self, i: int, ids: Tensor, fixed: int | None) -> Tensor:
        x = F.embedding(ids, self.tables[i].weight, fixed)  # type: ignore[arg-type]
        return self.projections[i](x) if len(self.projections) else x


@implements(config.AdaptiveTokens)
class AdaptiveTokens(Tokens):
    """E_c[ids] P_c · √dim, by the cluster c of each id."""

    def make_table(self) -> Clusters:  # type: ignore[override]
        return Clusters(self.config, self.stack.dim)
