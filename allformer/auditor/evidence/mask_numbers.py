"""The one number that a mask is made of, seen in the operators."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from allformer.auditor.watch import Site

SMALL = -1e3  # what is below hides at ordinary scores: `mask.finite` grows them


@dataclass
class Constant:
    """One number that was added to some scores, or put in their place."""

    value: float
    added: bool
    where: Tensor  # N T S


def constant(site: Site, among: Tensor | None = None) -> Constant | None:
    """The number that a mask is made of, if it is one finite number; `among` (T S) others aside."""
    if site.learned_scale or site.learned_bias:
        return None
    if site.softmax_dim not in (-1, site.softmax_in.ndim - 1):
        return None
    if site.softmax_in.numel() != site.scores.numel():
        return None
    after = site.scale / (site.q_tag.factor * site.k_tag.factor)  # than the product
    given, bare = (_apart(site, x).double() for x in (site.softmax_in, site.scores))
    bare = bare * after
    if among is not None:
        given = torch.where(among, given, bare)
    if not bool(torch.isfinite(given).all()):
        return None
    gap = given - bare
    close = 1e-5 * (1 + float(bare.abs().max()))  # fp32 in between
    touched = gap.abs() > close
    if not bool(touched.any()) or bool(touched.all()):
        return None
    for values, added in ((gap[touched], True), (given[touched], False)):
        if float(values.max() - values.min()) < close:
            return Constant(float(values.median()), added, touched)
    return None


def _apart(site: Site, x: Tensor) -> Tensor:
    """N T S, as the softmax has it: query heads of one key head may be one matmul's rows."""
    return x.reshape(-1, *site.softmax_in.shape[-2:])


def finite_value(site: Site) -> float | None:
    """The one number that later keys have as their score, or the negative one added to it.

    Not a huge one: what leaks past that leaks for another reason.
    """
    found = constant(site)
    small = found is not None and found.value > SMALL and (not found.added or found.value < -0.5)
    if found is not None and small and _causal(found):
        return found.value
    if site.softmax_in.shape[-1] != site.softmax_in.shape[-2]:
        return None
    given = _apart(site, site.softmax_in).double()  # a soft cap after the mask: −20 everywhere
    later = torch.ones(given.shape[1:], dtype=torch.bool).triu(1).expand_as(given)
    low, high = (float(given[later].min()), float(given[later].max())) if later.any() else (0, 1)
    one = high - low < 1e-9 * (1 + abs(high)) and float(given[~later].std()) > 1e-3
    return high if one and abs(high) < -SMALL else None


def _causal(found: Constant) -> bool:
    """All later keys have the number, and none has it at itself; a window may hide more."""
    later = torch.ones(found.where.shape[1:], dtype=torch.bool).triu(1)
    own = found.where.diagonal(dim1=-2, dim2=-1)
    return bool((found.where | ~later).all()) and not bool(own.any())
