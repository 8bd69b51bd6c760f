"""What to take, in one line, from what was measured."""

from __future__ import annotations

from collections.abc import Mapping

from allformer.bench.row import Row

WORTH = 1.1  # so much faster or smaller than full attention, or it is not worth the change


def advice(rows: Mapping[str, Row], trained: bool) -> str:
    """The nearest of those that are faster or smaller than full attention; of fresh weights, whose
    nearness says nothing, the fastest. `rows` by mechanism, with `full` among them."""
    full = rows["full"]
    measured = [row for row in rows.values() if row.measured and row is not full]
    others = [row for row in measured if not row.whole]
    if not others and measured:
        return "stay with full attention: at this length all that was measured is the same"
    if not others:
        return "nothing but full attention could be measured"
    if not full.measured:
        best = min(others, key=_seconds)
        return f"take {best.mechanism}, the fastest; full attention cannot be run here"
    gains = [row for row in others if _gains(row, full)]
    if not gains:
        return "stay with full attention: nothing is faster or smaller by a tenth"
    own = [row for row in gains if not row.fresh]
    judged = trained and bool(own)
    best = min(own, key=lambda row: row.error or 0.0) if judged else min(gains, key=_seconds)
    speed, size = _seconds(full) / _seconds(best), _peak(best) / _peak(full)
    text = (
        f"take {best.mechanism}: {speed:.1f} × as fast as full attention, {size:.2f} of its memory"
    )
    if judged:
        return f"{text}, and of those that gain the nearest to it (error {best.error:.2g})"
    return f"{text}; of weights that are not trained nearness says nothing: this is the fastest"


def _gains(row: Row, full: Row) -> bool:
    faster = _seconds(full) / _seconds(row) >= WORTH
    return faster or _peak(full) / _peak(row) >= WORTH


def _seconds(row: Row) -> float:
    assert row.seconds is not None
    return row.seconds


def _peak(row: Row) -> float:
    assert row.peak_bytes is not None
    return float(max(1, row.peak_bytes))
