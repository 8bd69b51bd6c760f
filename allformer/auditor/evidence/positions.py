"""What changes with the position, and tables that are no buffers."""

from __future__ import annotations

from torch import Tensor, nn

from allformer.auditor.probe import scale_of


def varies(x: Tensor, axis: int) -> float:
    """How much a tensor changes along an axis, relative to its size."""
    return float((x - x.narrow(axis, 0, 1)).abs().max()) / scale_of(x)


def not_toeplitz(scores: Tensor) -> tuple[float, int, int]:
    """The largest difference along a diagonal, relative to the scores, and where."""
    gap = (scores[:, 1:, 1:] - scores[:, :-1, :-1]).abs()
    worst = float(gap.max())
    _, i, j = (int(n) for n in (gap == gap.max()).nonzero()[0])
    return worst / scale_of(scores), i, j


def plain_tensors(module: nn.Module) -> list[tuple[str, nn.Module, str, Tensor]]:
    """Floating tensors that hang on a module without being registered."""
    out = []
    for name, m in module.named_modules():
        for key, value in vars(m).items():
            if key in ("_parameters", "_buffers", "_modules"):
                continue
            values = value if isinstance(value, list | tuple) else [value]
            for v in values:
                if isinstance(v, Tensor) and not isinstance(v, nn.Parameter) and v.numel() > 1:
                    out.append((f"{name}.{key}".lstrip("."), m, key, v))
    return out
