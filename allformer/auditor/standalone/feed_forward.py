"""A feed-forward layer by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from allformer.auditor.infer.first_run import widths
from allformer.auditor.probe import duplicate, make_loud
from allformer.auditor.report import Finding
from allformer.auditor.standalone.attempt import normal, output
from allformer.errors import AuditError


def feed(module: Any, state: Any) -> Iterator[Finding]:
    """A feed-forward layer works on each position of each row by itself."""
    twin = make_loud(duplicate(module).double().eval(), 1)
    for width in widths(twin):
        x = normal(3, 7, width).double()
        out = output(twin, x)
        if out is None or out.shape[:2] != x.shape[:2]:
            continue
        state["report"].inferred.append(f"called with vectors (3, 7, {width})")
        moved = x.clone()
        moved[1, 3] += 1
        gap = (output(twin, moved) - out).abs().amax(-1)  # type: ignore[operator]
        gap[1, 3] = 0
        if float(gap[[0, 2]].max()) > 1e-9:
            yield Finding("batch.mixing", f"changing row 1 moves another by {float(gap.max()):.3g}")
        elif float(gap.max()) > 1e-9:
            yield Finding(
                "norm.axis", f"changing position 3 moves another by {float(gap.max()):.3g}"
            )
        return
    raise AuditError("the layer could not be called with vectors (B, T, D)")
