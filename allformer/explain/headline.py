"""The head of the report: what was trained, and its key figures as cards."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from allformer import config
from allformer.explain.sound.rates import rate_name
from allformer.explain.vision.looks import reads_pictures, seeing_stack
from allformer.explain.words import WORDS, Pair, counted, said, sentences, spans, word

Facts = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


def lead(model: config.Model, facts: Facts) -> Pair:
    """Two or three sentences on the model."""
    if (name := seeing_stack(model)) is not None:
        return _sees(model.stacks[name], isinstance(model, config.TwoTowers))
    reader, writer = model.reader, model.writer
    if isinstance(reader.source, config.Sound) and reader.longest is not None:
        return _hears(model)
    if reads_pictures(model):
        return word("lead.backbone", **_both(model), **_widths(reader))
    sizes = {**_widths(reader), "vocab": f"{writer.source.vocab:,}"}
    if reader is writer:
        shape = word("lead.shape.one", layers=_layers(reader), **sizes)
        text = word("lead.decoder" if reader.causal else "lead.encoder", shape=shape)
    else:
        shape = word("lead.shape", **_both(model), **sizes)
        text = word("lead.plain", shape=shape)
    if facts.get("direction"):
        text = word("lead.translate", direction=said(facts["direction"]), shape=shape)
    if facts.get("train_pairs"):
        text = sentences(text, word("lead.pairs", pairs=number(facts["train_pairs"])))
    return text


def _layers(stack: config.Stack) -> Pair:
    return counted("layer", len(stack.blocks))


def _both(model: config.Model) -> dict[str, Pair]:
    return {"encoder": _layers(model.reader), "decoder": _layers(model.writer)}


def _widths(stack: config.Stack) -> dict[str, object]:
    return {"dim": stack.dim, "heads": counted("head", stack.blocks[0].attention.heads)}


def _hears(model: config.Model) -> Pair:
    """Of an encoder that reads sound, and of a decoder where there is one."""
    reader, writer = model.reader, model.writer
    source = reader.source
    assert isinstance(source, config.Sound)
    assert reader.longest is not None
    sizes = _widths(reader)
    if writer is reader:
        shape = word("lead.shape.sees", layers=_layers(reader), **sizes)
    else:
        shape = word("lead.shape", **_both(model), **sizes, vocab=f"{writer.source.vocab:,}")
    frames = reader.longest * 2
    told = {"seconds": f"{frames / 100:g}", "frames": f"{frames:,}", "bins": source.mels}
    return word("lead.hears", **told, positions=f"{reader.longest:,}", shape=shape)


def _sees(stack: config.Stack, towers: bool) -> Pair:
    """Of a stack that reads pictures, alone or beside one that reads texts."""
    source = stack.source
    assert isinstance(source, config.Patches)
    (rows, columns), (height, width) = source.shape, source.image
    shape = word("lead.shape.sees", layers=_layers(stack), **_widths(stack))
    cut = {"rows": rows, "columns": columns, "patch": source.patch}
    text = word("lead.sees", height=height, width=width, **cut, shape=shape)
    return word("lead.towers", shape=text) if towers else text


def cards(
    parameters: int, history: Rows, scores: Facts, facts: Facts, speed: str = "tokens"
) -> str:
    """The key figures, as many as are known; `speed` is in tokens or in pictures."""
    return "".join([*_scores(scores), *_sizes(parameters, history, facts, speed)])


def duration(seconds: float) -> Pair:
    """3725 → 1 h 2 min; 90 → 1 min 30 s; 4.2 → 4.2 s."""
    if seconds < 60:
        return word("time.seconds", s=f"{seconds:.3g}")
    whole = round(seconds)
    if whole < 3600:
        return word("time.minutes", m=whole // 60, s=whole % 60)
    return word("time.hours", h=f"{whole // 3600:,}", m=whole % 3600 // 60)


def number(value: Any) -> str:
    """A number for a reader: 240000 → "240,000", 97.25 → "97.3"; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value == int(value) and abs(value) >= 1000):
        return f"{int(value):,}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def compact(value: float) -> str:
    """63082496 → "63.1M"."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            scaled = value / size
            return f"{scaled:.0f}{unit}" if scaled >= 100 else f"{scaled:.3g}{unit}"
    return f"{value:.3g}"


def _scores(scores: Facts) -> Iterator[str]:
    shown = {key: value for key, value in scores.items() if isinstance(value, int | float)}
    sentences = shown.pop("sentences", None)
    for key in sorted(shown, key=lambda k: _ORDER.index(k) if k in _ORDER else len(_ORDER)):
        title = word(f"card.{key}") if key in _ORDER else figure_name(key)
        note = _note(key, sentences, scores.get(f"{key}_signature"))
        unit = "%" if key == "exact_match" else ""
        yield _card(title, number(shown[key]), unit, note, css="score")


def figure_name(key: str) -> Pair:
    """What a figure of validation is called; one that we do not know keeps its name."""
    if f"figure.{key}" in WORDS:
        return word(f"figure.{key}")
    return rate_name(key) or said(key.replace("_", " "))


_ORDER = ("exact_match", "bleu", "chrf", "perplexity")


def _note(key: str, sentences: Any, signature: Any) -> str:
    if signature:
        return f"<code>{escape(str(signature)).replace('|', '|<wbr>')}</code>"
    if key == "exact_match":
        of = word("card.exact_match.plain")
        return spans(word("card.exact_match.of", n=number(sentences)) if sentences else of)
    return spans(word("card.perplexity.note")) if key == "perplexity" else ""


def _sizes(parameters: int, history: Rows, facts: Facts, of: str) -> Iterator[str]:
    note = spans(word("card.parameters.note", n=f"{parameters:,}"))
    yield _card(word("card.parameters"), compact(parameters), "", note)
    rows = [row for row in history if row.get("seconds") is not None]
    seconds = facts.get("seconds", rows[-1]["seconds"] if rows else None)
    if seconds is not None:
        took = duration(float(seconds))
        yield _card(word("card.seconds"), spans(took), "", _effort(history, facts))
    speeds = [row["tokens_per_second"] for row in history if row.get("tokens_per_second")]
    if speeds:
        unit = spans(word(f"card.{of}.unit"))
        speed = number(round(statistics.median(speeds)))
        yield _card(word("card.tokens"), speed, unit, spans(word("card.tokens.note")))


def _effort(history: Rows, facts: Facts) -> str:
    steps = facts.get("steps", max((row.get("step", 0) for row in history), default=0))
    device = facts.get("device")
    if steps and device:
        return spans(word("card.seconds.on", steps=number(steps), device=said(device)))
    if device:
        return spans(word("card.seconds.device", device=said(device)))
    return spans(word("card.seconds.steps", steps=number(steps))) if steps else ""


def _card(title: Pair, value: str, unit: str, note: str, css: str = "") -> str:
    unit = f" <small>{unit}</small>" if unit else ""
    return (
        f'<div class="card {css}"><dt>{spans(title)}</dt>'
        f'<dd><b>{value}{unit}</b><span class="note">{note}</span></dd></div>'
    )
