"""The adaptive softmax: a word of a rare cluster is as likely as its cluster, times the word in it.

    log p(w) = log p(c) + log p(w | c),    softmax over frequent words and clusters, then inside c

Only the clusters that occur among the targets are computed for a loss (Grave et al., 2017).

Legend: N tokens, dim model width, V vocabulary, K clusters.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.heads.head import Head
from allformer.core.heads.words import LMHead, OutputMatrix
from allformer.core.linear import Linear
from allformer.core.loss import linear_cross_entropy
from allformer.core.precision import widen
from allformer.core.registry import implements
from allformer.core.sources.adaptive import Clusters
from allformer.core.taps import tap
from allformer.errors import ConfigError


@implements(config.AdaptiveHead)
class AdaptiveHead(LMHead):
    """Logarithms of probabilities over the vocabulary, … dim → … V."""

    decays = ("clusters",)

    def __init__(
        self,
        head: config.AdaptiveHead,
        stack: config.Stack,
        path: str,
        table: Any,
        ahead: bool = False,
    ) -> None:
        Head.__init__(self, head, stack, path)  # its tensors are other ones than LMHead's
        source = head.fits(stack)
        assert isinstance(table, Clusters)
        self.ahead, self.source = ahead, source
        self.tables = table.tables
        if not head.tied:
            self.tables = nn.ModuleList(OutputMatrix(*s) for s in source.tables(stack.dim))
        widths = source.widths(stack.dim)
        self.words, self.projections = table, nn.ModuleDict()  # its own, by cluster
        if source.projected(stack.dim):
            shares = head.shares or (False,) * len(widths)
            for i, (width, shared) in enumerate(zip(widths, shares, strict=True)):
                if not shared:
                    self.projections[str(i)] = Linear(width, stack.dim, False)
        self.bias = nn.Parameter(torch.empty(source.vocab))
        others = len(widths) - 1
        self.clusters = nn.Parameter(torch.empty(others, widths[0])) if others else None
        self.cluster_bias = nn.Parameter(torch.empty(others)) if others else None

    def reset_parameters(self) -> None:
        """Nothing is added at first, and no cluster is likelier than another."""
        for tensor in (self.bias, self.clusters, self.cluster_bias):
            if tensor is not None:
                nn.init.zeros_(tensor)

    @property
    def vocab(self) -> int:
        return self.source.vocab

    def forward(self, hidden: Tensor, where: Tensor | None = None) -> Tensor:
        """… dim → … V, in at least fp32."""
        parts = []
        first = widen(F.linear(*self._pieces(0, hidden))).log_softmax(-1)
        frequent = self.source.clusters[0][1]
        for i in range(len(self.source.clusters)):
            if i == 0:
                parts.append(first[..., :frequent])
                continue
            inside = widen(F.linear(*self._pieces(i, hidden))).log_softmax(-1)
            parts.append(first[..., frequent + i - 1, None] + inside)
        return tap(self, "logits", torch.cat(parts, dim=-1))

    def _pieces(self, i: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What makes the scores within cluster i: inputs, matrix and bias; the first cluster's
        scores are followed by those of the other clusters."""
        begin, end = self.source.clusters[i]
        if self.source.divide == 1:
            weight: Any = self.tables[0].weight[begin:end]  # type: ignore[index]
        else:
            weight = self.tables[i].weight
        bias: Any = self.bias[begin:end]  # type: ignore[index]
        if i == 0 and self.clusters is not None:
            assert self.cluster_bias is not None
            weight = torch.cat([weight, self.clusters])
            bias = torch.cat([bias, self.cluster_bias])
        if len(self.words.projections):
            hidden = hidden @ self._projection(i).to(hidden.dtype)
        return hidden, weight.to(hidden.dtype), bias.to(hidden.dtype)

    def _projection(self, i: int) -> Tensor:
        """Of cluster i, dim × width; one matrix serves all clusters of a source of one table."""
        if str(i) in self.projections:
            own: Tensor = self.projections[str(i)].weight  # type: ignore[assignment]
            return own
        shared: Any = self.words.projections[0 if self.source.divide == 1 else i]
        return shared.weight  # type: ignore[no-any-return]

    def score(
        self, hidden: Tensor, targets: Tensor, smoothing: float, z: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Summed loss and NLL of `hidden` N dim against `targets` N: only what targets need."""
        if self.clusters is None:
            return linear_cross_entropy(*self._pieces(0, hidden), targets, smoothing, z=z)
        if smoothing or z:
            raise ConfigError(
                f"smoothing={smoothing}, z_loss={z}: the adaptive softmax never has all scores; "
                f"set both to 0"
            )
        frequent = self.source.clusters[0][1]
        aims, parts = targets.clone(), []
        for i, (begin, end) in list(enumerate(self.source.clusters))[1:]:
            inside = (targets >= begin) & (targets < end)
            where = inside.nonzero().squeeze(1)
            aims[inside] = frequent + i - 1
            found = self._pieces(i, hidden[where])
            parts.append(linear_cross_entropy(*found, targets[where] - begin))
        parts.append(linear_cross_entropy(*self._pieces(0, hidden), aims))
        losses, nlls = zip(*parts, strict=True)
        return torch.stack(losses).sum(), torch.stack(nlls).sum()
