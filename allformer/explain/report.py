"""`report.html`: one file that shows what was trained, how well, and what goes on inside.

    write_report("runs/demo/report.html", model=model, tokenizer=tokenizer, history=rows,
                 scores={"exact_match": 97.3}, facts={"direction": "English → Chinese"},
                 samples=[Sample("I drink tea.", "我喝茶。", "我喝茶。")])

The page needs no network, no server and, to be read, no script. Its template, style sheet and
script lie beside this file and are put into the page together with the data.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
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
from allformer.explain.samples import Sample, sample_list
from allformer.explain.words import WORDS, Pair, label, said, script_words, spans, word
from allformer.train.predictions import Predictions

__all__ = ["Sample", "write_report"]

# What a reader of a translator's page may do next; `facts["commands"]` may hold better ones.
COMMANDS = {
    "translate": 'allformer translate RUN "…"',
    "train": "allformer train --data DIR --source en --target zh --out runs/mine",
    "resume": "allformer train --resume RUN",
    "evaluate": "allformer evaluate RUN --split test",
}
FACTS = (
    "direction", "objective", "model", "data", "train_pairs", "validation_pairs", "test_pairs",
    "optimiser", "schedule", "batch", "steps", "seconds", "speed", "memory", "device", "precision",
    "seed", "kept", "command", "torch", "allformer",
)  # fmt: skip
COUNTS = ("train_pairs", "validation_pairs", "test_pairs", "steps")


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
) -> Path:
    """Write the page and return its path; see the top of this file for a call.

    `history` holds the rows of metrics.jsonl; `exact_match` and `validation_exact` are per cent.
    `scores` and `facts` may lack anything: what is there is shown. A fact is a text, a number or
    `{"en": …, "zh": …}`; `facts["commands"]` gives the commands of the last section by their names
    in `COMMANDS`, or others. The samples (of a translator) or `predictions` (of all else) are from
    outside the training data; the first ones that are short enough show their attention (without
    a `tokenizer`, as of a model that reads no text, none does).
    `statistics` are the rows of statistics.jsonl.
    """
    shown = [(s.source, s.output) for s in samples]
    if predictions is not None:
        shown += [(row.input, row.given) for row in predictions.rows]
    maps = [] if tokenizer is None else attention_maps(model, tokenizer, shown)
    plots = curves.charts(history, curves.loss_unit(model.config))
    heats, layers = position_figures(model), layer_charts(statistics)
    calibration = None if predictions is None else examples.calibration_chart(predictions)
    alone = len(model.config.stacks) == 1
    title = word("page.run" if alone else "page.title")
    if facts.get("title"):
        title = said(facts["title"])
    parameters = sum(p.numel() for p in model.parameters())
    drawn = {**plots, **heats, **layers}
    if calibration is not None:
        drawn["calibration"] = calibration
    parts = {
        "title": title[0],
        "heading": spans(title),
        "lead": spans(headline.lead(model.config, facts)),
        "cards": headline.cards(parameters, history, scores, facts),
        **_samples(samples, predictions, calibration),
        **_layers(layers),
        **_curves(history, plots, model.config),
        "attention": _attention(maps),
        **_about_attention(model.config),
        "space": _space(maps),
        "positions": _paragraphs(about_positions(model.config)),
        "heats": "".join(chart.html for chart in heats.values()),
        "placement": _paragraphs(_placement(model.config)),
        "diagram": architecture(model.config),
        **_cost(model.config, parameters),
        "commands": _commands({**({} if alone else COMMANDS), **facts.get("commands", {})}),
        "facts": _facts(facts),
        "config": escape(model.config.to_json()),
        "data": _json(
            {
                "words": script_words(),
                "title": title,
                "plots": {name: chart.data for name, chart in drawn.items()},
                "attention": maps,
            }
        ),
    }
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_page(parts), encoding="utf-8", newline="\n")
    return file


def _page(parts: dict[str, str]) -> str:
    """The template with style, script, parts and words put in, in one pass: text stays text."""
    files = resources.files("allformer.explain")
    script = files.joinpath("report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    style = files.joinpath("report.css").read_text(encoding="utf-8")
    parts = {**parts, "style": style, "script": script, "digest": digest}

    def fill(found: re.Match[str]) -> str:
        key = found[1]
        if key.startswith("@"):
            return label(WORDS[key[1:]])
        return parts[key] if key in parts else spans(WORDS[key])

    template = files.joinpath("report.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(@?[\w.]+)\}\}", fill, template)


def _json(data: object) -> str:
    """JSON that may stand inside `<script>`: no "<" can end it, no "&" can be misread."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub(r"[<>&\u2028\u2029]", lambda sign: f"\\u{ord(sign[0]):04x}", text)


def _paragraphs(pairs: Sequence[Pair]) -> str:
    return "".join(f"<p>{spans(pair)}</p>" for pair in pairs)


def _samples(
    samples: Sequence[Sample], predictions: Predictions | None, calibration: Any
) -> dict[str, str]:
    """A translator's sentences, or the examples and mistakes of all else."""
    if predictions is None:
        keys = {"samples_nav": "nav.samples", "samples_title": "samples.title"}
        told, shown, mistakes = word("samples.intro"), sample_list(samples), ""
    else:
        keys = {"samples_nav": "nav.examples", "samples_title": "examples.title"}
        told, shown = examples.about_examples(predictions), examples.example_list(predictions)
        mistakes = examples.confusion_table(predictions)
    if calibration is not None:
        mistakes += calibration.html
    return {
        **{name: spans(word(key)) for name, key in keys.items()},
        "samples_intro": spans(told),
        "samples": shown,
        "mistakes": mistakes,
    }


def _layers(layers: Mapping[str, Any]) -> dict[str, str]:
    """The section on layers with its link, where there are statistics."""
    if not layers:
        return {"layers_nav": "", "layers": ""}
    maps = "".join(chart.html for chart in layers.values())
    return {
        "layers_nav": f'<a href="#statistics">{spans(word("nav.layers"))}</a>',
        "layers": f'<section id="statistics"><h2>{spans(word("layers.title"))}</h2>'
        f'<p>{spans(word("layers.intro"))}</p><div class="layer-maps">{maps}</div></section>',
    }


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
        return {"loss": _paragraphs([word("curves.none")]), "small": "", "about_loss": ""}
    small = "".join(chart.html for name, chart in plots.items() if name != "loss")
    loss = plots["loss"].html if "loss" in plots else ""
    about = _paragraphs([curves.about_loss(history, model)])
    hint = f'<p class="note hint" hidden>{spans(word("curves.hover"))}</p>'
    return {"loss": loss, "small": small + hint, "about_loss": about if loss else ""}


def _attention(maps: Sequence[dict[str, Any]]) -> str:
    if not maps:
        return _paragraphs([word("attention.none")])
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
    intro = "architecture.intro" if len(model.stacks) > 1 else "architecture.intro.one"
    told = [word(intro), word(f"architecture.{model.reader.blocks[0].norm_at}")]
    mixed = any(len(set(stack.blocks)) > 1 for stack in model.stacks.values())
    return [*told, word("architecture.mixed")] if mixed else told


def _cost(model: config.Model, parameters: int) -> dict[str, str]:
    told = [word("cost.intro", total=f"{parameters:,}")]
    if count(model).parameters == parameters:
        told.append(word("cost.check"))
    return {
        "cost": _paragraphs(told),
        "letters": tables.letters(model),
        "parameters": tables.parameter_table(model),
        "growth": tables.growth(model),
        "growth_title": spans(
            word("growth.title" if len(model.stacks) > 1 else "growth.title.one")
        ),
    }


def _commands(commands: Mapping[str, str]) -> str:
    return "".join(
        f"<h3>{spans(word(f'next.{name}') if f'next.{name}' in WORDS else said(name))}</h3>"
        f'<pre class="command"><code>{escape(str(command))}</code></pre>'
        for name, command in commands.items()
    )


def _facts(facts: Mapping[str, Any]) -> str:
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
