# mypy: disable-error-code="no-untyped-call,no-any-return"
"""Parameters that nothing uses, and what is lost between saving and loading."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from allformer.auditor.context import PARTS, Context, NotApplicable, check
from allformer.auditor.probe import distance, duplicate, scale_of
from allformer.auditor.report import Finding


@check("weights.unused", kinds=PARTS)
def unused(ctx: Context) -> Iterator[Finding]:
    """Every parameter gets a gradient from some output."""
    twin = duplicate(ctx.loud).eval()
    for p in twin.parameters():
        p.requires_grad_(p.is_floating_point())
    frozen = {n for n, p in ctx.module.named_parameters() if not p.requires_grad}
    with torch.enable_grad():
        total = _everything(ctx, twin, None)
        if ctx.call.labels_name and ctx.call.ids:
            with contextlib.suppress(Exception):
                total = total + _everything(ctx, twin, ctx.call.batch(2, seed=4).x)
        if not total.requires_grad:
            raise NotApplicable("the outputs do not depend on any parameter")
        total.backward()
    dead = []
    for name, p in twin.named_parameters():
        if name in frozen or p.numel() < 2:
            continue
        wide = sum(1 for n in p.shape if n > 1) >= 2
        if p.grad is None or (wide and not bool(p.grad.any())):
            dead.append((name, p.numel(), wide))
    if any(wide for _, _, wide in dead):
        names = [n for n, _, _ in dead]
        yield Finding(
            "weights.unused",
            names[0],
            f"{len(dead)} parameters with {sum(n for _, n, _ in dead):,} numbers get no gradient: "
            f"{', '.join(names[:5])}{' …' if len(names) > 5 else ''}",
        )
    elif dead:
        ctx.notes.append(f"vectors without gradient: {', '.join(n for n, _, _ in dead[:5])}")


def _everything(ctx: Context, twin: nn.Module, labels: Tensor | None) -> Tensor:
    out = ctx.call(twin, ctx.call.batch(2), labels)
    total = torch.zeros((), dtype=ctx.call.dtype)
    for t in out.tensors:
        if t.requires_grad:
            weight = torch.linspace(0.5, 1.5, max(1, t.numel()), dtype=t.dtype).view(t.shape).cos()
            total = total + (t * weight).sum().to(total.dtype)
    return total


@check("weights.save_load", kinds=PARTS)
def save_load(ctx: Context) -> Iterator[Finding]:
    """state_dict → another object → the same outputs; ties are ties."""
    yield from _ties(ctx)
    batch = ctx.call.batch(2)
    state = {k: v.clone() for k, v in ctx.quiet.state_dict().items()}
    target = _other(ctx)
    try:
        result = target.load_state_dict(state, strict=False)
    except Exception as error:
        text = " ".join(str(error).split())[:160]
        yield Finding("weights.save_load", "", f"loading its own state_dict fails: {text}")
        return
    missing = [*result.missing_keys, *result.unexpected_keys]
    before = ctx.run(batch, ctx.quiet)
    after = ctx.run(batch, target.to(ctx.call.dtype).eval())
    gap = distance(before, after)
    if gap > 1e-6 * scale_of(before):
        keys = f"; keys not loaded: {', '.join(missing[:4])}" if missing else ""
        yield Finding(
            "weights.save_load",
            missing[0] if missing else _outside(ctx, target),
            f"after state_dict → load_state_dict the outputs differ by {gap:.3g} (size "
            f"{scale_of(before):.3g}){keys}",
        )


def _other(ctx: Context) -> nn.Module:
    """Another object to load into: built anew if possible, else a copy with other numbers."""
    if ctx.build is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(987)
            fresh = ctx.build()
        if isinstance(fresh, nn.Module):
            return fresh
    twin = duplicate(ctx.quiet)
    with torch.no_grad():
        for p in twin.parameters():
            if p.is_floating_point():
                p.add_(torch.rand(p.shape, generator=torch.Generator().manual_seed(1)).to(p.dtype))
    return twin


def _outside(ctx: Context, target: nn.Module) -> str:
    from allformer.auditor.checks.tables import plain_tensors

    loose = plain_tensors(ctx.module)
    return loose[0][0] if loose else ""


def _ties(ctx: Context) -> Iterator[Finding]:
    """Two parameters in one memory, or two equal matrices: a tie that the next step breaks."""
    large = [(n, p) for n, p in ctx.module.named_parameters() if p.ndim == 2 and p.numel() > 64]
    vocab = [(n, p) for n, p in large if ctx.call.vocab and p.shape[0] == ctx.call.vocab]
    for i, (one, p) in enumerate(vocab):
        for two, q in vocab[i + 1 :]:
            if p.shape != q.shape or p is q:
                continue
            if p.data_ptr() == q.data_ptr():
                yield Finding(
                    "weights.save_load",
                    two,
                    f"{one} and {two} share memory but are two parameters: .to(), saving and "
                    f"loading part them",
                )
                return
            if torch.equal(p, q) and bool((p != p[0, 0]).any()):
                yield Finding(
                    "weights.save_load",
                    two,
                    f"{one} and {two} {tuple(p.shape)} have equal numbers but are not tied: the "
                    f"first step parts them",
                )
                return
    config = getattr(ctx.module, "config", None)
    if getattr(config, "tie_word_embeddings", False) and len(vocab) > 1:
        # The two words below are the ecosystem's accessors, not names of anything checked.
        read = getattr(ctx.module, "get_input_embeddings", lambda: None)()
        write = getattr(ctx.module, "get_output_embeddings", lambda: None)()
        if read is not None and write is not None and read.weight is not write.weight:
            yield Finding(
                "weights.save_load",
                "",
                "config.tie_word_embeddings is true, but input and output embeddings are two tensors",  # noqa: E501
            )
