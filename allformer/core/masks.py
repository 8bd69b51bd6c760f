"""Masks, with one polarity everywhere: True = may look.

Legend: B batch, T target (query) length, S source (key) length.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def padding_mask(keep: Tensor) -> Tensor:
    """`attention_mask` (B S, 1 or True = a real token) → B 1 1 S: no query looks at padding."""
    return keep.bool()[:, None, None, :]


def causal_mask(targets: int, sources: int, device: torch.device | None = None) -> Tensor:
    """T S: query i may look at key j ≤ i. With a cache, the T queries are the last of S."""
    rows = torch.arange(targets, device=device)[:, None] + (sources - targets)
    return torch.arange(sources, device=device)[None, :] <= rows


def window_mask(
    targets: int, sources: int, left: int, right: int, device: torch.device | None = None
) -> Tensor:
    """T S: query i may look at keys i − left … i + right. The T queries are the last of S."""
    rows = torch.arange(targets, device=device)[:, None] + (sources - targets)
    keys = torch.arange(sources, device=device)[None, :]
    return (keys >= rows - left) & (keys <= rows + right)


def combine(*masks: Tensor | None) -> Tensor | None:
    """Both must allow it: the conjunction of the masks that are given, or None if none is."""
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None
    out = given[0]
    for mask in given[1:]:
        out = out & mask
    return out


class Look(NamedTuple):
    """Who may look at whom, worked out once for a whole stack.

    `mask` broadcasts to B H T S; None allows all. `causal` adds the lower triangle without
    building it. `blind` (B 1 T 1) marks queries that may look at nothing: they get zeros.
    `kernel="eager"` computes the formula as it stands; `"fast"` asks for the best kernel.
    `bias` (1 H T S) is added to the scores; `merged` is the same with −inf where the mask forbids.
    """

    mask: Tensor | None = None
    causal: bool = False
    blind: Tensor | None = None
    kernel: str = "fast"
    bias: Tensor | None = None
    merged: Tensor | None = None

    def full_mask(self, targets: int, sources: int, device: torch.device) -> Tensor | None:
        """The one mask that says it all, or None when everything is allowed."""
        return combine(self.mask, causal_mask(targets, sources, device) if self.causal else None)

    def biased(self, bias: Tensor) -> Look:
        """The same looking with a bias on the scores, merged with the masks once for all layers."""
        mask = self.full_mask(bias.shape[-2], bias.shape[-1], bias.device)
        merged = bias
        if mask is not None:
            mask = mask if self.blind is None else mask | self.blind
            merged = bias.masked_fill(~mask, float("-inf"))
        return self._replace(bias=bias, merged=merged)


def make_look(mask: Tensor | None, causal: bool = False, kernel: str = "fast") -> Look:
    """A `Look` from a mask; finds the queries that may look at nothing."""
    blind = None if mask is None else ~mask.any(dim=-1, keepdim=True)
    return Look(mask, causal, blind, kernel)
