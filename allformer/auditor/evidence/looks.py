"""Who looks at whom, read off the weights of the attentions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from allformer.auditor.calls import Batch
from allformer.auditor.context import Context, NotApplicable
from allformer.auditor.infer.visibility import one_sided
from allformer.auditor.probe import scale_of
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site, Watch


def allowed(site: Site) -> Tensor:
    """T S: which keys any head looks at; a row that may see nothing is even, and looks at none."""
    return _any_head(site.weights)


def _any_head(weights: Tensor) -> Tensor:
    weights = weights.abs().nan_to_num(0.0)
    blind = (weights.amax(-1) - weights.amin(-1) < 1e-12).all(0)
    return (weights.amax(0) > 1e-12) & ~(blind & (weights.shape[-1] > 1))[:, None]


def all_hidden(site: Site) -> bool:
    """Whether one number, or −inf, stands for the scores of all pairs, which differ themselves."""
    given = site.softmax_in
    if given.numel() != site.scores.numel() or site.k.shape[1] < 2:
        return False
    if float(site.scores.std(-1).max()) < 1e-6 * scale_of(site.scores):
        return False
    return bool((given == given.flatten()[0]).all())


def square(ctx: Context, n: int = 0) -> list[Site]:
    """The self-attentions over n positions, x's unless told."""
    n = n or ctx.positions()
    return [s for s in ctx.seen.sites if s.weights.shape[1:] == (n, n) and s.q.shape[1] == n]


def looks(ctx: Context, n: int = 0) -> list[tuple[Site, Tensor]]:
    """The self-attentions, each with T S: which keys its mask lets any head see.

    Read where all scores are near 0: large ones leave weights of 0 that no mask made.
    """
    n = n or ctx.positions()
    plain = square(ctx, n)
    grouped = [s for s in ctx.seen.sites if _grouped(s, n)]
    sites = sorted(plain + grouped, key=lambda s: s.op)
    shrink = {s.op: times(s, 0.1 / (scale_of(s.scores) * abs(s.scale) + 0.1)) for s in sites}
    flat = {s.op: s for s in ctx.watch(ctx.one, shrink)[0].sites}
    out = []
    for site in sites:
        near = flat.get(site.op, site)
        if _grouped(site, n):
            out.append((site, _any_head(near.softmax_in.softmax(-1).reshape(-1, n, n))))
        else:
            out.append((site, allowed(near)))
    return out


def _grouped(site: Site, n: int) -> bool:
    """Query heads of one key head in one matmul (G·T rows): the softmax has them apart."""
    given = site.softmax_in
    if site.softmax_dim not in (-1, given.ndim - 1):
        return False
    same = site.weights.numel() == given.numel()
    return same and given.shape[-2:] == (n, n) and site.k.shape[1] == n != site.q.shape[1]


def times(site: Site, factor: float) -> Any:
    """A change of the product Q·Kᵀ: multiply it, and leave the mask as it is."""
    alpha = site.scale / (site.q_tag.factor * site.k_tag.factor)

    def change(out: Tensor, args: Any) -> Tensor:
        if len(args) == 3:  # baddbmm: the mask or a bias is already added
            more: Tensor = args[1] @ args[2]
            return out + (factor - 1) * alpha * more
        return out * factor

    return change


def causal_encoder(ctx: Context, views: list[tuple[Site, Tensor]], of: str) -> Iterator[Finding]:
    """Self-attentions of an encoder that hide all that is later, unless others hide the rest."""
    hide = [site for site, look in views if one_sided(look)]
    if not hide or any(one_sided(look.mT) for _, look in views):
        return
    by_choice(ctx)
    yield Finding(
        "mask.causal",
        f"{len(hide)} of {len(views)} self-attentions{of} hide every later token: there the first "
        f"of {views[0][1].shape[0]} positions looks at itself alone",
        hide[0].where,
    )


def by_choice(ctx: Context) -> None:
    """An encoder that reads from left to right on purpose is not judged."""
    if "streaming" in ctx.profile:
        raise NotApplicable("profile: the encoder reads from left to right, by choice")


def source_of(batch: Batch) -> Tensor:
    """The source; none is a reason not to apply."""
    if batch.source is None:
        raise NotApplicable("there is no source")
    return batch.source


def sites_of(seen: Watch, batch: Batch) -> tuple[list[Site], list[Site]]:
    """The encoder's attentions and the cross-attentions; none if the two sides are equally long."""
    keys, queries = source_of(batch).shape[1], batch.x.shape[1]
    if keys == queries:
        return [], []
    return (
        [s for s in seen.sites if s.weights.shape[1:] == (keys, keys)],
        [s for s in seen.sites if s.weights.shape[1:] == (queries, keys)],
    )
