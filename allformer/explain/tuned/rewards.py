"""What was gained, and how far the model went for it: the reward over the divergence from where it
began, validation by validation.

A reward that rises while the divergence stays small was found near the model as it was; one that
needs more and more of it is being hunted (Gao et al., 2023).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allformer.explain.charts import Axis, Chart, Points, frame, linear, rows_to_points, short
from allformer.explain.charts import ticks as ticks_of
from allformer.explain.words import Pair, joined, spans, word

Rows = Sequence[Mapping[str, Any]]
# What is gained, and its divergence, in metrics.jsonl: the first two that a run has.
GAINS = (
    ("validation_reward", "validation_kl", "reward.reward"),
    ("reward", "kl", "reward.reward.train"),
    ("validation_margin", "validation_kl", "reward.margin"),
)


def reward_chart(history: Rows) -> Chart | None:
    """Reward over divergence; None where a run has not both of them twice."""
    for gain, far, title in GAINS:
        gained, went = (dict(rows_to_points(history, key)) for key in (gain, far))
        steps = sorted(gained.keys() & went.keys())
        if len(steps) > 1:
            return _chart(word(title), [(went[n], gained[n]) for n in steps], steps)
    return None


def _chart(title: Pair, points: Points, steps: Sequence[float]) -> Chart:
    xs, ys = zip(*points, strict=True)
    x, y = linear(min(0.0, *xs), max(xs), 4), linear(min(0.0, *ys), max(ys), 4)
    svg = (
        '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">'
        f"{_path(points, x, y)}</svg>"
    )
    (far, gain), (far_end, gain_end) = points[0], points[-1]
    told = f"{short(gain)} → {short(gain_end)}, KL {short(far)} → {short(far_end)}"
    name = joined(title, (told, told), by=": ")
    plot = frame(svg, "reward-kl", name, ticks_of(x), ticks_of(y), word("reward.axis"))
    html = (
        f'<figure class="chart gained"><figcaption><b>{spans(title)}</b> '
        f'<span class="unit">{spans(word("reward.unit"))}</span>'
        f'<output aria-live="polite"></output></figcaption>{plot}'
        f'<p class="note">{spans(word("reward.intro"))}</p></figure>'
    )
    read = [[[float(f"{a:.4g}"), float(f"{b:.4g}")] for a, b in points],
            [[float(f"{a:.4g}"), n] for (a, _), n in zip(points, steps, strict=True)]]  # fmt: skip
    series = [{"name": title, "points": read[0]}, {"name": word("chart.step"), "points": read[1]}]
    return Chart(html, {"x": [x.low, x.high], "series": series, "far": True})


def _path(points: Points, x: Axis, y: Axis) -> str:
    """Dots in the order of training, joined; the first is hollow, the last is full."""
    places = [(1000 * x.place(a), 1000 - 1000 * y.place(b)) for a, b in points]
    grid = "".join(f"M0 {1000 - 1000 * y.place(v):.1f}H1000" for v in y.ticks)
    grid += "".join(f"M{1000 * x.place(v):.1f} 0V1000" for v in x.ticks)
    line = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in places)
    (a, b), (c, d) = places[0], places[-1]
    return (
        f'<path class="grid" d="{grid}"/><path class="line train" d="{line}"/>'
        f'<path class="dot train" d="{dots}"/><path class="begin" d="M{a:.1f} {b:.1f}h0"/>'
        f'<path class="end" d="M{c:.1f} {d:.1f}h0"/>'
    )
