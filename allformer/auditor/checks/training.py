# mypy: disable-error-code="no-untyped-call,no-any-return"
"""The first steps of training: the loss, the gradients, and whether anything becomes NaN."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer.auditor.calls import MODELS
from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.evidence.blocks import lists
from allformer.auditor.evidence.randomness import fresh
from allformer.auditor.probe import duplicate, make_loud
from allformer.auditor.report import Finding

STEPS = 4
PATIENCE = 8  # a head, an output map, queries and keys that start at 0 wake one after the other
RATES = (3e-4, 3e-3)


def _logits(ctx: Context) -> None:
    if not ctx.call.x.ids:
        raise NotApplicable("it takes no ids")


def _objective(out: Tensor, vocab: int, targets: Tensor) -> Tensor:
    """Cross-entropy where the output is over the vocabulary, else a plain square."""
    if out.ndim == 3 and out.shape[-1] >= vocab:
        return F.cross_entropy(out.flatten(0, 1).float(), targets.flatten())
    return (out - 1).square().mean()


@check("training.initial_loss")
def initial_loss(ctx: Context) -> Iterator[Finding]:
    """Fresh weights guess evenly: the loss is near ln V."""
    _logits(ctx)
    if not fresh(ctx.module):
        raise NotApplicable("the weights look trained: norms and biases are not as initialised")
    batch = ctx.call.batch(4)
    out = ctx.run(batch, ctx.quiet)
    vocab = ctx.call.x.vocab
    if out.ndim != 3 or out.shape[-1] != vocab:
        raise NotApplicable("the outputs are not logits over the vocabulary")
    targets = torch.randint(vocab, batch.x.shape, generator=torch.Generator().manual_seed(2))
    targets = torch.where(targets == batch.x, (targets + 1) % vocab, targets)
    # A tied head says the token that it reads: by design, so that logit is left out.
    out = out.scatter(-1, batch.x[..., None], float("-inf"))
    loss = float(_objective(out, vocab, targets))
    even = math.log(vocab)
    if not loss - even < max(2.0, 0.5 * even):
        yield Finding(
            "training.initial_loss",
            f"the first loss is {loss:.2f}, ln {vocab} = {even:.2f}; the logits have a standard "
            f"deviation of {float(out[out.isfinite()].std()):.2f}",
        )


@check("training.gradients", kinds=MODELS)
def gradients(ctx: Context) -> Iterator[Finding]:
    """Gradients of the first step are finite, and neither dead nor huge in some layer."""
    _logits(ctx)
    twin = duplicate(ctx.quiet)
    batch = ctx.call.batch(4)
    targets = ctx.call.batch(4, seed=3).x
    with torch.enable_grad():
        _objective(ctx.call(twin, batch).main, ctx.call.x.vocab, targets).backward()
    sizes = {n: float(p.grad.norm()) for n, p in twin.named_parameters() if p.grad is not None}
    bad = [n for n, size in sizes.items() if not math.isfinite(size)]
    if bad:
        yield Finding("training.gradients", f"{len(bad)} gradients are NaN or infinite", bad[0])
        return
    if not fresh(ctx.module):
        return
    total = math.sqrt(sum(size**2 for size in sizes.values()))
    if total > 1e3:
        worst = max(sizes, key=lambda n: sizes[n])
        yield Finding(
            "training.gradients",
            f"the first gradient has a norm of {total:.3g}, {sizes[worst]:.3g} of it in {worst}",
            worst,
        )
        return
    for name, inside in lists(twin):
        norms = [size for size in map(_norm, inside) if size is not None]
        if len(norms) > 1 and max(norms) > 0 and min(norms) < 1e-6 * max(norms):
            i = norms.index(min(norms))
            yield Finding(
                "training.gradients",
                f"the gradient of {name}.{i} is {norms[i]:.1e}, that of its largest sibling "
                f"{max(norms):.1e}",
                f"{name}.{i}",
            )
            return
    yield from _never_learns(ctx, twin)


def _norm(m: nn.Module) -> float | None:
    grads = [p.grad for p in m.parameters() if p.grad is not None and p.ndim >= 2]
    size = math.sqrt(sum(float(g.norm()) ** 2 for g in grads))
    return size or None  # exactly 0 may be a part that this batch did not ask for: see below


def _never_learns(ctx: Context, twin: nn.Module) -> Iterator[Finding]:
    """A gate, or an output map, that starts at 0 lets gradients through after a step or two.

    What has exactly none after `PATIENCE` steps from the model's own start will never move.
    """
    asleep = _no_gradient(twin)
    if not asleep:
        return
    optimiser = torch.optim.AdamW([p for p in twin.parameters() if p.requires_grad], lr=1e-3)
    for step in range(1, PATIENCE):
        optimiser.step()
        asleep &= _asleep(ctx, twin, step)
        if not asleep:
            return
    dead = _by_own_numbers(ctx, asleep)
    if dead:
        sizes = {n: p.numel() for n, p in twin.named_parameters() if n in dead}
        yield Finding(
            "training.gradients",
            f"{len(dead)} matrices with {sum(sizes.values()):,} numbers have a gradient of exactly "
            f"0 in each of the first {PATIENCE} steps, e.g. {', '.join(list(sizes)[:3])}; with "
            f"other numbers in them they have one: they start where nothing can move them",
            next(iter(sizes)),
        )


def _asleep(ctx: Context, twin: nn.Module, seed: int) -> set[str]:
    """The matrices that another batch gives a gradient of exactly 0."""
    batch, targets = ctx.call.batch(16, seed=seed), ctx.call.batch(16, seed=seed + 3).x
    twin.zero_grad()
    with torch.enable_grad():
        _objective(ctx.call(twin, batch).main, ctx.call.x.vocab, targets).backward()
    return _no_gradient(twin)


def _no_gradient(twin: nn.Module) -> set[str]:
    return {
        n for n, p in twin.named_parameters()
        if p.ndim >= 2 and min(p.shape) > 1 and p.requires_grad
        and (p.grad is None or not bool(p.grad.any()))
    }  # fmt: skip


def _by_own_numbers(ctx: Context, asleep: set[str]) -> set[str]:
    """Those that are awake with other numbers in them, but not with other numbers elsewhere.

    The first are not the unused ones, which another check names; the second not the experts that
    nobody chose.
    """
    owners = {n.rpartition(".")[0] for n in asleep}
    own = {n: p for n, p in ctx.quiet.named_parameters() if n.rpartition(".")[0] in owners}
    used: set[str] = set()
    dead = set(asleep)
    for seed in (1, 2, 3):
        loud = make_loud(duplicate(ctx.loud), seed, frozenset({ctx.call.x.vocab}))
        used |= asleep - _asleep(ctx, loud, seed)
        with torch.no_grad():
            for name, p in loud.named_parameters():
                if name in own:
                    p.copy_(own[name])
        dead &= _asleep(ctx, loud, seed)
    return dead & used


@check("training.nan", kinds=MODELS)
def becomes_nan(ctx: Context) -> Iterator[Finding]:
    """A few steps of AdamW at usual rates, with and without warm-up, stay finite."""
    _logits(ctx)
    call = replace(ctx.call, dtype=torch.float32)
    for rate in RATES:
        for warm_up in (False, True):
            twin = duplicate(ctx.module).float().train()
            parameters = [p for p in twin.parameters() if p.requires_grad]
            if not parameters:
                raise NotApplicable("nothing is trainable")
            plain = all(p.is_floating_point() for p in parameters)
            optimiser = torch.optim.AdamW(parameters, lr=rate, fused=plain or None)
            for step in range(STEPS):
                batch = call.batch(2, seed=step)
                for group in optimiser.param_groups:
                    group["lr"] = rate * min(1.0, (step + 1) / STEPS) if warm_up else rate
                with torch.enable_grad():
                    loss = _objective(call(twin, batch).main, call.x.vocab, batch.x)
                    optimiser.zero_grad()
                    loss.backward()
                bad = _not_finite(twin)
                if not math.isfinite(float(loss)) or bad:
                    warm = "with" if warm_up else "without"
                    yield Finding(
                        "training.nan",
                        f"at a learning rate of {rate:g} {warm} warm-up the loss is "
                        f"{float(loss):.3g} and {len(bad)} gradients are not finite at step {step}",
                        bad[0] if bad else "",
                    )
                    return
                optimiser.step()
            if rate == RATES[0]:
                break  # the small rate needs no warm-up


def _not_finite(twin: nn.Module) -> list[str]:
    """Parameters with a gradient that is not finite; their sums say at once if there is none."""
    grads = {n: p.grad for n, p in twin.named_parameters() if p.grad is not None}
    if math.isfinite(sum(float(g.sum()) for g in grads.values())):
        return []
    return [n for n, g in grads.items() if not bool(torch.isfinite(g).all())]
