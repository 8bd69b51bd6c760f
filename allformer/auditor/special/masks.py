"""A mask by itself: a tensor, or a function that makes one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from allformer.auditor.masks import mask as read_mask
from allformer.auditor.report import Finding
from allformer.errors import AuditError


def mask_maker(module: Any, state: Any) -> Iterator[Finding]:
    """A tensor, or something that makes one from a length or from ids."""
    tensor, how, ids = _make_mask(module, state["pad"])
    state["report"].inferred.append(how)
    doctor = read_mask(tensor)
    state["report"].notes += [
        str(doctor).split("\n")[0],
        *(f"doctor: {w}" for w in doctor.warnings),
    ]
    state["report"].not_applicable["mask.future_leak"] = "a mask alone: see off_by_one and inverted"
    for warning in doctor.warnings:
        if "float mask of 0 and 1" in warning:
            yield Finding("mask.ambiguous", "", warning)
        elif "hidden entries are only" in warning:
            yield Finding("mask.finite", "", warning)
        elif "rows see nothing" in warning and ids is None:
            yield Finding("mask.blind_rows", "", warning)
    yield from _causal_shape(doctor.visible)


def _causal_shape(visible: Tensor) -> Iterator[Finding]:
    if visible.ndim < 2 or visible.shape[-1] != visible.shape[-2] or visible.shape[-1] < 3:
        return
    m = visible.reshape(-1, *visible.shape[-2:])[0]
    full = torch.ones_like(m)
    for wrong, words in ((full.tril(1), "one later position is seen"),
                         (full.tril(-1), "no position sees itself")):  # fmt: skip
        # read either way round: off by one is off by one in both conventions
        if torch.equal(m, wrong) or torch.equal(~m, wrong):
            yield Finding("mask.off_by_one", "", f"{int(m.sum())} of {m.numel()} pairs: {words}")
            return
    if torch.equal(m, full.triu()):
        yield Finding(
            "mask.inverted",
            "",
            f"position t sees the later ones only ({int(m.triu(1).sum())} later, "
            f"{int(m.tril(-1).sum())} earlier pairs)",
        )


def _make_mask(module: Any, pad: int | None) -> tuple[Tensor, str, Tensor | None]:
    if isinstance(module, Tensor):
        return module, "a tensor", None
    ids = torch.randint(4, 30, (3, 7), generator=torch.Generator().manual_seed(0))
    if pad is not None:
        ids[0, -2:] = pad
    problems = []
    for arguments, how in (((7,), "called with a length of 7"), ((ids,), "called with ids (3, 7)"),
                           ((ids, pad), "called with ids (3, 7) and the padding id"),
                           ((torch.randn(3, 7, 16),), "called with vectors (3, 7, 16)")):  # fmt: skip  # noqa: E501
        try:
            out = module(*arguments)
        except Exception as error:
            problems.append(f"{how}: {error}")
            continue
        if isinstance(out, Tensor) and out.ndim >= 1:
            return out, how, arguments[0] if isinstance(arguments[0], Tensor) else None
    raise AuditError(f"no mask came back; tried {'; '.join(problems)[:300]}")
