"""Who may look at whom, as kernels of grids take it. One polarity everywhere: True = may look.

Legend: B rows, H heads, T queries, S keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Look(NamedTuple):
    """Worked out once for a whole stack; what is not given allows all.

    `mask` broadcasts to B H T S. `causal` is the lower triangle without building it, in place of a
    mask. `blind` (B 1 T 1) marks queries that may look at nothing: they get zeros. `bias` is added
    to the scores. `merged` is mask and bias in one: −inf where the mask forbids, but for the blind.
    """

    mask: Tensor | None = None
    causal: bool = False
    blind: Tensor | None = None
    bias: Tensor | None = None
    merged: Tensor | None = None

    def full_mask(self, targets: int, sources: int, device: torch.device) -> Tensor | None:
        """The one mask that says it all, or None when everything is allowed."""
        if not self.causal:
            return self.mask
        return torch.ones(targets, sources, dtype=torch.bool, device=device).tril()

    def biased(self, bias: Tensor) -> Look:
        """The same looking with `bias` (B H T S) added to the scores, on top of what is."""
        bias = bias if self.bias is None else self.bias + bias
        mask = self.full_mask(bias.shape[-2], bias.shape[-1], bias.device)
        return make_look(mask, blind=self.blind, bias=bias)

    def summed(self, dtype: torch.dtype) -> Look:
        """The same with `merged` as numbers to add, 0 or −inf: kernels that want them so would work
        them out again in every layer."""
        if self.merged is None or self.merged.dtype != torch.bool:
            return self
        zeros = torch.zeros_like(self.merged, dtype=dtype)
        return self._replace(merged=zeros.masked_fill(~self.merged, float("-inf")))


def make_look(
    mask: Tensor | None, *, blind: Tensor | None = None, bias: Tensor | None = None
) -> Look:
    """A `Look` from a mask (B 1 T S) and a bias: `make_look(keep[:, None, None, :])`."""
    if mask is None:
        return Look(bias=bias, merged=bias)
    merged = mask if blind is None else mask | blind  # kernels differ on empty rows: none is left
    if bias is not None:
        merged = bias.masked_fill(~merged, float("-inf"))
    return Look(mask, False, blind, bias, merged)


def blind_rows(mask: Tensor) -> Tensor:
    """B H T S → B H T 1: queries that may look at nothing."""
    return ~mask.any(dim=-1, keepdim=True)
