"""A mask by itself: a tensor, or a function that makes one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from allformer.auditor.mask_doctor import Mask
from allformer.auditor.mask_doctor import mask as read_mask
from allformer.auditor.report import Finding
from allformer.errors import AuditError


def mask_maker(module: Any, state: Any) -> Iterator[Finding]:
    """A tensor, or something that makes one from a length or from ids."""
    tensor, how, keep = _make_mask(module, state["pad"])
    state["report"].inferred.append(how)
    if tensor.is_floating_point() and bool(tensor.isnan().any()):
        yield Finding(
            "mask.blind_rows",
            f"the mask itself holds {int(tensor.isnan().sum())} NaN of {tensor.numel()} numbers "
            f"(0 × −inf?): every score they are added to becomes NaN",
        )
        return
    doctor = read_mask(tensor)
    state["report"].notes += [
        str(doctor).split("\n")[0],
        *(f"doctor: {w}" for w in doctor.warnings),
    ]
    skipped = state["report"].not_applicable
    for warning in doctor.warnings:
        if "float mask of 0 and 1" in warning:
            yield Finding("mask.ambiguous", warning)
        elif "hidden entries are only" in warning:
            yield Finding("mask.finite", warning)
        elif "rows see nothing" in warning and keep is None:
            yield Finding("mask.blind_rows", warning)
    if keep is None:
        for name in ("mask.future_leak", "padding.ignored", "padding.query_axis"):
            skipped[name] = "a mask alone: give what makes it from ids, and pad="
    else:
        yield from _padding(doctor.visible, keep)
    yield from _causal_shape(doctor)


def _padding(visible: Tensor, keep: Tensor) -> Iterator[Finding]:
    """Row 0 has no padding, row 1 has some in its middle: real tokens must not see it."""
    n = keep.shape[1]
    if visible.shape[0] != keep.shape[0] or visible.shape[-2:] != (n, n):
        return
    full, m = (visible[i].reshape(-1, n, n)[0] for i in (0, 1))
    real, pad = keep[1], ~keep[1]
    seen = m[real][:, pad]
    if not bool(seen.any()):
        return
    lower = torch.ones(n, n, dtype=torch.bool).tril()
    if bool(full.all()) and torch.equal(m[:, pad], lower[:, pad]) and bool(m[:, real].all()):
        yield Finding(
            "mask.future_leak",
            f"without padding all {full.numel()} pairs are open, with it only padding is hidden "
            f"from earlier positions: the two masks are joined by “or”, “and” is needed",
        )
    elif not bool(m[pad].any()):
        yield Finding(
            "padding.query_axis",
            f"the {int(pad.sum())} rows of padding see nothing, while real positions see its "
            f"columns ({int(seen.sum())} pairs): the padding is on the query axis",
        )
    else:
        yield Finding(
            "padding.ignored", f"real positions may see padding ({int(seen.sum())} pairs)"
        )


def _causal_shape(doctor: Mask) -> Iterator[Finding]:
    visible = doctor.visible
    if visible.ndim < 2 or visible.shape[-1] != visible.shape[-2] or visible.shape[-1] < 3:
        return
    m = visible.reshape(-1, *visible.shape[-2:])[0]
    full = torch.ones_like(m)
    certain = doctor.like == "additive"  # −inf is hidden, whoever reads it
    for wrong, words in ((full.tril(1), "one later position is seen"),
                         (full.tril(-1), "no position sees itself")):  # fmt: skip
        # a boolean mask read either way round: off by one is off by one in both conventions
        if torch.equal(m, wrong) or (torch.equal(~m, wrong) and not certain):
            yield Finding("mask.off_by_one", f"{int(m.sum())} of {m.numel()} pairs: {words}")
            return
    if torch.equal(m, full.triu()) or (torch.equal(m, full.triu(1)) and certain):
        yield Finding(
            "mask.inverted",
            f"position t sees the later ones only ({int(m.triu(1).sum())} later, "
            f"{int(m.tril(-1).sum())} earlier pairs)",
        )


def _make_mask(module: Any, pad: int | None) -> tuple[Tensor, str, Tensor | None]:
    """The mask, how it was made, and where its ids were real (row 1 has padding in its middle)."""
    if isinstance(module, Tensor):
        return module, "a tensor", None
    ids = torch.randint(4, 30, (3, 7), generator=torch.Generator().manual_seed(0))
    keep = torch.ones(3, 7, dtype=torch.bool)
    if pad is not None:
        keep[1, 2:4] = False
        ids = ids.masked_fill(~keep, pad)
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
            return out, how, keep if arguments[0] is ids and pad is not None else None
    raise AuditError(f"no mask came back; tried {'; '.join(problems)[:300]}")
