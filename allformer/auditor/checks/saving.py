# mypy: disable-error-code="no-untyped-call,no-any-return"
"""What is lost between saving and loading: ties, and what the state_dict does not hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from allformer.auditor.context import PARTS, Context, check
from allformer.auditor.evidence.positions import plain_tensors
from allformer.auditor.evidence.randomness import looks_random
from allformer.auditor.probe import brief, distance, duplicate, scale_of
from allformer.auditor.report import Finding


@check("weights.save_load", kinds=PARTS)
def save_load(ctx: Context) -> Iterator[Finding]:
    """state_dict → another object → the same outputs; ties are ties."""
    yield from _ties(ctx)
    yield from _unregistered(ctx)
    yield from _volatile(ctx)
    batch = ctx.call.batch(2)
    state = {k: v.clone() for k, v in ctx.quiet.state_dict().items()}
    target = _other(ctx)
    try:
        result = target.load_state_dict(state, strict=False)
    except Exception as error:
        text = brief(error, 160)
        yield Finding("weights.save_load", f"loading its own state_dict fails: {text}")
        return
    missing = [*result.missing_keys, *result.unexpected_keys]
    before = ctx.run(batch, ctx.quiet)
    after = ctx.run(batch, target.to(ctx.call.dtype).eval())
    gap = distance(before, after)
    if gap > 1e-6 * scale_of(before):
        keys = f"; keys not loaded: {', '.join(missing[:4])}" if missing else ""
        yield Finding(
            "weights.save_load",
            f"after state_dict → load_state_dict the outputs differ by {gap:.3g} (size "
            f"{scale_of(before):.3g}){keys}",
            missing[0] if missing else _outside(ctx, target),
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
    loose = plain_tensors(ctx.module)
    return loose[0][0] if loose else ""


def _ties(ctx: Context) -> Iterator[Finding]:
    """Two parameters in one memory, or two equal matrices: a tie that the next step breaks."""
    large = [(n, p) for n, p in ctx.module.named_parameters() if p.ndim == 2 and p.numel() > 64]
    vocab = [(n, p) for n, p in large if ctx.call.x.vocab and p.shape[0] == ctx.call.x.vocab]
    for i, (one, p) in enumerate(vocab):
        for two, q in vocab[i + 1 :]:
            if p.shape != q.shape or p is q:
                continue
            if p.data_ptr() == q.data_ptr():
                yield Finding(
                    "weights.save_load",
                    f"{one} and {two} share memory but are two parameters: .to(), saving and "
                    f"loading part them",
                    two,
                )
                return
            if torch.equal(p, q) and bool((p != p[0, 0]).any()):
                yield Finding(
                    "weights.save_load",
                    f"{one} and {two} {tuple(p.shape)} have equal numbers but are not tied: the "
                    f"first step parts them",
                    two,
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
                "config.tie_word_embeddings is true, but input and output embeddings are two",
            )


def _unregistered(ctx: Context) -> Iterator[Finding]:
    """Trained tensors that take part, but are none of the module's parameters."""
    if ctx.call.user is not None:
        return  # they may belong to the function that calls it
    twin = duplicate(ctx.quiet)
    with torch.enable_grad():
        out = ctx.call(twin, ctx.call.batch(1)).main
    known = {id(p) for p in twin.parameters()}
    strange = [leaf for leaf in _leaves(out) if id(leaf) not in known]
    if strange:
        names = {id(p): n for n, p in _hidden(twin)}
        where = names.get(id(strange[0]), "")
        yield Finding(
            "weights.save_load",
            f"{len(strange)} trained tensors take part in the output but are no parameters of the "
            f"module, e.g. {where or 'one'} {tuple(strange[0].shape)}: they are not saved, do not "
            f"follow .to(), and no optimiser gets them",
            where,
        )


def _leaves(out: Tensor) -> list[Tensor]:
    """The leaves of the graph that end in tensors with a gradient."""
    found: list[Tensor] = []
    nodes, seen = [out.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        nodes += [n for n, _ in node.next_functions]
    return found


def _hidden(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors in plain attributes, lists and dictionaries, also those of modules in them."""

    def inside(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, nn.Module):
            yield from ((f"{name}.{n}", p) for n, p in value.named_parameters())
        elif isinstance(value, list | tuple | dict):
            for key, v in value.items() if isinstance(value, dict) else enumerate(value):
                yield from inside(f"{name}.{key}", v)

    for path, m in module.named_modules():
        for key, value in vars(m).items():
            if key not in ("_parameters", "_buffers", "_modules"):
                yield from inside(f"{path}.{key}".lstrip("."), value)


def _volatile(ctx: Context) -> Iterator[Finding]:
    """Tables of random numbers that the state_dict leaves out: the next build draws others."""
    if ctx.build is not None:
        return  # two builds are compared, which shows it better
    batch = ctx.call.batch(2)
    twin = duplicate(ctx.quiet)
    before = ctx.run(batch, twin)
    for name, table in _unsaved(twin):
        if not looks_random(table):
            continue
        kept = table.clone()
        table.copy_(kept.flatten().flip(0).view_as(kept))  # others of the same kind
        gap = distance(ctx.run(batch, twin), before)
        table.copy_(kept)
        if gap > 1e-6 * scale_of(before):
            yield Finding(
                "weights.save_load",
                f"{name} {tuple(table.shape)} holds random numbers and is not in the state_dict: "
                f"with others of the same kind the outputs differ by {gap:.3g} (size "
                f"{scale_of(before):.3g})",
                name,
            )
            return


def _unsaved(module: nn.Module) -> list[tuple[str, Tensor]]:
    out = [(name, value) for name, _, _, value in plain_tensors(module)]
    for path, m in module.named_modules():
        for key in m._non_persistent_buffers_set:
            value = m._buffers.get(key)
            if value is not None:
                out.append((f"{path}.{key}".lstrip("."), value))
    return [(n, t) for n, t in out if not t.requires_grad]
