# mypy: disable-error-code="no-untyped-call"
"""The source of an encoder-decoder: all of its real tokens are read, none of its padding.

Who reads it wrongly is told from the weights: the encoder's are S S, the cross-attention's T S.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from allformer.auditor.calls import Batch
from allformer.auditor.checks.leak import allowed
from allformer.auditor.checks.padding import PADS, with_padding, query_rows
from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.infer import padding_influence
from allformer.auditor.probe import distance, duplicate, lies_in, scale_of
from allformer.auditor.report import Finding
from allformer.auditor.watch import Site, Watch

READERS = ("seq2seq", "decoder", "block")


def _source(batch: Batch) -> Tensor:
    if batch.source is None:
        raise NotApplicable("there is no source")
    return batch.source


def _sites(seen: Watch, batch: Batch) -> tuple[list[Site], list[Site]]:
    """The encoder's attentions and the cross-attentions; none if the two sides are equally long."""
    keys, queries = _source(batch).shape[1], batch.x.shape[1]
    if keys == queries:
        return [], []
    found = [s for s in seen.sites if s.weights is not None]
    return (
        [s for s in found if s.weights is not None and s.weights.shape[1:] == (keys, keys)],
        [s for s in found if s.weights is not None and s.weights.shape[1:] == (queries, keys)],
    )


@check("cross.unread", kinds=READERS)
def unread(ctx: Context) -> Iterator[Finding]:
    """Each token of the source moves some output, by way of the encoder, in all layers."""
    batch = ctx.one
    source = _source(batch)
    base = ctx.run(batch)
    other = ctx.call.other(source)
    blind = []
    for j in range(source.shape[1]):
        changed = source.clone()
        changed[:, j] = other[:, j]
        if not ctx.moved(ctx.run(replace(batch, source=changed)), base):
            blind.append(j)
    if blind:
        yield Finding(
            "cross.unread",
            "",
            f"changing source tokens {blind[:8]} of {source.shape[1]} moves no output",
        )
        return
    _, across = _sites(ctx.seen, batch)
    if ctx.kind != "seq2seq" or not across:
        return
    yield from _raw_memory(ctx, across[0]) or _silent_layers(ctx, across)


def _raw_memory(ctx: Context, site: Site) -> list[Finding]:
    """Keys that move with their own token alone, and an encoder that gets no gradient."""
    source = _source(ctx.one).clone()
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
            layers[0],
            f"the decoder reads the source as it was before its encoder: the keys of the "
            f"cross-attention ({site.where}) at position i move with token i alone, and no output "
            f"depends on {', '.join(layers[:4])}",
        )
    ]


def _silent_layers(ctx: Context, across: list[Site]) -> list[Finding]:
    """Cross-attentions that never run, though their siblings in the list of layers do."""
    n = ctx.positions()
    own = [s for s in ctx.seen.sites if s.weights is not None and s.weights.shape[1:] == (n, n)]
    if len(own) <= len(across):
        return []
    dead = _dead(ctx)
    silent = [p for p in _siblings(ctx.module, across[0].where) if _all_dead(ctx.module, p, dead)]
    if not silent:
        return []
    return [
        Finding(
            "cross.unread",
            silent[0],
            f"{len(own)} self-attentions ran over the target and {len(across)} cross-attentions "
            f"over the source: {', '.join(silent[:4])} never ran, {across[0].where} did",
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


@check("cross.mask", kinds=("seq2seq",))
def triangle(ctx: Context) -> Iterator[Finding]:
    """A causal mask belongs to the target's own attention, not to the one over the source."""
    batch = ctx.one
    source = _source(batch)
    queries, keys = batch.x.shape[1], source.shape[1]
    _, across = _sites(ctx.seen, batch)
    if not across:
        raise NotApplicable("no attention over the source was seen in its operators")
    full = torch.ones(queries, keys, dtype=torch.bool)
    for site in across:
        look = allowed(site)
        ahead = next((k for k in (-1, 0, 1, 2) if torch.equal(look, full.tril(k))), None)
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
        yield Finding(
            "cross.mask",
            site.where,
            f"target position t looks at source positions up to t{ahead:+d} only: "
            f"{int(look.sum())} of {look.numel()} pairs, and the last {keys - queries - ahead} "
            f"source tokens are looked at by none of {queries} targets, though the encoder reads "
            f"the whole source",
        )
        return


def seen_padding(ctx: Context) -> Iterator[Finding]:
    """The source's padding is seen neither by the encoder nor by the cross-attention."""
    _source(ctx.one)
    evidence = _padding_moves(ctx)
    if not evidence:
        return
    batch, keep = _padded_inside(ctx)
    encoder, across = _sites(ctx.watch(batch)[0], batch)
    own = _weight_on(encoder, keep, keep) if ctx.kind == "seq2seq" else 0.0
    over = _weight_on(across, torch.ones(batch.x.shape[1], dtype=torch.bool), keep)
    if own > 1e-9:
        rows = query_rows(encoder[0], keep)
        yield Finding(
            "padding.query_axis" if rows else "padding.ignored",
            encoder[0].where,
            f"{evidence}; in the encoder real positions give padding a weight of up to {own:.2g}"
            + ("; the rows of padding are masked instead" if rows else ""),
        )
    if over > 1e-9 or not own > 1e-9:
        said = f"; the cross-attention gives it a weight of up to {over:.2g}" if over > 1e-9 else ""
        yield Finding("cross.mask", across[0].where if over > 1e-9 else "", evidence + said)


check("cross.mask", kinds=("decoder", "block"))(seen_padding)
check("padding.ignored", "padding.query_axis", "cross.mask", kinds=("seq2seq",))(seen_padding)


def _padding_moves(ctx: Context) -> str:
    """How padding of the source moves the output, in words; "" if it does not."""
    call = ctx.call
    if not call.keeps_source and not (call.pad_inside or call.pad is not None):
        raise NotApplicable("no padding of the source can be given (a mask, or pad=)")
    if call.keeps_source:
        score = padding_influence(call, ctx.loud, "source")
        if score is not None and score > 1e-6:
            return (
                f"changing masked source tokens moves the output {score:.2g} times as much as "
                f"changing a real one does"
            )
    batch = call.batch(2, max(4, call.length - PADS), source=max(4, call.length - PADS))
    whole = torch.ones(_source(batch).shape[:2], dtype=torch.bool)
    base = ctx.run(replace(batch, source_keep=whole if call.keeps_source else None))
    source, keep = with_padding(ctx, _source(batch), left=False)
    gap = distance(
        ctx.run(replace(batch, source=source, source_keep=keep if call.keeps_source else None)),
        base,
    )
    if gap > 1e-6 * scale_of(base):
        return f"{PADS} tokens of source padding move the output by {gap:.3g} (size {scale_of(base):.3g})"  # noqa: E501
    return ""


def _padded_inside(ctx: Context) -> tuple[Batch, Tensor]:
    """One row with padding at the end of its source, and which of it is real."""
    source, keep = with_padding(
        ctx, _source(ctx.call.batch(1, max(4, ctx.call.length - PADS))), False
    )
    batch = replace(ctx.call.batch(1), source=source)
    if source.shape[1] == batch.x.shape[1]:
        batch = replace(batch, x=batch.x[:, :-1])
    return replace(batch, source_keep=keep if ctx.call.keeps_source else None), keep[0]


def _weight_on(sites: list[Site], rows: Tensor, keep: Tensor) -> float:
    """The largest weight that these rows give to padding."""
    return max(
        (float(s.weights[:, rows][:, :, ~keep].nan_to_num(0.0).abs().max())
         for s in sites if s.weights is not None),
        default=0.0,
    )  # fmt: skip
