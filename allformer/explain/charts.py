"""Line charts as inline SVG that keep their text at one size on every screen.

The picture is stretched to its box (`preserveAspectRatio="none"`, strokes do not scale); the ticks
are HTML, placed by per cent. The same frame holds heat maps, whose picture is a PNG.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allformer.explain.words import Pair, joined, label, spans, word

Points = list[tuple[float, float]]
Tick = tuple[float, str]  # place in 0 … 1 along the axis, text
MOST_POINTS = 400


@dataclass(frozen=True)
class Series:
    """One curve: `css` is its colour, `style` "line", "faint" (not read out) or "dots"."""

    key: str
    css: str
    points: Points
    style: str = "line"


@dataclass(frozen=True)
class Axis:
    """A scale from numbers to 0 … 1 and its ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Where `value` stands between the ends."""
        f: Callable[[float], float] = math.log if self.log else float
        return (f(value) - f(self.low)) / (f(self.high) - f(self.low))


@dataclass(frozen=True)
class Chart:
    """A chart's HTML, and what the page's script needs to read it out."""

    html: str
    data: dict[str, Any]


def rows_to_points(history: Iterable[Mapping[str, Any]], key: str) -> Points:
    """(step, value) of the rows that have `key`; a step that a resumed run repeats counts once."""
    by_step = {
        float(row["step"]): float(row[key])
        for row in history
        if row.get(key) is not None and math.isfinite(row[key]) and "step" in row
    }
    return sorted(by_step.items())


def thin(points: Points, most: int = MOST_POINTS) -> Points:
    """At most about `most` points: means of neighbours, the last one kept as it is."""
    if len(points) <= most:
        return points
    size = math.ceil(len(points) / most)
    groups = [points[i : i + size] for i in range(0, len(points) - 1, size)]
    means = [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]
    return [*((float(round(x)), y) for x, y in means), points[-1]]


def smooth(points: Points, share: float = 0.02) -> Points:
    """A running mean over ± `share` of the points: centred, so that it does not lag behind."""
    reach = max(1, round(len(points) * share))
    out = []
    for i, (x, _) in enumerate(points):
        half = min(reach, i, len(points) - 1 - i)  # shorter at the ends, but always centred
        near = points[i - half : i + half + 1]
        out.append((x, sum(y for _, y in near) / len(near)))
    return out


def line_chart(
    name: str,
    title: Pair,
    unit: Pair,
    series: Sequence[Series],
    *,
    log: bool = False,
    css: str = "",
) -> Chart:
    """A chart of curves over the training steps; `log` where the values span enough for it."""
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    x_axis = linear(0.0, max(xs), 3 if css else 6, whole=True)
    y_axis = (
        logarithmic(min(ys), max(ys)) if log and _wide(ys) else linear(min(0.0, *ys), max(ys), 4)
    )
    if y_axis.log:
        unit = word("chart.log", unit=unit) if unit[0] else word("chart.log.plain")
    picture = _grid(x_axis, y_axis) + "".join(_curve(one, x_axis, y_axis) for one in series)
    svg = (
        '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">'
        f"{picture}</svg>"
    )
    plot = frame(
        svg,
        name,
        joined(title, ends(series), by=". "),
        ticks(x_axis),
        ticks(y_axis),
        word("chart.step"),
    )
    head = f'<b>{spans(title)}</b> <span class="unit">{spans(unit)}</span>'
    html = (
        f'<figure class="chart {css}"><figcaption>{head}{_legend(series)}'
        f'<output aria-live="polite"></output></figcaption>{plot}</figure>'
    )
    return Chart(html, _read_out(series, x_axis))


def frame(
    picture: str, name: str, title: Pair, x: list[Tick], y: list[Tick], x_name: Pair, css: str = ""
) -> str:
    """A picture with ticks: y from the bottom up, or from the top down in a heat map's `css`."""
    up = "top" if css else "bottom"
    across = "".join(f'<span class="x" style="left:{100 * p:.2f}%">{text}</span>' for p, text in x)
    along = "".join(f'<span class="y" style="{up}:{100 * p:.2f}%">{text}</span>' for p, text in y)
    return (
        f'<div class="plot {css}" data-plot="{name}" tabindex="0" role="img" {label(title)}>'
        f'{picture}<i class="cursor" hidden></i>'
        f'<div class="ticks" aria-hidden="true">{across}{along}'
        f'<span class="x-name">{spans(x_name)}</span></div></div>'
    )


def ticks(axis: Axis) -> list[Tick]:
    """An axis' ticks as places and texts."""
    return [(axis.place(value), short(value)) for value in axis.ticks]


def linear(low: float, high: float, about: int, whole: bool = False) -> Axis:
    """An axis with ticks at round numbers."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    step = _round_up((high - low) / about)
    if whole:
        step = max(1.0, step)
    first = math.ceil(low / step - 1e-9)
    values = [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]
    if not whole:  # leave air above the curve
        high += (high - low) * 0.06
    return Axis(low, high, tuple(values))


def logarithmic(low: float, high: float) -> Axis:
    """A logarithmic axis with ticks at 1, 2, 5 or just at powers of ten."""
    low, high = low / 1.15, high * 1.15
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        values = [d * 10.0**k for k in decades for d in digits if low <= d * 10.0**k <= high]
        if len(values) <= 7:
            break
    return Axis(low, high, tuple(values), log=True)


def short(value: float) -> str:
    """0.0005 → "5e-4", 0.25 → "0.25", 12000 → "12,000", 2.5e6 → "2.5M"."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1000:
        return f"{value:,.0f}"
    if size and size < 0.001:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.3g}"


def ends(series: Sequence[Series]) -> Pair:
    """The picture in words: where each curve starts and ends."""
    told = [one for one in series if one.style != "faint"]
    return joined(
        *(
            joined(
                word(one.key),
                (f"{short(one.points[0][1])} → {short(one.points[-1][1])}",) * 2,
                by=": ",
            )
            for one in told
        ),
        by="; ",
    )


def _wide(ys: list[float]) -> bool:
    return min(ys) > 0 and max(ys) / min(ys) > 30


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= value * (1 - 1e-9))


def _grid(x: Axis, y: Axis) -> str:
    rows = "".join(f"M0 {1000 - 1000 * y.place(v):.1f}H1000" for v in y.ticks)
    columns = "".join(f"M{1000 * x.place(v):.1f} 0V1000" for v in x.ticks)
    return f'<path class="grid" d="{rows}{columns}"/>'


def _curve(series: Series, x: Axis, y: Axis) -> str:
    places = [(1000 * x.place(a), 1000 - 1000 * y.place(b)) for a, b in series.points]
    line = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    path = f'<path class="{series.style} {series.css}" d="{line}"/>'
    if series.style == "dots" and len(places) <= 60:
        dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in places)
        path += f'<path class="dot {series.css}" d="{dots}"/>'
    return path


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    items = "".join(
        f'<span class="key {one.style} {one.css}">{spans(word(one.key))}</span>' for one in series
    )
    return f'<span class="legend">{items}</span>'


def _read_out(series: Sequence[Series], x: Axis) -> dict[str, Any]:
    """The numbers behind the curves, rounded to what a reader can use."""
    told = [one for one in series if one.style != "faint"]
    return {
        "x": [x.low, x.high],
        "series": [
            {
                "name": word(one.key) if len(told) > 1 else ["", ""],
                "points": [[round(a), float(f"{b:.4g}")] for a, b in one.points],
            }
            for one in told
        ],
    }
