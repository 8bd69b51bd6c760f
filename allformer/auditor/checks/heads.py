"""Heads split by view, merged without the transpose: does a head's row t read position t alone?

Both tests disturb one position inside the attention and look which rows move: the output of the
projection on the way in, the mixed values on the way out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.profiles import along_length
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site, Watch

MOST = 4  # attentions that are tried: a bug is in the class, not in one object


def some(sites: list[Site]) -> list[Site]:
    """The first few and the last."""
    return sites if len(sites) <= MOST else [*sites[: MOST - 1], sites[-1]]


def _bump(t: int) -> Any:
    def change(out: Tensor, args: Any) -> Tensor:
        out = out.clone()
        rows = out[..., t, :]
        noise = torch.linspace(1, 2, rows.shape[-1], dtype=out.dtype).expand_as(rows)
        out[..., t, :] = rows + noise * (1 + rows.abs().mean())
        return out

    return change


def _moved_rows(a: Tensor, b: Tensor) -> Tensor:
    """N T boolean: which rows differ."""
    return (a - b).abs().amax(-1) > 1e-9 * (1 + float(b.abs().max()))


@check("heads.split", kinds=PARTS)
def split(ctx: Context) -> Iterator[Finding]:
    """Disturb position t of the projections: rows t of q, k and v move, in every head."""
    tried = 0
    for site in some(ctx.sites()):
        roles = {} if along_length(ctx, site) else _roles(ctx, site)
        if not roles:
            continue
        tried += 1
        again, _ = ctx.watch(ctx.one, {linear: _bump(t) for linear, t in roles.values()})
        for role, (_, t) in roles.items():
            rows = _compare(again, site, role)
            if rows is None:
                continue
            strays = rows.clone()
            strays[:, t] = False
            if bool(strays.any()):
                n = int(strays.nonzero()[0, 1])
                yield Finding(
                    "heads.split",
                    f"disturbing position {t} of the projected {role} moves row {n} of a head: "
                    f"{int(rows.sum())} of {rows.numel()} rows move, {rows.shape[0]} (one for each "
                    f"head, all at position {t}) should",
                    site.where,
                )
                return
    if not tried:
        raise NotApplicable("queries, keys and values are not the outputs of linear maps")


def _roles(ctx: Context, site: Site) -> dict[str, tuple[int, int]]:
    """Whose projection was seen: its number, and the position to disturb. No role feeds another."""
    out = {}
    for role, tag, length in (
        ("queries", site.q_tag, site.q.shape[1]),
        ("keys", site.k_tag, site.k.shape[1]),
        ("values", site.v_tag, site.k.shape[1]),
    ):
        if tag is None or tag.linear < 0:
            continue
        before = ctx.seen.outputs[tag.linear]
        if before.numel() // before.shape[-1] == length:
            out[role] = tag.linear, length // 2 if length > 2 else 0
    return out


def _compare(again: Watch, site: Site, role: str) -> Tensor | None:
    if site.number >= len(again.sites):
        return None
    other = again.sites[site.number]
    pairs = {"queries": (other.q, site.q), "keys": (other.k, site.k), "values": (other.v, site.v)}
    a, b = pairs[role]
    if a is None or b is None or a.shape != b.shape:
        return None
    return _moved_rows(a, b)


@check("heads.merge", kinds=PARTS)
def merge(ctx: Context) -> Iterator[Finding]:
    """Disturb position t of the mixed values: row t goes into the output projection."""
    tried = 0
    for site in some(ctx.sites()):
        length = site.q.shape[1]
        if site.out_input is None or site.mix_op < 0 or site.out_input.shape[0] != length:
            continue
        tried += 1
        t = length // 2
        again, _ = ctx.watch(ctx.one, {site.mix_op: _bump(t)})
        if site.number >= len(again.sites):
            continue
        after = again.sites[site.number].out_input
        if after is None or after.shape != site.out_input.shape:
            continue
        rows = _moved_rows(after, site.out_input)
        strays = [i for i in range(length) if bool(rows[i]) and i != t]
        if strays:
            yield Finding(
                "heads.merge",
                f"disturbing position {t} of the heads' outputs moves rows {strays[:6]} of what "
                f"the output projection gets; only row {t} should move",
                site.where,
            )
            return
    if not tried:
        raise NotApplicable("no output projection follows the heads")
