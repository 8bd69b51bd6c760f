"""The history of a run as charts: the loss large, the rest small."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from allformer import config
from allformer.explain.charts import Chart, Points, Series, line_chart, rows_to_points, smooth, thin
from allformer.explain.words import Pair, sentences, word

Rows = Sequence[Mapping[str, Any]]

# name: the key in metrics.jsonl, the title, the unit, whether to smooth
SMALL = {
    "lr": ("rate", "chart.lr", "chart.plain", False),
    "tokens": ("tokens_per_second", "chart.tokens", "chart.tokens.unit", True),
    "norm": ("gradient_norm", "chart.norm", "chart.plain", True),
    "exact": ("validation_exact", "chart.exact", "chart.percent", False),
}


def charts(history: Rows) -> dict[str, Chart]:
    """The charts that the history has rows for, by name."""
    found = {}
    if series := _loss(history):
        found["loss"] = line_chart(
            "loss", word("chart.loss"), word("chart.loss.unit"), series, log=True
        )
    for name, (key, title, unit, noisy) in SMALL.items():
        points = rows_to_points(history, key)
        if len(points) > 1:
            plain = [Series("series.value", "value", thin(points))]
            series = _noisy(points, "value") if noisy else plain
            found[name] = line_chart(name, word(title), word(unit), series, css="small")
    return found


def about_loss(history: Rows, model: config.EncoderDecoder) -> Pair:
    """What to know when reading the loss."""
    vocab = model.decoder.source.vocab
    uniform = f"ln {vocab:,} = {math.log(vocab):.2f}"
    told = [word("curves.intro", vocab=f"{vocab:,}", uniform=uniform)]
    if _has_dropout(model):
        told.append(word("curves.dropout"))
    if not rows_to_points(history, "nll"):
        told.append(word("curves.smoothing"))
    return sentences(*told)


def _has_dropout(model: config.EncoderDecoder) -> bool:
    parts: list[Any] = [model.encoder, model.decoder]
    for block in (*model.encoder.blocks, *model.decoder.blocks):
        parts += [block, block.attention, block.cross, block.feed]
    return any(part is not None and part.dropout for part in parts)


def _loss(history: Rows) -> list[Series]:
    # nll is the plain loss, without label smoothing: the one that validation can be compared with
    train = rows_to_points(history, "nll") or rows_to_points(history, "loss")
    validation = rows_to_points(history, "validation_nll")
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
