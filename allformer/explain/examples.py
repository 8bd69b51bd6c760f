"""What a model said of held-out examples, as HTML: the examples, who is mistaken for whom, and
whether it is as sure as it is right."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from allformer.explain.charts import Chart, frame, short
from allformer.explain.samples import SHOWN, differences, folded
from allformer.explain.words import Pair, joined, spans, word
from allformer.train.predictions import Prediction, Predictions

LABELS = 24  # rows of a table that a page can hold
_TICKS = [(x / 4, f"{x / 4:g}") for x in range(5)]


def example_list(predictions: Predictions) -> str:
    """The examples, mistakes first, though not mistakes alone; the rest folds away."""
    wrong = [row for row in predictions.rows if row.right is False]
    others = [row for row in predictions.rows if row.right is not False]
    first = min(len(wrong), max(SHOWN // 2, SHOWN - len(others)))
    rows = [*wrong[:first], *others[: SHOWN - first], *wrong[first:], *others[SHOWN - first :]]
    if not rows:
        return f"<p>{spans(word('samples.none'))}</p>"
    judged = [row.right for row in rows if row.right is not None]
    told = word("examples.right", right=sum(judged), shown=len(judged))
    html = f"<p>{spans(told)}</p>" if judged else ""
    return html + folded(rows, _items)


def title_of(predictions: Predictions) -> str:
    """The section's heading, as a key of `words`."""
    return "examples.compared" if _compares(predictions) else "examples.title"


def _compares(predictions: Predictions) -> bool:
    return any(row.before is not None for row in predictions.rows)


def about_examples(predictions: Predictions) -> Pair:
    """What to know when reading them."""
    if _compares(predictions):
        answered = any(row.wanted for row in predictions.rows)
        return word("examples.compare" if answered else "examples.compare.own")
    judged = any(row.right is not None for row in predictions.rows)
    return word("examples.intro" if judged or not predictions.rows else "examples.open")


def _items(rows: Sequence[Prediction]) -> str:
    return f'<ol class="samples">{"".join(map(_item, rows))}</ol>'


def _item(row: Prediction) -> str:
    given, wanted = escape(row.given), escape(row.wanted)
    sign, css, verdict = {
        True: ("✓", "right", "examples.is_right"),
        False: ("✗", "wrong", "examples.is_wrong"),
        None: ("·", "open", ""),
    }[row.right]
    if row.right is False:
        given, wanted = differences(row.given.strip(), row.wanted.strip())
    if row.before is not None:
        return _compared(row)
    lines = _line("examples.input", escape(row.input), "source")
    lines += _line("examples.given", given or f"<i>{spans(word('samples.empty'))}</i>", "output")
    if row.right is not True:
        key = "examples.goes_on" if row.right is None else "examples.wanted"
        lines += _line(key, wanted or f"<i>{spans(word('samples.empty'))}</i>", "reference")
    told = [word(verdict)] if verdict else []
    if row.score is not None:
        told.append(word("examples.sure", percent=f"{row.score:.0%}"))
    return (
        f'<li class="{css}"><span class="sign" aria-hidden="true">{sign}</span><dl>{lines}</dl>'
        f'<span class="verdict">{spans(joined(*told, by=" · "))}</span></li>'
    )


def _compared(row: Prediction) -> str:
    """What was said before and after training, side by side, and what the data says, if it does."""
    texts = {"before": row.before or "", "after": row.given}
    if row.wanted:
        texts["answer"] = row.wanted
    empty = f"<i>{spans(word('samples.empty'))}</i>"
    rewards: tuple[float | None, ...] = (*(row.rewards or (None, None)), None)[: len(texts)]
    sides = "".join(
        f"<div>{_line(f'examples.{name}', escape(text) or empty, 'answer')}{_reward(x)}</div>"
        for (name, text), x in zip(texts.items(), rewards, strict=True)
    )
    asked = _line("examples.input", escape(row.input), "source")
    return (
        f'<li class="open"><span class="sign" aria-hidden="true">·</span><div><dl>{asked}</dl>'
        f'<dl class="sides" style="--sides:{len(texts)}">{sides}</dl></div></li>'
    )


def _reward(value: float | None) -> str:
    if value is None:
        return ""
    return f'<dd class="reward">{spans(word("wins.reward", value=short(value)))}</dd>'


def _line(key: str, html: str, css: str) -> str:
    return f'<dt>{spans(word(key))}</dt><dd class="{css} text" dir="auto">{html}</dd>'


# --- mistakes -------------------------------------------------------------------------------------


def confusion_table(predictions: Predictions) -> str:
    """Rows of right labels, columns of given ones; nothing where there is no such table."""
    labels, counts = predictions.labels, predictions.confusion
    if not counts:
        return ""
    order = sorted(range(len(labels)), key=lambda i: -sum(counts[i]))[:LABELS]
    keep = sorted(order)
    head = "".join(f'<th scope="col"><span>{escape(labels[j])}</span></th>' for j in keep)
    body = ""
    for i in keep:
        total = max(1, sum(counts[i]))
        cells = "".join(_cell(counts[i][j], total, i == j) for j in keep)
        body += f'<tr><th scope="row">{escape(labels[i])}</th>{cells}</tr>'
    rest = ""
    if len(keep) < len(labels):
        told = word("confusion.rest", shown=len(keep), all=len(labels))
        rest = f'<p class="note">{spans(told)}</p>'
    return (
        f"<h3>{spans(word('confusion.title'))}</h3><p>{spans(word('confusion.intro'))}</p>"
        f'<div class="wide"><table class="confusion"><thead><tr>'
        f'<th class="corner">{spans(word("confusion.corner"))}</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{rest}"
    )


def _cell(count: int, total: int, right: bool) -> str:
    if not count:
        return '<td class="none">·</td>'
    css, share = ("right" if right else "wrong"), 100 * count / total
    return f'<td class="{css}" style="--share:{share:.0f}%"><b>{count:,}</b></td>'


def calibration_chart(predictions: Predictions) -> Chart | None:
    """How often what was said so surely is right; None where nothing was counted."""
    bins = predictions.calibration
    points = [(score, right, n) for n, score, right in bins if n]
    if len(points) < 2:
        return None
    width, most = 1000 / len(bins), max(n for *_, n in points)
    bars = "".join(
        f'<rect class="bar" x="{1000 * score - width * 0.4:.1f}" y="{1000 - 1000 * right:.1f}" '
        f'width="{width * 0.8:.1f}" height="{1000 * right:.1f}" '
        f'fill-opacity="{0.25 + 0.75 * n / most:.2f}"/>'
        for score, right, n in points
    )
    grid = "".join(f"M0 {1000 - 1000 * y:.0f}H1000" for y, _ in _TICKS)
    svg = (
        '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="grid" d="{grid}"/>{bars}<path class="honest" d="M0 1000L1000 0"/></svg>'
    )
    title, axis = word("calibration.title"), word("calibration.axis")
    plot = frame(svg, "calibration", title, _TICKS, _TICKS, axis)
    html = (
        f'<figure class="chart calibration"><figcaption><b>{spans(title)}</b> '
        f'<span class="unit">{spans(word("calibration.unit"))}</span>'
        f'<output aria-live="polite"></output></figcaption>{plot}'
        f'<p class="note">{spans(word("calibration.intro"))}</p></figure>'
    )
    read = [[round(score, 3), round(right, 3)] for score, right, _ in points]
    series = [{"name": word("series.right"), "points": read}]
    return Chart(html, {"x": [0, 1], "series": series, "sure": True})
