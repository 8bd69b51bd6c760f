"""Attention that looks at one place only before it has learnt anything.

Matrices that start too large drive every softmax into its corners: almost no gradient comes through
it, and a small step turns the outputs over. Norms hide this from the loss and from the size of the
gradients. A first layer alone says nothing (large embeddings, as in the first Transformer), nor a
temperature: so every attention must be saturated, and no longer with matrices of a usual size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from allformer.auditor.calls import MODELS
from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.evidence.randomness import fresh
from allformer.auditor.probe import duplicate, usual_size
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site

LARGE = 3.0  # times the usual size; He's start is 1.4 times, a start at std 1 is √n times
ONE_PLACE, SPREAD = 0.15, 0.4  # shares of the entropy of an even look; cosine with τ = 10 has 0.45


@check("training.gradients", kinds=MODELS)
def saturated(ctx: Context) -> Iterator[Finding]:
    """The entropy of the weights of every attention, as the model starts."""
    if not ctx.call.x.ids or not fresh(ctx.module):
        raise NotApplicable("it takes no ids, or its weights look trained")
    large = {n: size for n, size in _sizes(ctx) if size > LARGE}
    if not large:
        return
    shares = _shares(ctx, ctx.quiet)
    if not shares or max(shares) > ONE_PLACE:
        return
    usual = duplicate(ctx.quiet)
    with torch.no_grad():
        for name, p in usual.named_parameters():
            if name in large:
                p.div_(large[name])
    after = _shares(ctx, usual)
    if min(after) > SPREAD:
        worst = max(large, key=lambda n: large[n])
        yield Finding(
            "training.gradients",
            f"each of the {len(shares)} attentions of the fresh model looks at one place: the "
            f"entropy of its weights is at most {max(shares):.2f} of an even look's. "
            f"{len(large)} matrices are up to {large[worst]:.1f} times larger than keeps the size "
            f"of what they map; made smaller, the entropy is at least {min(after):.2f}: hardly any "
            f"gradient comes through a softmax in its corners",
            worst,
        )


def _sizes(ctx: Context) -> Iterator[tuple[str, float]]:
    """How much larger than usual each matrix is, tables left out."""
    tables = {
        id(p) for m in ctx.quiet.modules() if isinstance(m, nn.Embedding) for p in m.parameters()
    }
    for name, p in ctx.quiet.named_parameters():
        wide = p.ndim >= 2 and sum(n > 1 for n in p.shape) >= 2 and p.is_floating_point()
        known = (ctx.call.x.vocab, ctx.call.source.vocab)
        if wide and id(p) not in tables and p.shape[0] not in known:
            yield name, float(p.detach().square().mean().sqrt()) / usual_size(p)


def _shares(ctx: Context, module: nn.Module) -> list[float]:
    """For each attention the mean entropy of its weights, as a share of the largest possible."""
    seen, _ = ctx.watch(ctx.call.batch(2), module=module)
    found = [_share(s) for s in seen.sites]
    return [share for share in found if share is not None]


def _share(site: Site) -> float | None:
    scores = site.masked_in.double()
    open_: Tensor = torch.isfinite(scores) & (scores > -9e3)
    rows = open_.sum(-1) >= 4
    if not bool(rows.any()) or site.softmax_dim not in (-1, scores.ndim - 1):
        return None
    weights = torch.softmax(scores.masked_fill(~open_, -math.inf), -1)[rows]
    entropy = torch.special.entr(weights).sum(-1)
    return float((entropy / open_[rows].sum(-1).double().log()).mean())
