# mypy: disable-error-code="no-untyped-call"
"""The source of an encoder-decoder is read: each token, through the encoder, by every layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from allformer.auditor.calls import Call
from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.evidence.looks import allowed, causal_encoder, looks, sites_of, source_of
from allformer.auditor.outputs import read
from allformer.auditor.probe import distance, duplicate, lies_in, scale_of
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site

READERS = ("seq2seq", "decoder", "block")


@check("cross.unread", kinds=READERS)
def unread(ctx: Context) -> Iterator[Finding]:
    """Each token of the source moves some output, by way of the encoder, in all layers."""
    batch = ctx.one
    source = source_of(batch)
    base = ctx.run(batch)
    other = ctx.call.other(source)
    blind = []
    for j in range(source.shape[1]):
        changed = source.clone()
        changed[:, j] = other[:, j]
        if not ctx.moved(ctx.run(replace(batch, source=changed)), base):
            blind.append(j)
    _, across = sites_of(ctx.seen, batch)
    ahead = next((k for k in map(_ahead, across) if k is not None), source.shape[1])
    if blind and min(blind) < batch.x.shape[1] + ahead:  # a source read step by step: not yet
        yield Finding(
            "cross.unread",
            f"changing source tokens {blind[:8]} of {source.shape[1]} moves no output",
        )
        return
    if ctx.kind != "seq2seq" or not across:
        return
    yield from _raw_memory(ctx, across[0]) or _silent_layers(ctx, across)


def _raw_memory(ctx: Context, site: Site) -> list[Finding]:
    """Keys that move with their own token alone, and an encoder that gets no gradient."""
    source = source_of(ctx.one).clone()
    source[:, 0] = ctx.call.other(source)[:, 0]
    again = ctx.watch(replace(ctx.one, source=source))[0].sites
    if site.number >= len(again) or again[site.number].k.shape != site.k.shape:
        return []
    k = again[site.number].k
    if distance(k[:, 1:], site.k[:, 1:]) > 1e-9 * scale_of(k):
        return []
    dead = _dead(ctx)
    layers = [path for path in _items(ctx.module) if _all_dead(ctx.module, path, dead)]
    if not layers:
        return []  # a memory without context, by choice
    return [
        Finding(
            "cross.unread",
            f"the decoder reads the source as it was before its encoder: the keys of the "
            f"cross-attention ({site.where}) at position i move with token i alone, and no output "
            f"depends on {', '.join(layers[:4])}",
            layers[0],
        )
    ]


def _silent_layers(ctx: Context, across: list[Site]) -> list[Finding]:
    """Cross-attentions that never run, though their siblings in the list of layers do."""
    n, here = ctx.positions(), across[0].where
    own = [s for s in ctx.seen.sites if s.weights.shape[1:] == (n, n)]
    if len(own) <= len(across):
        return []
    siblings = _siblings(ctx.module, here)
    places = {s.where for s in own} & set(siblings) - {s.where for s in across}
    if places and not any(s.where == here for s in own):
        where = min(places)
        return [
            Finding(
                "cross.unread",
                f"{here} reads the source, and {where}, which stands where that one does in "
                f"another layer, reads the target",
                where,
            )
        ]
    dead = _dead(ctx)
    silent = [p for p in siblings if _all_dead(ctx.module, p, dead)]
    if not silent:
        return []
    return [
        Finding(
            "cross.unread",
            f"{len(own)} self-attentions ran over the target and {len(across)} cross-attentions "
            f"over the source: {', '.join(silent[:4])} never ran, {here} did",
            silent[0],
        )
    ]


def _siblings(module: nn.Module, where: str) -> list[str]:
    """The same place in the other items of the lists in which it lies."""
    names = dict(module.named_modules())
    out = []
    for path, part in names.items():
        if not isinstance(part, nn.ModuleList | nn.Sequential) or not lies_in(where, path):
            continue
        items = [f"{path}.{key}" if path else key for key, _ in part.named_children()]
        mine = next((i for i in items if lies_in(where, i)), "")
        if mine:
            out += [i + where[len(mine) :] for i in items if i != mine]
    return [path for path in out if path in names]


def _items(module: nn.Module) -> list[str]:
    """The items of the lists."""
    lists = [(n, m) for n, m in module.named_modules() if isinstance(m, nn.ModuleList)]
    return [f"{name}.{key}".lstrip(".") for name, part in lists for key, _ in part.named_children()]


def _dead(ctx: Context) -> set[str]:
    """The matrices that no output depends on."""
    twin = duplicate(ctx.loud).eval()
    for p in twin.parameters():
        p.requires_grad_(p.is_floating_point())
    with torch.enable_grad():
        out = ctx.call(twin, ctx.call.batch(2)).main
        (out * torch.linspace(0.5, 1.5, out.numel()).to(out).view_as(out).cos()).sum().backward()
    return {
        n for n, p in twin.named_parameters()
        if p.ndim > 1 and (p.grad is None or not bool(p.grad.any()))
    }  # fmt: skip


def _all_dead(module: nn.Module, path: str, dead: set[str]) -> bool:
    matrices = [n for n, p in module.named_parameters() if lies_in(n, path) and p.ndim > 1]
    return bool(matrices) and all(n in dead for n in matrices)


def _ahead(site: Site) -> int | None:
    """Target t looks at the source up to t + this; None if that is not how it looks."""
    look = allowed(site)
    full = torch.ones_like(look)
    return next((k for k in (-1, 0, 1) if torch.equal(look, full.tril(k))), None)


@check("mask.causal", kinds=("seq2seq",))
def encoder(ctx: Context) -> Iterator[Finding]:
    """The encoder reads to both sides, unless the whole model reads the source step by step."""
    inside, across = sites_of(ctx.seen, ctx.one)
    if not inside:
        raise NotApplicable("no self-attention over the source was seen in its operators")
    if any(_ahead(site) is not None for site in across):
        raise NotApplicable("targets read the source step by step: see cross.mask")
    views = looks(ctx, source_of(ctx.one).shape[1])
    yield from causal_encoder(ctx, views, " of the encoder")


@check("cross.mask", kinds=("seq2seq",))
def triangle(ctx: Context) -> Iterator[Finding]:
    """A causal mask belongs to the target's own attention, not to the one over the source."""
    batch = ctx.one
    source = source_of(batch)
    queries, keys = batch.x.shape[1], source.shape[1]
    _, across = sites_of(ctx.seen, batch)
    if not across:
        raise NotApplicable("no attention over the source was seen in its operators")
    for site in across:
        look, ahead = allowed(site), _ahead(site)
        if ahead is None:
            continue
        last = source.clone()
        last[:, -1] = ctx.call.other(source)[:, -1]
        moved = ctx.run(replace(batch, source=last))[:, 0]
        if not ctx.moved(moved, ctx.run(batch)[:, 0]):
            ctx.notes.append(
                "target t reads the source up to t, in the encoder too: simultaneous translation"
            )
            return
        none = ""
        if keys > queries + ahead:
            none = (
                f", and the last {keys - queries - ahead} source tokens are looked at by none of "
                f"{queries} targets"
            )
        yield Finding(
            "cross.mask",
            f"target position t looks at source positions up to t{ahead:+d} only: "
            f"{int(look.sum())} of {look.numel()} pairs{none}, though the encoder reads the whole "
            f"source",
            site.where,
        )
        return


@check("cross.unread", kinds=("attention",))
def each_input(ctx: Context) -> Iterator[Finding]:
    """forward(x, context): other content in one of them moves the output."""
    call = ctx.call
    if call.user is not None or len(call.x.names) < 2:
        raise NotApplicable("there is one sequence")
    batch = call.batch(2)
    other = replace(batch, x=call.other(batch.x))
    base = _run(ctx, call, call.arguments(batch))
    for name in call.x.names:
        mixed = {**call.arguments(batch), name: call.arguments(other)[name]}
        if not ctx.moved(_run(ctx, call, mixed), base):
            yield Finding(
                "cross.unread",
                f"other vectors in {name!r} move no output: queries, keys and values are all made "
                f"from the other inputs",
            )
            return


def _run(ctx: Context, call: Call, arguments: dict[str, object]) -> torch.Tensor:
    with torch.no_grad():
        raw = ctx.loud(**arguments)
    return read(raw, 2, call.length, call.time_first).main
