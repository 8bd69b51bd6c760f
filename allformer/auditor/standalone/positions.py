"""Positions by themselves: a table that is added, or a rotation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from allformer.auditor.evidence.positions import not_toeplitz, plain_tensors
from allformer.auditor.evidence.sinusoid import equal_or_rising, judge
from allformer.auditor.infer.first_run import widths
from allformer.auditor.probe import distance, duplicate, scale_of
from allformer.auditor.report import Finding
from allformer.auditor.standalone.attempt import normal, output
from allformer.errors import AuditError

LENGTH = 24


def positions(module: Any, state: Any) -> Iterator[Finding]:
    """Additive positions (x → x + PE), a table (T → PE) or a rotation (q → q turned)."""
    twin = duplicate(module).eval() if isinstance(module, nn.Module) else module
    loose = plain_tensors(module) if isinstance(module, nn.Module) else []
    for name, _, _, value in loose:
        if not _follows(module, value):
            yield Finding(
                "positions.buffer",
                f"{name} {tuple(value.shape)} is a plain tensor: .to(), .half() and state_dict "
                f"pass it by",
                name,
            )
            break
    table, how = _table(twin, state["report"])
    state["report"].inferred.append(how)
    if table is None:
        yield from _rotation(twin, state)
        return
    skipped = state["report"].not_applicable
    skipped["positions.rotary"] = "positions are added, not rotated"
    if isinstance(table, str):
        yield Finding("positions.batch_axis", table)
        return
    if float((table - table[:1]).abs().max()) < 1e-6:
        yield Finding("positions.missing", "all positions get the same vector")
        return
    verdict = judge(table)
    if verdict is None:
        skipped["positions.frequencies"] = "the table is not sinusoidal"
        return
    if verdict.note:
        state["report"].notes.append(verdict.note)
    if verdict.wrong:
        yield Finding("positions.frequencies", verdict.wrong)


def _follows(module: nn.Module, value: Tensor) -> bool:
    """Whether forward moves the table itself: run on the meta device as it runs on the CPU."""
    here = duplicate(module).eval().cpu()
    there = duplicate(module).eval().to("meta")
    for arguments in _ways(value.shape[-1]):
        if output(here, *arguments) is None:
            continue
        try:
            with torch.device("meta"):
                there(*(a.to("meta") if isinstance(a, Tensor) else a for a in arguments))
        except Exception as error:
            return not ("meta" in str(error) and "cpu" in str(error))
        return True
    return True


def _ways(width: int) -> Iterator[tuple[Any, ...]]:
    """Arguments that positions may take: vectors, queries and keys, a length, positions."""
    for size in (width, 2 * width):
        for shape in ((2, 5, size), (2, 3, 5, size), (2, 5, 3, size)):
            yield (torch.zeros(shape),)
            yield torch.zeros(shape), torch.zeros(shape)
    yield (5,)
    yield (torch.arange(5),)


def _table(twin: Any, report: Any) -> tuple[Tensor | str | None, str]:
    """(T, D), or words about the batch axis, or None if it is no table."""
    likely = [p.shape[-1] for p in _tensors(twin) if p.ndim >= 2]
    likely += widths(twin)[:4] if isinstance(twin, nn.Module) else []
    likely += [2 * p.shape[0] for p in _tensors(twin) if p.ndim == 1]  # a frequency for each pair
    for width in dict.fromkeys([*likely, 32, 16, 64]):
        x = normal(3, LENGTH, width)
        out = output(twin, x)
        if out is None or out.shape != x.shape:
            if out is not None and out.ndim in (2, 3) and out.shape[-1] == width:
                flat = out.reshape(-1, width) if out.shape[0] == 1 or out.ndim == 2 else out[0]
                if flat.shape[0] == LENGTH:
                    return (
                        flat.double(),
                        f"called with vectors (3, {LENGTH}, {width}); gives a table",
                    )
            continue
        y = normal(3, LENGTH, width) * 0.5 + 0.3
        again = output(twin, y)
        if again is None:
            continue
        zero = output(twin, torch.zeros_like(x))
        gain = _gain(x, y, out, again)
        added = None if zero is None else zero.double()
        if (
            added is None
            or gain is None
            or distance(out, gain * x + added.to(x)) > 1e-4 * scale_of(out)
        ):
            return None, f"called with vectors (3, {LENGTH}, {width}); changes them, not by adding"
        if distance(added[1], added[0]) > 1e-6:
            if distance(added[:, 1:], added[:, :1].expand_as(added[:, 1:])) < 1e-6:
                return (
                    "rows of the batch get different vectors, positions of a row the same one: "
                    "added along the batch axis"
                ), f"called with vectors (3, {LENGTH}, {width})"
            return None, "depends on the row"
        return added[0], f"called with vectors (3, {LENGTH}, {width}); adds a table"
    for argument, words in ((LENGTH, f"called with a length of {LENGTH}"),
                            (torch.arange(LENGTH), f"called with positions 0 … {LENGTH - 1}"),
                            (torch.zeros(2, LENGTH, dtype=torch.long), f"called with ids (2, {LENGTH})")):  # fmt: skip  # noqa: E501
        out = output(twin, argument)
        if out is not None and out.ndim >= 2:
            flat = out.reshape(-1, out.shape[-1])
            if flat.shape[0] % LENGTH == 0:
                return flat[:LENGTH].double(), words
    return None, "called with queries and keys"


def _gain(x: Tensor, y: Tensor, out: Tensor, again: Tensor) -> float | None:
    """The number that x is multiplied by before positions are added (√d in some models)."""
    d_in, d_out = (x - y).flatten(), (out - again).flatten()
    gain = float((d_in * d_out).sum() / (d_in * d_in).sum())
    return gain if distance(d_out, gain * d_in) < 1e-4 * scale_of(d_out) else None


def _tensors(module: Any) -> list[Tensor]:
    if not isinstance(module, nn.Module):
        return []
    loose = [v for _, _, _, v in plain_tensors(module)]
    return [*module.buffers(), *(p.detach() for p in module.parameters()), *loose]


def _rotation(twin: Any, state: Any) -> Iterator[Finding]:
    """One query and one key at every position: q_i·k_j depends on i − j, lengths are kept."""
    skipped = state["report"].not_applicable
    skipped["positions.batch_axis"] = "positions are rotated, not added"
    sizes = [t.shape[-1] for t in _tensors(twin) if t.ndim >= 1]
    for size in dict.fromkeys([*sizes, *(2 * s for s in sizes), 16, 32, 64, 8]):
        if size < 2 or size % 2:
            continue
        for shape, axis in (
            ((1, 2, LENGTH, size), 2),
            ((1, LENGTH, 2, size), 1),
            ((2, LENGTH, size), 1),
        ):
            q = normal(size).expand(shape).clone()
            k = torch.linspace(-1, 1, size).cos().expand(shape).clone()
            pair = _rotated(twin, q, k)
            if pair is None or pair[0].shape != q.shape:
                continue
            a, b = (t.movedim(axis, -2).reshape(-1, LENGTH, size)[:1].double() for t in pair)
            if distance(a, a[:, :1].expand_as(a)) < 1e-6:
                continue
            state["report"].inferred.append(f"called with queries {shape}")
            yield from _judge_rotation(a, b, q)
            return
    raise AuditError(
        "how to call these positions could not be found out; they take vectors (B, T, D), a length, "  # noqa: E501
        "positions, or queries and keys"
    )


def _rotated(twin: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor] | None:
    try:
        with torch.no_grad():
            out = twin(q, k)
        if isinstance(out, tuple) and len(out) == 2 and all(isinstance(t, Tensor) for t in out):
            return out
    except Exception:
        pass
    a, b = output(twin, q), output(twin, k)
    return (a, b) if a is not None and b is not None else None


def _judge_rotation(a: Tensor, b: Tensor, q: Tensor) -> Iterator[Finding]:
    worst, i, j = not_toeplitz(a @ b.transpose(-2, -1))
    if worst > 1e-4:
        yield Finding(
            "positions.rotary",
            f"score({i}, {j}) and score({i + 1}, {j + 1}) of one query and one key differ by "
            f"{worst:.2g} of the scores' size, though i − j is the same",
        )
        return
    lengths = a.norm(dim=-1) / q.reshape(-1, q.shape[-1])[0].double().norm()
    if float((lengths - 1).abs().max()) > 1e-3:
        yield Finding(
            "positions.rotary",
            f"a rotation keeps lengths; here they become {float(lengths.min()):.3g} … "
            f"{float(lengths.max()):.3g} of what they were",
        )
        return
    verdict = equal_or_rising(a[0])
    if verdict:
        yield Finding("positions.frequencies", verdict)
