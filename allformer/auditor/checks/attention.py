# mypy: disable-error-code="no-untyped-call,no-any-return"
"""Inside attention: the scale, whose projections these are, and the order of grouped keys."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.profiles import (
    along_length,
    cosine_attention,
    stated_family,
    stated_scale,
    t5_like,
)
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site, Tag


@check("attention.scale", kinds=PARTS)
def scale(ctx: Context) -> Iterator[Finding]:
    """Softmax input ÷ Q·Kᵀ × √d_k = 1, watched in the operators."""
    sites = ctx.sites()
    judged = [s for s in sites if not s.learned_scale and not cosine_attention(s)]
    if not judged:
        raise NotApplicable("the temperature is learned, or queries and keys are normalised")
    if t5_like(ctx, sites) or "unscaled" in ctx.profile or "mup" in ctx.profile:
        raise NotApplicable("profile: scores are unscaled by design")
    if all(s.scale == 1 for s in judged) and "unscaled" in stated_family(ctx):
        raise NotApplicable("profile: scores are unscaled by design, as its config says")
    width = _width(ctx)
    wrong: dict[str, list[Site]] = {}
    for site in judged:
        ratio = site.scale * math.sqrt(site.q.shape[-1])
        # DeBERTa adds three products and scales by 1/√(3·d_k): the sum has the size of one.
        sizes = (ratio, ratio * math.sqrt(site.terms))
        if min(abs(size - 1) for size in sizes) > 0.02 and not stated_scale(ctx, site):
            wrong.setdefault(_name(site, ratio, width), []).append(site)
    for name, group in wrong.items():
        site = group[0]
        d = site.q.shape[-1]
        yield Finding(
            "attention.scale",
            f"{name}: Q·Kᵀ is multiplied by {site.scale:.4g}, 1/√{d} = {d**-0.5:.4g} is right "
            f"(head size {d}, model width {width or 'unknown'}); {len(group)} of {len(sites)} "
            f"attentions",
            site.where,
        )


def _width(ctx: Context) -> int:
    if ctx.call.x.width:
        return ctx.call.x.width
    shapes = [tuple(p.shape) for p in ctx.module.parameters() if p.ndim == 2]
    return min(shapes[0]) if shapes else 0


def _name(site: Site, ratio: float, width: int) -> str:
    d, s = site.q.shape[-1], site.scale
    known = {
        "the scale is missing": 1.0,
        "divided by d_k instead of √d_k, or scaled twice": 1 / d,
        "multiplied by √d_k instead of divided": math.sqrt(d),
        "multiplied by d_k": float(d),
    }
    if width and width != d:
        known["scaled by √d_model instead of √d_k"] = width**-0.5
        known["divided by d_model"] = 1 / width
    heads = site.q.shape[0]
    if heads > 1:
        known["scaled by √heads"] = heads**-0.5
    for name, value in known.items():
        if abs(s / value - 1) < 0.02:
            return name
    return f"an unusual scale ({ratio:.3g} times 1/√d_k)"


@check("attention.shared_projections", kinds=PARTS)
def shared(ctx: Context) -> Iterator[Finding]:
    """q, k and v must come from three maps, or from three parts of one."""
    known = False
    for site in ctx.sites():
        if along_length(ctx, site):
            continue  # of the maps before that nothing is known
        tags = {"queries": site.q_tag, "keys": site.k_tag, "values": site.v_tag}
        pairs = [("queries", "keys"), ("queries", "values"), ("keys", "values")]
        for one, two in pairs:
            a, b = tags[one], tags[two]
            if a is None or b is None or not a.weight or not b.weight:
                continue
            known = True
            if a.weight == b.weight and _overlap(a, b):
                if "shared-qk" in ctx.profile and (one, two) == ("queries", "keys"):
                    continue
                yield Finding(
                    "attention.shared_projections",
                    f"{one} and {two} are projected by the same parameter {a.weight!r}",
                    site.where,
                )
                return
    if not known:
        raise NotApplicable("queries, keys and values are not projected by parameters")


def _overlap(a: Tag, b: Tag) -> bool:
    if a.part is None or b.part is None or not a.part.overlaps(b.part):
        return False  # two parts of one parameter, each with a map of its own
    if a.linear == b.linear and (a.columns is None or b.columns is None):
        return False  # one map, and its parts cannot be told: assume that they differ
    if a.columns is None or b.columns is None:
        return a.linear != b.linear
    return bool(torch.isin(a.columns.unique(), b.columns.unique()).any())


@check("attention.output_projection", kinds=PARTS)
def output_projection(ctx: Context) -> Iterator[Finding]:
    """After several heads comes a linear map before anything is added to them."""
    sites = ctx.sites()
    many = [s for s in sites if s.q.shape[0] > 1 or s.beside]
    if not many:
        raise NotApplicable("one head has nothing to mix")
    if not any(s.q_tag.weight for s in many):
        raise NotApplicable("attention without projections of its own")
    if "no-output-projection" in ctx.profile:
        raise NotApplicable("profile: the heads are not mixed")
    lonely = [s for s in many if s.out_input is None]
    if lonely:
        heads = lonely[0].q.shape[0] * (1 + lonely[0].beside)
        yield Finding(
            "attention.output_projection",
            f"the outputs of {heads} heads go on without a linear map: {len(lonely)} of "
            f"{len(many)} attentions",
            lonely[0].where,
        )


@check("attention.grouped_order", kinds=PARTS)
def grouped_order(ctx: Context) -> Iterator[Finding]:
    """Which query heads share a key head: neighbours (0 0 1 1), not every other one (0 1 0 1)."""
    grouped = False
    both = [(s, name, x) for s in ctx.sites() for name, x in (("key", s.k), ("value", s.v))]
    for site, name, x in both:
        heads = x.shape[0]
        if heads != site.q.shape[0]:
            continue
        groups = [next(j for j in range(heads) if torch.equal(x[i], x[j])) for i in range(heads)]
        count = len(set(groups))
        if not 1 < count < heads or heads % count:
            continue
        grouped = True
        order = _query_order(site)
        groups = [groups[i] for i in order]
        right = [groups[i - i % (heads // count)] for i in range(heads)]
        if groups != right:
            label = {g: i for i, g in enumerate(dict.fromkeys(groups))}
            yield Finding(
                "attention.grouped_order",
                f"query heads 0 … {heads - 1} read {name} heads {[label[g] for g in groups]}; "
                f"neighbours should share one: {[i * count // heads for i in range(heads)]}",
                site.where,
            )
            return
    if not grouped:
        raise NotApplicable("every query head has its own keys, or all share one")


def _query_order(site: Site) -> list[int]:
    """The heads of the scores in the order of the query projection's columns."""
    heads, columns = site.q.shape[0], site.q_tag.columns
    if columns is None or columns.numel() != site.q.numel():
        return list(range(heads))
    first = columns.reshape(heads, -1).amin(1)
    return [int(i) for i in first.argsort(stable=True)]


@check("attention.scale", kinds=PARTS)
def by_length(ctx: Context) -> Iterator[Finding]:
    """Scores divided by √T or by T shrink as the text grows; √d_k stays. (log n is a design.)"""
    sites = ctx.sites()
    n = ctx.positions()
    try:
        short = ctx.watch(ctx.call.batch(1, n // 2))[0].sites
    except Exception as error:
        raise NotApplicable(f"it runs at one length only: {error}") from error
    if len(short) != len(sites):
        raise NotApplicable("another length takes other steps")
    for site, other in zip(sites, short, strict=True):
        found = _power(site, other)
        if found:
            yield Finding(
                "attention.scale",
                f"scaled by {found}, the number of keys: Q·Kᵀ is multiplied by {site.scale:.4g} "
                f"for {site.k.shape[1]} keys and by {other.scale:.4g} for {other.k.shape[1]}; "
                f"1/√d_k = {site.q.shape[-1] ** -0.5:.4g} is right for any",
                site.where,
            )
            return


def _power(site: Site, other: Site) -> str:
    if site.learned_scale or site.k.shape[1] == other.k.shape[1] or not other.scale:
        return ""
    change, keys = site.scale / other.scale, site.k.shape[1] / other.k.shape[1]
    for power, name in ((-0.5, "1/√T"), (-1.0, "1/T"), (0.5, "√T"), (1.0, "T")):
        if abs(change / keys**power - 1) < 0.01:
            return name
    return ""
