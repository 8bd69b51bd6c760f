"""A page of several models, each in a section: what it was taught, how well, and what it makes of
pictures or sounds that it never met.

    write_several("demo/report.html", title=…, lead=…, parts=[Part("classifier", …), …], facts={…})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from allformer.core.model import Model
from allformer.explain import examples, headline
from allformer.explain.charts import Chart
from allformer.explain.curves import loss_chart
from allformer.explain.page import paragraphs, write_page
from allformer.explain.report import commands_list, facts_list
from allformer.explain.sound.sounds import about_sounds, sound_list
from allformer.explain.vision.attention import attention_over
from allformer.explain.vision.looks import seeing_stack
from allformer.explain.vision.pictures import about_pictures, picture_list
from allformer.explain.vision.places import about_places, place_map
from allformer.explain.words import Pair, spans, word
from allformer.images.processor import Processor
from allformer.train.predictions import Predictions


@dataclass(frozen=True, eq=False)
class Part:
    """One trained model. With a `processor` it is shown where it looks, and `inside` is HTML of the
    same kind; `table` is HTML below its figures; `more` is the address of a page of its own. Speed
    is in `unit`s."""

    name: str  # an id of the page
    nav: Pair
    title: Pair
    lead: Pair
    model: nn.Module
    history: Sequence[Mapping[str, Any]]
    scores: Mapping[str, Any]
    predictions: Predictions
    facts: Mapping[str, Any] = field(default_factory=dict)
    processor: Processor | None = None
    more: str = ""
    table: str = ""
    inside: str = ""
    unit: str = "pictures"
    plots: Mapping[str, Chart] = field(
        default_factory=dict
    )  # beside the loss, by names of the page
    parameters: int | None = None  # where not all that was learned is a parameter


def write_several(
    path: str | Path,
    *,
    title: Pair,
    lead: Pair,
    parts: Sequence[Part],
    facts: Mapping[str, Any],
) -> Path:
    """Write the page; `facts` are those of `write_report`, commands included."""
    plots: dict[str, Chart] = {}
    sections = "".join(_section(part, plots) for part in parts)
    main = (
        f'<section class="headline"><p class="over">{spans(word("page.kind"))}</p>'
        f'<h1>{spans(title)}</h1><p class="lead">{spans(lead)}</p>'
        f'<noscript><p class="note">{spans(word("page.noscript"))}</p></noscript></section>'
        f"{sections}"
        f'<section id="next"><h2>{spans(word("next.title"))}</h2>'
        f"{commands_list(facts.get('commands', {}))}"
        f"<h2>{spans(word('facts.title'))}</h2>"
        f'<dl class="facts">{facts_list(facts)}</dl></section>'
    )
    nav = {part.name: part.nav for part in parts} | {"next": word("nav.next")}
    data = {"plots": {name: chart.data for name, chart in plots.items()}, "attention": []}
    return write_page(path, title=title, nav=nav, main=main, data=data)


def _section(part: Part, plots: dict[str, Chart]) -> str:
    parameters = part.parameters or sum(p.numel() for p in part.model.parameters())
    cards = headline.cards(parameters, part.history, part.scores, part.facts, part.unit)
    lead = paragraphs([part.lead]) if part.lead[0] else ""
    html = (
        f'<h2>{spans(part.title)}</h2>{lead}<dl class="cards">{cards}</dl>{part.table}'
        f"{_shown(part.predictions)}"
        f"{examples.confusion_table(part.predictions)}{part.inside}{_inside(part)}"
    )
    if part.plots:  # a page of its own
        html += f"<h2>{spans(word('curves.title'))}</h2>"
    name = f"loss-{part.name}"
    if (chart := loss_chart(part.history, "chart.plain", name, "small")) is not None:
        plots[name] = chart
        html += chart.html
    if part.plots:
        plots.update(part.plots)
        small = "".join(chart.html for chart in part.plots.values())
        html += f'<div class="small-charts">{small}</div>'
    if part.more:
        html += f'<p><a href="{part.more}">{spans(word("several.more"))}</a></p>'
    return f'<section id="{part.name}">{html}</section>'


def _shown(predictions: Predictions) -> str:
    if predictions.sounds:
        return paragraphs([about_sounds(predictions)]) + sound_list(predictions)
    if predictions.pictures:
        return paragraphs([about_pictures(predictions)]) + picture_list(predictions)
    return paragraphs([word("samples.none")])


def _inside(part: Part) -> str:
    """Attention and places, of a model that sees by patches."""
    model = part.model
    if part.processor is None or not isinstance(model, Model):
        return ""
    if seeing_stack(model.config) is None:
        return ""
    looks = attention_over(model, part.processor, part.predictions.pictures)
    return (
        f"<h3>{spans(word('attention.title'))}</h3>{looks}"
        f"<h3>{spans(word('several.places'))}</h3>{paragraphs(about_places(model.config))}"
        f'<div class="heats">{place_map(model)}</div>'
    )
