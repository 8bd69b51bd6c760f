"""The statistics of a run (statistics.jsonl) as heat maps: parts of the model by steps."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from allformer.explain.charts import Chart, Tick, frame, short
from allformer.explain.heat import png
from allformer.explain.words import spans, word

Rows = Sequence[Mapping[str, Any]]
MOST_COLUMNS, MOST_ROWS = 120, 80
_PALE = 0.08  # the least shade of a value that is there
_BLOCK = re.compile(r"^(\w+\.\d+)\.\w+$")  # decoder.0.feed_added: a whole layer speaks


def layer_charts(rows: Rows) -> dict[str, Chart]:
    """By name: gradients and steps of weights, spread and extremes of states."""
    rows = _thin(rows)
    if len(rows) < 2:
        return {}
    found = {}
    for what, name in (
        ("weights", "rms"), ("weights", "update"), ("activations", "std"), ("activations", "max"),
    ):  # fmt: skip
        names = list(rows[-1].get(what, {}))
        places = _ends_of_layers(names) if what == "activations" else {n: n for n in names}
        table = _table(rows, what, name, list(places)[:MOST_ROWS])
        if np.isfinite(table).any():
            steps = [int(row["step"]) for row in rows]
            found[f"layers-{name}"] = _map(name, list(places.values())[:MOST_ROWS], steps, table)
    return found


def _thin(rows: Rows) -> Rows:
    step = math.ceil(len(rows) / MOST_COLUMNS)
    return rows[::-step][::-1] if rows else rows  # the last one stays


def _ends_of_layers(names: Sequence[str]) -> dict[str, str]:
    """The last value that each layer gives, and what it is called; in their order."""
    last: dict[str, str] = {}
    for name in names:
        if found := _BLOCK.match(name):
            last[found[1]] = name
    return {name: layer for layer, name in last.items()}


def _table(rows: Rows, what: str, name: str, places: Sequence[str]) -> np.ndarray:
    """places × rows; not a number where there is none, or nothing to take a logarithm of."""
    values = [[row.get(what, {}).get(place, {}).get(name) for row in rows] for place in places]
    table = np.array([[_number(x) for x in line] for line in values], dtype=float)
    return np.where(table > 0, table, np.nan)


def _number(x: Any) -> float:
    return float(x) if isinstance(x, int | float) and math.isfinite(x) else math.nan


def _map(name: str, places: Sequence[str], steps: Sequence[int], table: np.ndarray) -> Chart:
    low, high = float(np.nanmin(table)), float(np.nanmax(table))
    logs = np.log10(table)
    span = math.log10(high) - math.log10(low)
    shades = (logs - math.log10(low)) / span if span > 0.02 else np.full_like(logs, 0.5)
    picture = f'<img alt="" src="{png(np.nan_to_num(_PALE + (1 - _PALE) * shades))}">'
    across: list[Tick] = _columns(steps)
    along = [((i + 0.5) / len(places), escape(place)) for i, place in enumerate(places)]
    title = word(f"layers.{name}")
    key = f"layers-{name}"
    plot = frame(picture, key, title, across, along, word("chart.step"), "heat")
    html = (
        f'<figure class="chart layers" style="--rows:{len(places)}"><figcaption>'
        f'<b>{spans(title)}</b><span class="unit">{spans(word("layers.log"))}</span>'
        f'<span class="scale"><i>{short(low)}</i><i class="ramp"></i><i>{short(high)}</i></span>'
        f'</figcaption>{plot}<output aria-live="polite"></output></figure>'
    )
    values = [[None if math.isnan(x) else float(f"{x:.3g}") for x in line] for line in table]
    data = {"rows": len(places), "columns": len(steps), "names": list(places)}
    return Chart(html, {**data, "steps": list(steps), "values": values})


def _columns(steps: Sequence[int]) -> list[Tick]:
    """About five steps, in the middle of their columns."""
    every = max(1, round(len(steps) / 5))
    return [((k + 0.5) / len(steps), f"{steps[k]:,}") for k in range(0, len(steps), every)]
