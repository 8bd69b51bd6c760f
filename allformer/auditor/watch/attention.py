"""The three steps of an attention, each written down in its site: scores, softmax, mixing."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from allformer.auditor.watch.operators import Operator
from allformer.auditor.watch.records import Site, Tag
from allformer.auditor.watch.tags import Tags


def scores(op: Operator, tags: Tags, plain: Tag, where: str) -> Tag:
    """Q·Kᵀ: a product of two activations begins a new site."""
    left, right = op.factors
    one, other = tags.of(left), tags.of(right)
    q, k = _three(left), _three(right).transpose(-2, -1)
    site = Site(-1, where, op.number, q, k, q @ k.mT, one, other)
    added = tags.of(op.added)
    return replace(
        plain,
        scores=site,
        factor=one.factor * other.factor * op.kwargs.get("alpha", 1),
        learned_factor=one.learned_factor or other.learned_factor,
        learned_bias=added.trained and not added.data,
    )


def softmax(given: Tensor, tag: Tag, dim: int, plain: Tag) -> Tag:
    """The softmax of scores; `given` is what goes in, with its mask and bias."""
    site = tag.scores
    assert site is not None
    site.softmax_in, site.softmax_dim = given, dim
    site.scale, site.learned_scale = tag.factor, tag.learned_factor
    site.learned_bias, site.terms = tag.learned_bias, tag.terms
    return replace(plain, probs=site)


def mix(op: Operator, tags: Tags, plain: Tag) -> Tag:
    """Weights·V, or its transpose."""
    left, right = op.factors
    one, other = tags.of(left), tags.of(right)
    first = one.probs is not None
    site = one.probs if first else other.probs
    assert site is not None
    if site.mix_op < 0:
        if first:
            site.weights, site.v, site.v_tag = _three(left), _three(right), other
        else:
            site.weights = _three(right).transpose(-2, -1)
            site.v, site.v_tag = _three(left).transpose(-2, -1), one
        site.mix_op = op.number
    return replace(plain, mixed=site, mix_op=op.number)


def beside(tags: list[Tag]) -> None:
    """Outputs of several attentions are put beside each other: heads, computed one by one."""
    sites = [tag.mixed for tag in tags if tag.mixed is not None]
    if sites and len({id(site) for site in sites}) > 1:
        sites[0].beside = max(sites[0].beside, len({id(site) for site in sites}) - 1)


def _three(x: Tensor) -> Tensor:
    return x[None] if x.ndim == 2 else x
