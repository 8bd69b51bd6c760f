"""A comparison as a picture: time, memory and error of each mechanism, a bar each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from allformer.bench.long import Comparison

FULL, OTHER, FRESH = "#9a9a9a", "#4c78a8", "#b9cbe0"


def draw(found: Comparison, path: Path) -> None:
    """Write a PNG: `draw(compare(model, 4096), Path("long.png"))`. Shorter bars are better."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    rows = [row for row in found.rows.values() if row.measured]
    names = [row.mechanism + (" *" if row.fresh else "") for row in rows]
    panels = {
        "milliseconds": [1000 * (row.seconds or 0) for row in rows],
        "peak memory, MiB": [(row.peak_bytes or 0) / 2**20 for row in rows],
        "error against full attention": [row.error or 0 for row in rows],
    }
    figure = Figure(figsize=(11, 1.5 + 0.34 * len(rows)), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True)
    colors = [FULL if i == 0 else FRESH if row.fresh else OTHER for i, row in enumerate(rows)]
    for ax, (title, values) in zip(axes, panels.items(), strict=True):
        _bars(ax, title, names, values, colors)
    work = "forward and backward" if found.train else "forward"
    figure.suptitle(
        f"{found.length:,} tokens, {work}, {found.dtype} on {found.device}", x=0.01, ha="left"
    )
    if any(row.fresh for row in rows):
        figure.supxlabel("* with fresh weights among its own", x=0.01, ha="left", fontsize=8)
    figure.savefig(path, dpi=120, format="png")


def _bars(ax: Any, title: str, names: list[str], values: list[float], colors: list[str]) -> None:
    bars = ax.barh(names, values, color=colors, height=0.7)
    ax.bar_label(bars, labels=[*map(_figure, values)], padding=3, fontsize=8)
    ax.set_title(title, fontsize=10, loc="left")
    ax.set_xlim(0, 1.22 * max(*values, 1e-9))
    if not ax.yaxis_inverted():  # the panels share it
        ax.invert_yaxis()
    ax.locator_params(axis="x", nbins=5)  # small errors have long numbers
    ax.tick_params(axis="x", labelsize=7)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
