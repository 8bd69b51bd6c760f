"""The history of a run as charts: the loss large, the rest small."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from allformer import config
from allformer.config.head import words_of
from allformer.explain.charts import Chart, Points, Series, line_chart, rows_to_points, smooth, thin
from allformer.explain.headline import figure_name
from allformer.explain.words import WORDS, Pair, sentences, word

Rows = Sequence[Mapping[str, Any]]

# name: the key in metrics.jsonl, the title, the unit, whether to smooth
SMALL = {
    "lr": ("rate", "chart.lr", "chart.plain", False),
    "tokens": ("tokens_per_second", "chart.tokens", "chart.tokens.unit", True),
    "norm": ("gradient_norm", "chart.norm", "chart.plain", True),
    "peak": ("peak_share", "chart.peak", "chart.share.peak", True),
    "wait": ("data_wait", "chart.wait", "chart.share", False),
    "exact": ("validation_exact", "chart.exact", "chart.percent", False),
    # of runs that learn from their own answers
    "spread": ("reward_std", "chart.spread", "chart.plain", True),
    "clipped": ("clipped", "chart.clipped", "chart.share.tokens", True),
    "entropy": ("entropy", "chart.entropy", "chart.entropy.unit", True),
    "value": ("value_loss", "chart.value", "chart.plain", True),
    "explained": ("explained", "chart.explained", "chart.explained.unit", True),
    "price": ("kl_coef", "chart.price", "chart.plain", False),
}
_SHOWN = ("validation_nll", "validation_exact")  # elsewhere
_HELD = "validation_"


def charts(history: Rows, unit: str = "chart.loss.unit", speed: str = "tokens") -> dict[str, Chart]:
    """The charts that the history has rows for, by name; `speed` is in tokens or in pictures."""
    found = {}
    if (loss := loss_chart(history, unit)) is not None:
        found["loss"] = loss
    found |= _terms(history) | _figures(history)
    for name, (key, title, unit, noisy) in SMALL.items():
        points = rows_to_points(history, key)
        unit = f"chart.{speed}.unit" if name == "tokens" else unit
        if len(points) > 1:
            plain = [Series("series.value", "value", thin(points))]
            series = _noisy(points, "value") if noisy else plain
            found[name] = line_chart(name, word(title), word(unit), series, css="small")
    return found


def loss_chart(
    history: Rows, unit: str = "chart.loss.unit", name: str = "loss", css: str = ""
) -> Chart | None:
    """The loss of training and of validation; None where there is none. `name` is the page's."""
    series = _loss(history)
    if not series:
        return None
    return line_chart(name, word("chart.loss"), word(unit), series, log=True, css=css)


def loss_unit(model: config.Model, history: Rows = ()) -> str:
    """The key of the words for what the loss is counted in."""
    if _says_words(model, history):
        return "chart.loss.unit"
    return "chart.loss.labels" if _classes(model) else "chart.plain"


def about_loss(history: Rows, model: config.Model) -> Pair:
    """What to know when reading the loss."""
    told = [word("curves.any")]
    if _says_words(model, history):
        vocab = model.writer.source.vocab
        uniform = f"ln {vocab:,} = {math.log(vocab):.2f}"
        told = [word("curves.intro", vocab=f"{vocab:,}", uniform=uniform)]
    elif labels := _classes(model):
        uniform = f"ln {labels:,} = {math.log(labels):.2f}"
        told = [word("curves.labels", labels=f"{labels:,}", uniform=uniform)]
    if _has_dropout(model) and not _compares(history):
        told.append(word("curves.dropout"))
    if not rows_to_points(history, "nll"):
        told.append(word("curves.smoothing"))
    return sentences(*told)


def _says_words(model: config.Model, history: Rows) -> bool:
    """Whether the loss is the likelihood of words."""
    return words_of(model.head) is not None and not _compares(history)


def _compares(history: Rows) -> bool:
    """Whether answers were compared or judged, which is done without dropout: `dpo`, `kto`,
    `reward`, `grpo`, `ppo`."""
    return any(rows_to_points(history, key) for key in ("preference_accuracy", "reward"))


def _classes(model: config.Model) -> int:
    """Labels of which one is right; 0: the head is another, or several may be right."""
    head = model.head
    if not isinstance(head, config.ClassHead) or len(head.labels) < 2:
        return 0
    return len(head.labels) if head.problem in (None, "single_label_classification") else 0


def _has_dropout(model: config.Model) -> bool:
    parts: list[Any] = list(model.stacks.values())
    for stack in model.stacks.values():
        for block in stack.blocks:
            parts += [block, block.attention, block.cross, block.feed]
    return any(part is not None and part.dropout for part in parts)


def _terms(history: Rows) -> dict[str, Chart]:
    """Of a loss that is a sum: each of its terms."""
    found = {}
    keys = sorted({key for row in history for key in row if key.startswith("nll_")})
    for key in keys:
        series = _pair(rows_to_points(history, key), rows_to_points(history, _HELD + key))
        if series:
            name = key.removeprefix("nll_")
            term = f"chart.term.{name}"
            title = word(term) if term in WORDS else word("chart.term", name=name)
            found[key] = line_chart(key, title, word("chart.plain"), series, css="small")
    return found


def _figures(history: Rows) -> dict[str, Chart]:
    """Every other figure of validation, with the same of training where it has one."""
    found = {}
    keys = dict.fromkeys(key for row in history for key in row if key.startswith(_HELD))
    for number, key in enumerate(keys):
        name = key.removeprefix(_HELD)
        points = rows_to_points(history, key)
        if key in _SHOWN or name.startswith("nll_") or len(points) < 2:
            continue
        series = _pair(rows_to_points(history, name), points)
        title = figure_name(name)
        # A figure may be called anything: the chart's own name is a number.
        plot = f"figure-{number}"
        unit = word("chart.validation" if len(series) == 1 else "chart.plain")
        found[plot] = line_chart(plot, title, unit, series, css="small")
    return found


def _loss(history: Rows) -> list[Series]:
    # nll is the plain loss, without label smoothing: the one that validation can be compared with
    train = rows_to_points(history, "nll") or rows_to_points(history, "loss")
    return _pair(train, rows_to_points(history, "validation_nll"))


def _pair(train: Points, validation: Points) -> list[Series]:
    series = _noisy(train, "train") if len(train) > 1 else []
    if len(validation) > 1:
        series.append(Series("series.validation", "validation", thin(validation), "dots"))
    return series


def _noisy(points: Points, css: str) -> list[Series]:
    key = "series.train" if css == "train" else "series.value"
    return [
        Series("series.raw", css, thin(points), "faint"),
        Series(key, css, thin(smooth(points))),
    ]
