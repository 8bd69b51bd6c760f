"""Is a part a norm, and by which formula?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from allformer.auditor.probe import duplicate
from allformer.auditor.report import Finding


def could_be(m: nn.Module) -> bool:
    """Parameters, but no matrix among them."""
    own = list(m.parameters())
    return bool(own) and not any(p.ndim > 1 and min(p.shape) > 1 for p in own)


@torch.no_grad()
def judge(where: str, module: nn.Module, x: Tensor, sure: bool = False) -> Finding | bool:
    """A finding; True for a sound norm; False for something that is no norm."""
    norm = duplicate(module).eval()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype) * 2 + 0.7
    try:
        for p in norm.parameters():  # no gain, no shift: the bare norm
            p.fill_(1.0 if float(p.mean()) > 0.5 else 0.0)
        y, big, bigger = norm(x), norm(8 * x), norm(64 * x)
    except Exception:
        return False
    if not isinstance(y, Tensor) or y.shape != x.shape:
        return False
    size = float(y.abs().mean()) + 1e-30
    inverse = float((64 * bigger - 8 * big).abs().max()) < 0.01 * float((8 * big).abs().mean())
    if inverse and float(big.abs().max()) > 0 and not _locality(norm, x, y):
        return Finding(
            "norm.variance",
            f"an input 8 times as large gives an output {float(big.abs().mean() / bigger.abs().mean()):.1f} "  # noqa: E501
            f"times smaller (mean square {float(y.pow(2).mean()):.3g}, then "
            f"{float(bigger.pow(2).mean()):.3g}): it is divided by the variance, not by its root",
            where,
        )
    invariant = float((bigger - big).abs().max()) < 0.05 * size
    if not invariant and not sure:
        return False
    stray = _locality(norm, x, y)
    if stray:
        return Finding("norm.axis", stray, where)
    width = x.shape[-1]
    mean = float(y.mean(-1).abs().max())
    power = float(y.pow(2).mean(-1).mean())
    root = x / x.pow(2).mean(-1, keepdim=True).sqrt()
    centred = x - x.mean(-1, keepdim=True)
    layer = centred / centred.pow(2).mean(-1, keepdim=True).sqrt()
    if not sure and min(abs(power - 1), abs(power * width - 1)) > 0.3:
        return False  # an l2 normalisation or something else of its own
    gain = any(p.numel() == width for p in norm.parameters())
    if not sure and abs(power * width - 1) < 0.01 and width > 2 and not gain:
        return False
    at = where if where else "the module"
    for target in (root, layer):
        if float((bigger - target).abs().max()) < 5e-3:
            return _epsilon(where, norm, x)
    unbiased = layer * ((width - 1) / width) ** 0.5
    if float((bigger - unbiased).abs().max()) < 5e-3:
        return Finding(
            "norm.variance",
            f"the mean square of {at}'s output is {power:.4f} = (n − 1)/n with n = {width}: the "
            f"variance is the unbiased one",
            where,
        )
    return Finding(
        "norm.variance",
        f"the output has mean {mean:.3g} and mean square {power:.4g} over the features; LayerNorm "
        f"gives 0 and 1, RMSNorm a mean square of 1",
        where,
    )


def _locality(norm: nn.Module, x: Tensor, y: Tensor) -> str:
    moved = x.clone()
    moved[0, 1] += torch.linspace(-3, 3, x.shape[-1], dtype=x.dtype).cos() * 3
    gap = (norm(moved) - y).abs().amax(-1)
    gap[0, 1] = 0
    if float(gap.max()) < 1e-6 * (1 + float(y.abs().max())):
        return ""
    row, t = (int(i) for i in (gap == gap.max()).nonzero()[0])
    return (
        f"changing position 1 of row 0 moves position {t} of row {row} by {float(gap.max()):.3g}: "
        f"the statistics run over {'rows of the batch' if row else 'positions'}"
    )


def _epsilon(where: str, norm: nn.Module, x: Tensor) -> Finding | bool:
    """ε from inputs of small variance: y² = v/(v + ε) under the root, v/(√v + ε)² beside it."""
    unit = x - x.mean(-1, keepdim=True)
    unit = unit / unit.pow(2).mean(-1, keepdim=True).sqrt()
    found = []
    for exponent in range(-1, -9, -1):
        v = 10.0**exponent
        y2 = float(norm(unit * v**0.5).pow(2).mean())
        if 0 < y2 < 0.99:
            found.append((v, y2))
    constant = norm(torch.zeros_like(x))
    if not bool(torch.isfinite(constant).all()):
        return Finding("norm.epsilon", "a constant input gives NaN: there is no epsilon", where)
    inside = [v * (1 / y2 - 1) for v, y2 in found]
    if inside and max(inside) > 2e-3:
        return Finding(
            "norm.epsilon",
            f"epsilon is about {inside[0]:.2g}: with a variance of {found[0][0]:.0e} the output's "
            f"mean square is {found[0][1]:.3f} instead of 1",
            where,
        )
    if len(inside) >= 2 and max(inside) > 3 * min(inside):
        beside = [(v / y2) ** 0.5 - v**0.5 for v, y2 in found]
        if max(beside) < 1.5 * min(beside):
            return Finding(
                "norm.epsilon",
                f"epsilon ({beside[0]:.2g}) is added to the standard deviation, not the variance",
                where,
            )
    return True
