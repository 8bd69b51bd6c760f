"""`report.html`: one file that shows what was trained, how well, and what goes on inside.

    write_report("runs/demo/report.html", model=model, tokenizer=tokenizer, history=rows,
                 scores={"exact_match": 97.3}, facts={"direction": "English → Chinese"},
                 samples=[Sample("I drink tea.", "我喝茶。", "我喝茶。")])

The page needs no network, no server and, to be read, no script (`page.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from allformer import config
from allformer.core.model import Model
from allformer.count import count
from allformer.explain import curves, examples, headline, tables
from allformer.explain.attention import ReadsTokens, alignment, attention_maps, still
from allformer.explain.diagram import architecture
from allformer.explain.heat import about_positions, position_figures
from allformer.explain.layers import layer_charts
from allformer.explain.page import filled, paragraphs, write_page
from allformer.explain.samples import Sample, sample_list
from allformer.explain.sound.listens import hearing_stack, listening
from allformer.explain.sound.sounds import about_sounds, sound_list
from allformer.explain.tuned.section import tuned_section
from allformer.explain.tuned.wins import wins, wins_bar
from allformer.explain.vision.attention import attention_over
from allformer.explain.vision.looks import reads_pictures
from allformer.explain.vision.pictures import about_pictures, picture_list
from allformer.explain.vision.places import about_places, place_map
from allformer.explain.words import WORDS, Pair, said, spans, word
from allformer.images.processor import Processor
from allformer.train.predictions import Predictions
from allformer.tune.method import Method

__all__ = ["Sample", "write_report"]

# What a reader of a translator's page may do next; `facts["commands"]` may hold better ones.
COMMANDS = {
    "translate": 'allformer translate RUN "…"',
    "train": "allformer train --data DIR --source en --target zh --out runs/mine",
    "resume": "allformer train --resume RUN",
    "evaluate": "allformer evaluate RUN --split test",
}
FACTS = (
    "direction", "objective", "model", "tune", "tune_parts", "data", "train_pairs",
    "validation_pairs", "test_pairs", "optimiser", "schedule", "batch", "pictures", "crops",
    "recordings", "steps", "seconds",
    "speed", "memory", "device", "precision", "seed", "kept", "command", "torch", "allformer",
)  # fmt: skip
COUNTS = (
    "train_pairs",
    "validation_pairs",
    "test_pairs",
    "pictures",
    "crops",
    "recordings",
    "steps",
)


def write_report(
    path: str | Path,
    *,
    model: Model[Any],
    tokenizer: ReadsTokens | None,
    history: Sequence[Mapping[str, Any]],
    scores: Mapping[str, Any],
    facts: Mapping[str, Any],
    samples: Sequence[Sample] = (),
    predictions: Predictions | None = None,
    statistics: Sequence[Mapping[str, Any]] = (),
    processor: Processor | None = None,
    methods: Sequence[Method] = (),
    judge: str = "",
) -> Path:
    """Write the page and return its path; see the top of this file for a call.

    `history` holds the rows of metrics.jsonl; `exact_match` and `validation_exact` are per cent.
    `scores` and `facts` may lack anything: what is there is shown. A fact is a text, a number or
    `{"en": …, "zh": …}`; `facts["commands"]` gives the commands of the last section by their names
    in `COMMANDS`, or others. The samples (of a translator) or `predictions` (of all else) are from
    outside the training data; the first ones that are short enough show their attention.
    `statistics` are the rows of statistics.jsonl. A model that sees is shown with the `pictures` of
    `predictions`, which its `processor` prepares to look at their attention; it may have no
    tokeniser. `methods` are those that the model was tuned by, `judge` whoever gave the rewards of
    the predictions.
    """
    sees = reads_pictures(model.config)
    maps: list[dict[str, Any]] = []
    if tokenizer is not None and not sees and hearing_stack(model.config) is None:
        maps = _maps(model, tokenizer, samples, predictions)
    speed = "pictures" if sees else "tokens"
    plots = curves.charts(history, curves.loss_unit(model.config, history), speed)
    heats = {} if sees else position_figures(model)
    layers = layer_charts(statistics)
    calibration = None if predictions is None else examples.calibration_chart(predictions)
    tuned, gains = tuned_section(model, methods, history)
    drawn = {**plots, **heats, **layers, **gains}
    if calibration is not None:
        drawn["calibration"] = calibration
    alone = len(model.config.stacks) == 1 or sees
    title = word("page.run" if alone else "page.title")
    if facts.get("title"):
        title = said(facts["title"])
    parameters = sum(p.numel() for p in model.parameters())
    texts = bool(samples) or bool(predictions and predictions.rows)
    seen = sees or hearing_stack(model.config) is not None or texts
    looked = _attention_of(model, tokenizer, processor, predictions, maps) if seen else ""
    translators = {} if alone or predictions is not None else COMMANDS
    parts = {
        "heading": spans(title),
        "lead": spans(headline.lead(model.config, facts)),
        "cards": headline.cards(parameters, history, scores, facts, speed),
        **_samples(samples, predictions, calibration, judge),
        "tuned": tuned,
        "layers": _layers(layers),
        **_curves(history, plots, model.config),
        "attention": _attention(looked),
        "positions_title": spans(word("places.heading" if sees else "positions.title")),
        "positions": paragraphs((about_places if sees else about_positions)(model.config)),
        "heats": place_map(model) if sees else "".join(chart.html for chart in heats.values()),
        "placement": paragraphs(_placement(model.config)),
        "diagram": architecture(model.config),
        **_cost(model.config, parameters),
        "commands": commands_list({**translators, **facts.get("commands", {})}),
        "facts": facts_list(facts),
        "config": escape(model.config.to_json()),
    }
    data = {"plots": {name: chart.data for name, chart in drawn.items()}, "attention": maps}
    nav = _nav(predictions is None, bool(tuned), bool(layers), bool(looked))
    return write_page(path, title=title, nav=nav, main=filled("run.html", parts), data=data)


def _nav(translates: bool, tuned: bool, layers: bool, looked: bool) -> dict[str, Pair]:
    """The sections' names by their ids."""
    names = {
        "samples": "samples" if translates else "examples",
        "curves": "curves",
        **({"tuned": "tuned"} if tuned else {}),
        **({"statistics": "layers"} if layers else {}),
        **({"attention": "attention"} if looked else {}),
        **{key: key for key in ("positions", "architecture", "cost", "next")},
    }
    return {key: word(f"nav.{name}") for key, name in names.items()}


def _maps(
    model: Model[Any],
    tokenizer: ReadsTokens,
    samples: Sequence[Sample],
    predictions: Predictions | None,
) -> list[dict[str, Any]]:
    shown = [(s.source, s.output) for s in samples]
    if predictions is not None:
        shown += [(row.input, row.given) for row in predictions.rows]
    return attention_maps(model, tokenizer, shown)


def _samples(
    samples: Sequence[Sample], predictions: Predictions | None, calibration: Any, judge: str
) -> dict[str, str]:
    """A translator's sentences, or the examples and mistakes of all else."""
    if predictions is None:
        title = "samples.title"
        told, shown, mistakes = word("samples.intro"), sample_list(samples), ""
    else:
        title = examples.title_of(predictions)
        told, shown = examples.about_examples(predictions), examples.example_list(predictions)
        if (won := wins(predictions)) is not None:
            shown = wins_bar(won, judge) + shown
        if predictions.pictures:
            told, shown = about_pictures(predictions), picture_list(predictions)
        if predictions.sounds:
            told, shown = about_sounds(predictions), sound_list(predictions)
        mistakes = examples.confusion_table(predictions)
    if calibration is not None:
        mistakes += calibration.html
    return {
        "samples_title": spans(word(title)),
        "samples_intro": spans(told),
        "samples": shown,
        "mistakes": mistakes,
    }


def _layers(layers: Mapping[str, Any]) -> str:
    """The section on layers, where there are statistics."""
    if not layers:
        return ""
    maps = "".join(chart.html for chart in layers.values())
    return (
        f'<section id="statistics"><h2>{spans(word("layers.title"))}</h2>'
        f'<p>{spans(word("layers.intro"))}</p><div class="layer-maps">{maps}</div></section>'
    )


def _attention_of(
    model: Model[Any],
    tokenizer: ReadsTokens | None,
    processor: Processor | None,
    predictions: Predictions | None,
    maps: Sequence[dict[str, Any]],
) -> str:
    """Over sound, over pictures, or over tokens."""
    if hearing_stack(model.config) is not None:
        return listening(model, tokenizer, predictions.sounds if predictions else ())
    if reads_pictures(model.config):
        return attention_over(model, processor, predictions.pictures if predictions else ())
    return _over_tokens(model.config, maps)


def _attention(looked: str) -> str:
    """The section on where the model looks, if there is something to be seen."""
    if not looked:
        return ""
    title = spans(word("attention.title"))
    return f'<section id="attention"><h2>{title}</h2>{looked}</section>'


def _over_tokens(model: config.Model, maps: Sequence[dict[str, Any]]) -> str:
    """Maps of tokens by tokens, to choose from; a word where the texts are too long for them."""
    if not maps:
        return paragraphs([word("attention.none")])
    parts = {**_about_attention(model), "attention_map": _map(maps), "space": _space(maps)}
    return filled("attention.html", parts)


def _about_attention(model: config.Model) -> dict[str, str]:
    """What is said around the maps, and the kinds to choose from."""
    if len(model.stacks) > 1:
        kinds, told, own = ("cross", "encoder", "decoder"), "attention.intro", "attention.self"
        names = {kind: word(f"kind.{kind}") for kind in kinds}
    else:
        kind = "decoder" if model.writer.causal else "encoder"
        told, own = "attention.intro.one", f"attention.self.{kind}"
        names = {kind: word(f"kind.{kind}.one")}
    choices = "".join(
        f'<label><input type="radio" name="kind" value="{kind}"{"" if i else " checked"}>'
        f'<span class="{kind}">{spans(name)}</span></label>'
        for i, (kind, name) in enumerate(names.items())
    )
    return {
        "attention_intro": spans(word(told)),
        "attention_self": spans(word(own)),
        "attention_heads": spans(
            word("attention.heads.one" if len(names) == 1 else "attention.heads")
        ),
        "kinds": choices,
        "kinds_hidden": "" if len(names) > 1 else "hidden",
    }


def _curves(
    history: Sequence[Mapping[str, Any]], plots: Mapping[str, Any], model: config.Model
) -> dict[str, str]:
    if not plots:
        return {"loss": paragraphs([word("curves.none")]), "small": "", "about_loss": ""}
    small = "".join(chart.html for name, chart in plots.items() if name != "loss")
    loss = plots["loss"].html if "loss" in plots else ""
    about = paragraphs([curves.about_loss(history, model)])
    hint = f'<p class="note hint" hidden>{spans(word("curves.hover"))}</p>'
    return {"loss": loss, "small": small + hint, "about_loss": about if loss else ""}


def _map(maps: Sequence[dict[str, Any]]) -> str:
    note = spans(still(maps[0]))
    picture = f'<p class="note">{note}</p><div class="wide">{alignment(maps[0])}</div>'
    return f'<div id="maps">{picture}</div>'


def _space(maps: Sequence[dict[str, Any]]) -> str:
    """What the tokeniser's dot means, if it writes one."""
    names = ("source", "written", "read")
    tokens = [token for sample in maps for name in names for token in sample.get(name, ())]
    dotted = any(token.startswith("·") for token in tokens)
    return f'<p class="note">{spans(word("attention.space"))}</p>' if dotted else ""


def _placement(model: config.Model) -> list[Pair]:
    intro = tables.by_shape("architecture.intro", model)
    told = [word(intro), word(f"architecture.{model.reader.blocks[0].norm_at}")]
    mixed = any(len(set(stack.blocks)) > 1 for stack in model.stacks.values())
    return [*told, word("architecture.mixed")] if mixed else told


def _cost(model: config.Model, parameters: int) -> dict[str, str]:
    told = [word("cost.intro", total=f"{parameters:,}")]
    if count(model).parameters == parameters:
        told.append(word("cost.check"))
    return {
        "cost": paragraphs(told),
        "letters": tables.letters(model),
        "parameters": tables.parameter_table(model),
        "growth": tables.growth(model),
        "growth_title": spans(word(tables.by_shape("growth.title", model))),
    }


def commands_list(commands: Mapping[str, str]) -> str:
    """Commands to go on with, each under what it does."""
    return "".join(
        f"<h3>{spans(word(f'next.{name}') if f'next.{name}' in WORDS else said(name))}</h3>"
        f'<pre class="command"><code>{escape(str(command))}</code></pre>'
        for name, command in commands.items()
    )


def facts_list(facts: Mapping[str, Any]) -> str:
    """How to reproduce it, as terms and what they are."""
    keys = [key for key in FACTS if key in facts]
    keys += [key for key in facts if key not in (*FACTS, "title", "commands")]
    return "".join(
        f"<dt>{spans(word(f'facts.{key}') if key in FACTS else said(key))}</dt>"
        f"<dd>{_fact(key, facts[key])}</dd>"
        for key in keys
    )


def _fact(key: str, value: Any) -> str:
    if key == "command":
        return f"<code>{escape(str(value))}</code>"
    if key == "seconds" and isinstance(value, int | float):
        return spans(headline.duration(value))
    return spans(said(headline.number(value) if key in COUNTS else value))
