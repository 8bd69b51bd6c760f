"""Compare two runs intermediate by intermediate, and name the first that differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from allformer.core.layout import Packed
from allformer.core.taps import listen


def first_divergence(
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    tol: float = 1e-10,
    keep: Mapping[str, Tensor] | None = None,
) -> str | None:
    """`encoder.1.feed.inner differs by 0.3` for the first name of both, in a's order; or None.

    `keep` gives the attention_mask of "encoder" and "decoder": padding is not compared.
    """
    common = [name for name in a if name in b]
    assert common, f"nothing to compare: {sorted(a)[:4]} … against {sorted(b)[:4]} …"
    for name in common:
        x, y = a[name].double(), b[name].double()
        try:
            x, y = torch.broadcast_tensors(x, y)
        except RuntimeError:
            return f"{name} has the shape {tuple(x.shape)} against {tuple(y.shape)}"
        if keep is not None:
            x, y = only_real(name, x, keep), only_real(name, y, keep)
        off = (x - y).abs()
        if not bool((off <= tol * (1 + y.abs())).all()):  # a NaN is no match
            return f"{name} differs by {off.max().item():.3g}"
    return None


def assert_same(
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    tol: float = 1e-10,
    keep: Mapping[str, Tensor] | None = None,
) -> None:
    """Fail with the first divergence as the message."""
    found = first_divergence(a, b, tol, keep)
    assert found is None, found


def only_real(name: str, x: Tensor, keep: Mapping[str, Tensor]) -> Tensor:
    """Zeros wherever a value belongs to a padding token; names tell which axes are tokens."""
    side, *_, step = name.split(".")
    own = keep.get(side, keep.get("decoder", keep.get("encoder"))).bool()  # type: ignore[union-attr]
    across = keep["encoder"].bool() if ".cross." in name else own
    if x.ndim == 3:  # B T dim
        return x.where(own[:, :, None], 0.0)
    if x.ndim == 4:  # B H T D, or B H T S
        x = x.where((across if step in ("k", "v") else own)[:, None, :, None], 0.0)
        return x.where(across[:, None, None, :], 0.0) if step in ("scores", "weights") else x
    return x  # T dim: positions are the same for every row


def packed_trace(run: Callable[[], Any], layouts: Mapping[str, Packed]) -> dict[str, Tensor]:
    """Every tap of a packed run, laid back on the grid so that it compares."""
    seen: dict[str, Tensor] = {}

    def record(name: str, x: Tensor) -> None:
        side = name.split(".")[0]
        if side not in layouts:
            return
        if x.ndim == 4:  # inside attention: on the grid already
            seen[name] = x.detach()
            return
        seen[name] = layouts[side].to_grid(x.detach())

    with listen(record):
        run()
    return seen
