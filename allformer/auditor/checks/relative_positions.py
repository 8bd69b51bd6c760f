"""Relative positions: what turns or shifts with the position must depend on i − j only.

One token is repeated, so that only positions can make a difference.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.evidence.positions import not_toeplitz, varies
from allformer.auditor.evidence.rotation_base import base_of, halved_exponents
from allformer.auditor.evidence.sinusoid import equal_or_rising
from allformer.auditor.probe import scale_of
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site, Watch

KINDS = ("decoder", "encoder", "seq2seq", "attention", "block")


@check("positions.rotary", kinds=KINDS)
def rotary(ctx: Context) -> Iterator[Finding]:
    """Where positions are in the scores and not in the input, q_i·k_j depends on i − j only."""
    seen, _ = ctx.same
    plain = [s for s in seen.sites if _same_input(seen, s)]
    turned = [s for s in plain if _turned(s)]
    shifted = [s for s in plain if not _turned(s) and _varied(s)]
    if not turned and not shifted:
        raise NotApplicable("queries and keys are not rotated by position")
    for site in turned:
        worst, i, j = not_toeplitz(site.scores)
        if worst > 1e-4:
            yield Finding(
                "positions.rotary",
                f"one token repeated: score({i}, {j}) and score({i + 1}, {j + 1}) differ by "
                f"{worst:.2g} of the scores' size, though i − j is the same",
                site.where,
            )
            return
        change = "" if "turned-values" in ctx.profile else _turned_values(seen, site)
        if change:
            yield Finding("positions.rotary", change, site.where)
            return
    for site in shifted:
        worst, i = _unshifted(site.weights)
        if worst > 0.01:
            yield Finding(
                "positions.rotary",
                f"one token repeated, no positions in the input: the scores of position {i + 1} "
                f"are not those of position {i} moved by one (they differ by {worst:.2g} of their "
                f"size), so they do not depend on i − j: is the relative shift missing?",
                site.where,
            )
            return


@check("positions.frequencies", kinds=KINDS)
def frequencies(ctx: Context) -> Iterator[Finding]:
    """Each number of a rotated query is a wave: their speeds fall from 1, and differ."""
    seen, _ = ctx.same
    turned = [s for s in seen.sites if _same_input(seen, s) and _turned(s)]
    if not turned:
        raise NotApplicable("no fixed table of positions is added, and nothing is rotated")
    for site in turned:
        verdict = equal_or_rising(site.q[0])
        if not verdict and ctx.call.x.ids:  # patches in a plane have other bases
            verdict = _halved(ctx, site)
        if verdict:
            yield Finding("positions.frequencies", verdict, site.where)
            return


def _halved(ctx: Context, site: Site) -> str:
    """The square root of a usual base, unless the model holds that number itself, or you say it."""
    base, verdict = base_of(site.q[0]), halved_exponents(site.q[0])
    if base is None or not verdict or "other-base" in ctx.profile:
        return ""
    holders = [*ctx.module.modules(), getattr(ctx.module, "config", None)]
    held = [v for h in holders for v in getattr(h, "__dict__", {}).values()]
    held += [v for inside in held if isinstance(inside, dict) for v in inside.values()]
    numbers = [v for v in held if isinstance(v, int | float) and not isinstance(v, bool)]
    return "" if any(abs(v - base) < 1e-3 * base for v in numbers) else verdict


@check("positions.bias", kinds=KINDS)
def bias(ctx: Context) -> Iterator[Finding]:
    """What distances add to the scores: ALiBi's slopes, and which distances are told apart."""
    seen, _ = ctx.same
    added = [s for s in seen.sites if _same_input(seen, s) and not _turned(s) and _weighs(s)]
    if not added:
        raise NotApplicable("no position is added to the scores alone")
    for site in added:
        said = _later_alike(site.weights) or ("" if site.learned_bias else _slopes(site.weights))
        if said:
            yield Finding("positions.bias", f"one token repeated: {said}", site.where)
            return


def _steps(weights: Tensor) -> tuple[Tensor, Tensor]:
    """log w(i, j) − log w(i, j−1), free of what a whole row has in common, and where it is known:
    H T S−1. The first position is left out: a summary token may have positions of its own."""
    open_, log = weights > 1e-20, weights.clamp(min=1e-20).double().log()
    return log[:, 1:, 2:] - log[:, 1:, 1:-1], open_[:, 1:, 2:] & open_[:, 1:, 1:-1]


def _sides(known: Tensor) -> tuple[Tensor, Tensor]:
    """Of the known steps those between keys up to the query, and those from it on."""
    past = torch.ones_like(known).tril(-1)
    return known & past, known & ~past


def _later_alike(weights: Tensor) -> str:
    """A table for one side in an attention that looks to both: what is later is all distance 0."""
    step, known = _steps(weights)
    before, after = _sides(known)
    if int(after[0].sum()) < 3 or float(step[after].abs().max()) > 1e-9:
        return ""
    if float((step * before).abs().amax((1, 2)).min()) < 1e-6:
        return ""
    return (
        "all later keys have the same score, though earlier ones differ by their distance: the "
        "table or its buckets are those of a decoder, which looks back alone"
    )


def _slopes(weights: Tensor) -> str:
    """m_h · (j − i) for keys up to the query, as ALiBi adds it: what is wrong with the m_h."""
    step, known = _steps(weights)
    before, _ = _sides(known)
    if int(before[0].sum()) < 3:
        return ""
    slopes = (step * before).sum((1, 2)) / before.sum((1, 2)).clamp(min=1)
    off = ((step - slopes[:, None, None]) * before).abs().amax((1, 2))
    if float(slopes.abs().max()) < 1e-6 or float(off.max()) > 1e-6 * float(slopes.abs().max()):
        return ""  # no straight line
    listed = ", ".join(f"{m:.3g}" for m in slopes.tolist()[:8])
    if float(slopes.min()) < 0:
        return f"scores grow with the distance (slopes {listed}): the sign of ALiBi is wrong"
    if float(slopes.max()) > 1.001:
        return f"slopes {listed}: ALiBi's are 2^(−8h/H), at most 1; these hide all but neighbours"
    if len(slopes) > 1 and float(slopes.max() - slopes.min()) < 1e-6:
        return f"all heads have the slope {listed.split(',')[0]}: each should have its own"
    return ""


def _same_input(seen: Watch, site: Site) -> bool:
    """The projections of queries and keys are the same at every position."""
    if site.q.shape[1] != site.k.shape[1] or site.q_tag.linear < 0:
        return False
    for tag in (site.q_tag, site.k_tag):
        out = seen.outputs.get(tag.linear)
        if out is None or out.shape[-2] != site.q.shape[1] or varies(out, -2) > 1e-6:
            return False
    return True


def _turned_values(seen: Watch, site: Site) -> str:
    """Values that turn like queries and keys, and are mixed without being turned back."""
    out = seen.outputs.get(site.v_tag.linear)
    if out is None or out.shape[-2] != site.v.shape[1] or varies(out, -2) > 1e-6:
        return ""
    change, sizes = varies(site.v, 1), varies(site.v.norm(dim=-1), 1)
    mixed = (site.weights @ site.v).transpose(0, 1).flatten(1)
    given = site.out_input
    if change < 1e-6 or sizes > 1e-6 or given is None or given.shape != mixed.shape:
        return ""
    if not torch.allclose(given, mixed, atol=1e-6 * scale_of(mixed)):
        return ""  # turned back, as some do
    return (
        f"one token repeated: its value differs between positions by {change:.2g} of its size, "
        f"while its length stays ({sizes:.0e}) and the projection gives the same everywhere: "
        f"values are turned too, so that what is mixed depends on where it stands, not on i − j"
    )


def _turned(site: Site) -> bool:
    return max(varies(site.q, 1), varies(site.k, 1)) > 1e-6


def _varied(site: Site) -> bool:
    """Something that is no trained table of pairs (TUPE) was added to the scores."""
    return not (site.learned_bias or site.learned_scale) and _weighs(site)


def _weighs(site: Site) -> bool:
    """Whether its weights are those of a softmax over the keys."""
    w = site.weights
    if w.shape != site.scores.shape:
        return False
    return bool((w >= 0).all()) and float((w.sum(-1) - 1).abs().max()) < 1e-3


def _unshifted(weights: Tensor) -> tuple[float, int]:
    """How far the scores of one row are from those of the row before, moved by one; and where.

    A factor of the row is allowed (log n).
    """
    step, known = _steps(weights)
    size = float(step[known].abs().max()) if bool(known.any()) else 0.0
    if size < 1e-5:  # rounding: large scores in fp32 leave some
        return 0.0, 0
    worst, at = 0.0, 0
    for i in range(step.shape[1] - 1):
        both = known[:, i, :-1] & known[:, i + 1, 1:]
        one, two = (t * both for t in (step[:, i, :-1], step[:, i + 1, 1:]))
        factor = (one * two).sum(-1, keepdim=True) / (one * one).sum(-1, keepdim=True).clamp(1e-300)
        enough = both.sum(-1) > 2
        gap = float(((two - factor * one).abs().amax(-1) * enough).max()) / size
        if gap > worst:
            worst, at = gap, i + 1
    return worst, at
