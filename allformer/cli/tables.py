"""What the verbs print, as rich tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from allformer.count import Count, Part


def scores_table(scores: Mapping[str, Any]) -> Table:
    """BLEU and its company, with what exactly was measured."""
    table = Table(title="scores", title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    table.add_row("sentences", f"{scores['sentences']:,}", f"beams {scores['beams']}")
    table.add_row("exact match", f"{scores['exact_match']:.2f} %", "")
    table.add_row("BLEU", f"{scores['bleu']:.2f}", scores["bleu_signature"])
    table.add_row("chrF", f"{scores['chrf']:.2f}", scores["chrf_signature"])
    if "perplexity" in scores:
        perplexity = scores["perplexity"]
        shown = f"{perplexity:.3f}" if perplexity < 1e6 else f"{perplexity:.2e}"
        table.add_row("perplexity", shown, "per token")
    return table


def figures_table(figures: Mapping[str, Any]) -> Table:
    """What was measured, one figure a line; counts without a fraction."""
    table = Table(title="scores", title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", overflow="fold")
    for name, value in figures.items():
        table.add_row(name.replace("_", " "), _figure(value))
    return table


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.2e}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def entries_table(entries: Iterable[Any]) -> Table:
    """What can be reproduced: the score that is declared, by whom it is published, and the time."""
    table = Table(title="allformer reproduce NAME", title_justify="left", show_lines=True)
    table.add_column("name, declared score", no_wrap=True)
    table.add_column("what", overflow="fold")
    for entry in entries:
        score = entry.score
        declared = f"{score.figure.replace('_', ' ')} {score.expected:g} ± {score.tolerance:g}"
        seen = entry.seen or "[yellow]not yet[/]"
        facts = {"published": entry.published, "seen here": seen, "time": entry.time}
        lines = [entry.about, *(f"[dim]{what}:[/] {said}" for what, said in facts.items())]
        table.add_row(f"[bold]{entry.name}[/]\n{declared}", "\n".join(lines))
    return table


def samples_table(samples: Sequence[Any]) -> Table:
    """Source, translation, and whether it is the reference to the letter."""
    table = Table(title="sentences that it never saw", title_justify="left")
    for name in ("source", "translation", ""):
        table.add_column(name, overflow="fold")  # Chinese has no spaces to break at
    for sample in samples:
        right = sample.output == sample.reference
        mark = "[green]✓[/]" if right else f"[red]✗[/] {sample.reference}"
        table.add_row(sample.source, sample.output, mark)
    return table


def presets_table(counts: Mapping[str, Count]) -> Table:
    """Every preset with its size."""
    table = Table(title="presets", title_justify="left")
    for name in ("name", "parameters", "FLOPs per token", "cache per token"):
        table.add_column(name, justify="left" if name == "name" else "right")
    for name, c in counts.items():
        table.add_row(
            name, f"{c.parameters:,}", f"{c.flops_per_token:,}", _bytes(c.cache_bytes_per_token)
        )
    return table


def parts_table(name: str, found: Sequence[Part]) -> Table:
    """Parameters by part, with their formulas."""
    total = sum(part.parameters for part in found)
    parts = Table(title=f"{name}: parameters", title_justify="left", show_footer=True)
    parts.add_column("part", footer="total")
    parts.add_column("parameters", justify="right", footer=f"{total:,}")
    parts.add_column("share", justify="right")
    parts.add_column("formula", style="dim")
    for part in found:
        share = f"{part.parameters / total:.1%}" if part.parameters else ""
        parts.add_row(part.name, f"{part.parameters:,}", share, part.formula)
    return parts


def codec_tables(name: str, codec: Any, dtype_bytes: int) -> list[Table]:
    """A codec's parameters, and what an image is for it."""
    found = list(codec.lines())
    (height, width), (rows, columns) = codec.image, codec.grid
    said = Table(title="an image", title_justify="left", show_header=False)
    said.add_column()
    said.add_column(justify="right")
    said.add_row("pixels", f"{height} × {width} × {codec.channels}")
    said.add_row("codes", f"{rows} × {columns} = {rows * columns}, of {codec.codes:,}")
    bits, pixels = rows * columns * math.log2(codec.codes), height * width * codec.channels
    said.add_row("bits", f"{bits:,.0f} of {8 * pixels:,}")
    said.add_row("forward FLOPs", f"{sum(part.flops for part in found):,}")
    said.add_row("weights", _bytes(codec.parameters * dtype_bytes))
    return [parts_table(name, found), said]


def sound_codec_tables(name: str, codec: Any, dtype_bytes: int) -> list[Table]:
    """A sound codec's parameters, and what a second is for it."""
    found = list(codec.lines())
    said = Table(title="a second of sound", title_justify="left", show_header=False)
    said.add_column()
    said.add_column(justify="right")
    said.add_row("samples", f"{codec.rate:,} × {codec.channels}")
    said.add_row("frames", f"{codec.pace:g}, of {codec.hop:,} samples each")
    said.add_row("codes of a frame", f"up to {codec.books}, each of {codec.codes:,}")
    said.add_row("kbit", f"{codec.bits / 1000:g} of {16 * codec.rate * codec.channels / 1000:g}")
    said.add_row("forward FLOPs", f"{sum(part.flops for part in found):,}")
    said.add_row("weights", _bytes(codec.parameters * dtype_bytes))
    return [parts_table(name, found), said]


def count_tables(name: str, count: Count, grown: Sequence[Count], square: bool) -> list[Table]:
    """Parameters by part; operations and memory; how attention takes over as the length grows,
    where all of it is full (`square`)."""
    parts = parts_table(name, count.parts)
    cost = Table(title=f"at {count.length:,} tokens", title_justify="left", show_header=False)
    cost.add_column()
    cost.add_column(justify="right")
    cost.add_row("forward FLOPs per token", f"{count.flops_per_token:,}")
    size = "1 byte" if count.dtype_bytes == 1 else f"{count.dtype_bytes} bytes"
    cost.add_row(f"weights, at {size} a number", _bytes(count.parameters * count.dtype_bytes))
    cost.add_row("key/value cache per token", _bytes(count.cache_bytes_per_token))
    cost.add_row("remembered while generating", _bytes(count.state_bytes))
    cost.add_row("activations for one sequence's backward", _bytes(count.activation_bytes))
    growth = Table(title="as the length grows", title_justify="left")
    attention = "attention O(n²·d)" if square else "attention"
    columns = (attention, "feed-forward O(n·d·f)", "projections, head", "FLOPs per token")
    for column in ("tokens n", *columns):
        growth.add_column(column, justify="right")
    for c in grown:
        split = c.cost_split
        growth.add_row(
            f"{c.length:,}",
            *(f"{split[part]:.1%}" for part in ("attention", "feed-forward", "projections")),
            f"{c.flops_per_token:,}",
        )
    return [parts, cost, growth]


def length_table(own: Sequence[Count], full: Sequence[Count] | None) -> Table:
    """What long sequences cost; `full`: the same model with full attention, beside it."""
    title = "long sequences" if full is None else "long sequences, and in full: full attention"
    table = Table(title=title, title_justify="left")
    table.add_column("tokens n", justify="right")
    names = ("FLOPs per token", "activations", "generating remembers")
    shown = [name for name in names if name != names[-1] or any(c.state_bytes for c in own)]
    for name in shown:
        table.add_column(name, justify="right")
        if full is not None and name != names[1]:
            table.add_column("in full", justify="right", style="dim")
    for i, c in enumerate(own):
        cells = {
            names[0]: [_count(x.flops_per_token) for x in (c, *_beside(full, i))],
            names[1]: [_bytes(c.activation_bytes)],
            names[2]: [_bytes(x.state_bytes) for x in (c, *_beside(full, i))],
        }
        table.add_row(f"{c.length:,}", *(cell for name in shown for cell in cells[name]))
    return table


def kinds_table(name: str, kinds: Mapping[str, Mapping[str, int]]) -> Table:
    """What a checkpoint's files hold, by the types of its numbers."""
    table = Table(title=f"in {name}", title_justify="left")
    for column in ("type", "tensors", "numbers", "bytes", "bits a number"):
        table.add_column(column, justify="left" if column == "type" else "right")
    sums = {name: sum(held[name] for held in kinds.values()) for name in _HELD}
    for kind, held in {**kinds, **({"total": sums} if len(kinds) > 1 else {})}.items():
        bits = 8 * held["bytes"] / max(1, held["numbers"])
        row = (f"{held['tensors']:,}", f"{held['numbers']:,}", _bytes(held["bytes"]), f"{bits:.4g}")
        table.add_row(kind, *row, style="bold" if held is sums else None)
    return table


_HELD = ("tensors", "numbers", "bytes")


def _beside(counts: Sequence[Count] | None, i: int) -> list[Count]:
    return [] if counts is None else [counts[i]]


def _count(number: float) -> str:
    """`_count(1_234_567)` → "1.23 M"."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:g}"


def mechanisms_table(name: str, found: Any) -> Table:
    """Each mechanism's time, memory and nearness, with the ratio to full attention."""
    work = "forward and backward" if found.train else "forward"
    title = f"{name}, {found.length:,} tokens, {work}, {found.dtype} on {found.device}"
    table = Table(title=title, title_justify="left")
    for column in ("mechanism", "ms", "× full", "peak memory", "of full", "error", "weights"):
        table.add_column(column, justify="left" if column in ("mechanism", "weights") else "right")
    full = found.rows["full"]
    for row in found.rows.values():
        if not row.measured:
            continue
        speed = size = ""
        if full.measured:
            speed = f"{full.seconds / row.seconds:.2f}"
            size = f"{row.peak_bytes / max(1, full.peak_bytes):.2f}"
        weights = f"{row.fresh} fresh" if row.fresh else "kept"
        cells = (f"{1000 * row.seconds:,.1f}", speed, _bytes(row.peak_bytes), size)
        table.add_row(row.mechanism, *cells, f"{row.error:.3g}", weights)
    return table


def plan_table(name: str, plan: Any) -> Table:
    """What a training will take."""
    from allformer.train.progress import clock

    table = Table(title=f"{name}: the plan", title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    table.add_row("parameters", f"{plan.parameters:,}", f"{plan.precision} on {plan.device}")
    if plan.trained < plan.parameters:
        share = f"{plan.trained / plan.parameters:.2%}; the rest is frozen"
        table.add_row("  trained", f"{plan.trained:,}", share)
    for part, size in plan.memory.items():
        note = "of one micro-batch" if part == "activations" else ""
        table.add_row(f"  {part}", _bytes(size), note)
    table.add_row("  together", _bytes(sum(plan.memory.values())), "")
    if plan.processes > 1:
        note = "memory and time are of one that has the whole model"
        table.add_row("processes", f"{plan.processes}", note)
    table.add_row("examples", f"{plan.examples:,}", "")
    table.add_row("tokens a step", f"{plan.tokens_per_step:,.0f}", "labels that count")
    table.add_row("steps an epoch", f"{plan.steps_per_epoch:,.1f}", "")
    epochs = plan.steps / max(plan.steps_per_epoch, 1e-9)
    table.add_row("steps", f"{plan.steps:,}", f"{epochs:,.2f} epochs")
    table.add_row("a step takes", f"{1000 * plan.seconds_per_step:,.1f} ms", "the first few, timed")
    speed = f"{plan.tokens_per_second:,.0f} tokens/s"
    table.add_row(
        "expected time", clock(plan.seconds), f"{speed}; validation and saving come on top"
    )
    return table


def _bytes(number: int) -> str:
    size, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:,.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
