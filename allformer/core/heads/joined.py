"""Scores over words or over codes, whichever come next.

Legend: N tokens, dim model width, V words and codes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from allformer import config
from allformer.core.heads.head import Hidden
from allformer.core.heads.words import LMHead
from allformer.core.loss import IGNORE, linear_cross_entropy
from allformer.core.matmul import matmul
from allformer.core.registry import implements
from allformer.core.taps import tap


@implements(config.JoinedHead)
class JoinedHead(LMHead):
    """The state of a place says what stands at the next: from the last place of the text on,
    codes."""

    placed = True

    @property
    def source(self) -> config.Joined:
        """What tells words from codes."""
        source: Any = self.stack.source
        return source  # type: ignore[no-any-return]

    def forward(self, hidden: Tensor, where: Tensor | None = None) -> Tensor:
        """… dim → … V; `where` are the places of the states, None: whatever comes next."""
        scores = super().forward(hidden)
        if where is None:
            return scores
        code = torch.arange(self.vocab, device=scores.device) >= self.source.words
        due = where + 1 >= self.source.length
        return tap(self, "due", scores.masked_fill(code != due[..., None], float("-inf")))

    def outputs(self, hidden: Hidden) -> dict[str, Tensor]:
        where = hidden.layout.positions(hidden.states.device, "all")
        return {"logits": hidden.layout.to_grid(self(hidden.states, where))}

    def codes(self, hidden: Tensor) -> Tensor:
        """Scores over the codes alone: … dim → … codes."""
        weight, bias = self._part(True)
        hidden = self.prepare(hidden)
        return matmul(
            hidden, weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype)
        )

    def score(
        self, hidden: Tensor, targets: Tensor, smoothing: float, z: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Summed loss and NLL of `hidden` N dim against `targets` N, words and codes mixed."""
        code = targets >= self.source.words
        loss, nll = self.score_part(hidden, targets.masked_fill(code, IGNORE), smoothing, z=z)
        codes = torch.where(code, targets - self.source.words, IGNORE)
        more, other = self.score_part(hidden, codes, smoothing, codes=True, z=z)
        return loss + more, nll + other

    def score_part(
        self, hidden: Tensor, targets: Tensor, smoothing: float, *, codes: bool = False,
        z: float = 0.0,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Of states that say words, or `codes` (numbered from 0), alone: no other is computed."""
        weight, bias = self._part(codes)
        return linear_cross_entropy(self.prepare(hidden), weight, bias, targets, smoothing, z=z)

    def _part(self, codes: bool) -> tuple[Tensor, Tensor | None]:
        """The rows of the output matrix, and what is added, for words or for codes."""
        part = slice(self.source.words, None) if codes else slice(self.source.words)
        bias = self.addend(self.table.weight.dtype)
        return self.table.weight[part], None if bias is None else bias[part]
