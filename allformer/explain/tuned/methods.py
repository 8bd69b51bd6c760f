"""What each method would train of this model, beside what this run trained: numbers, and the memory
that goes with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, NamedTuple

from allformer import tune
from allformer.core.model import build
from allformer.errors import AllformerError
from allformer.explain.tuned.layers import percent
from allformer.explain.words import WORDS, Pair, joined, said, spans, word
from allformer.tune.method import Method
from allformer.tune.trainable import trainable

# Each as it comes; Houlsby's necks are the largest, a prefix is as long as the papers had it.
OTHERS: tuple[Method, ...] = (
    tune.Full(), tune.Lora(), tune.Bottleneck(), tune.BitFit(), tune.Ia3(), tune.Prefix(20),
    tune.Prompt(20),
)  # fmt: skip
SIZES = ("rank", "form", "tokens")  # settings that say how much is trained
EACH = 12  # bytes beside a trained number: its gradient and AdamW's two moments, in fp32


class Trains(NamedTuple):
    """A method, and how many of the model's numbers it trains."""

    methods: tuple[Method, ...]
    trained: int
    total: int
    own: bool = False  # whether the run trained them


def compared(model: Any, methods: Sequence[Method]) -> list[Trains]:
    """This run's methods among the others, the largest first.

    Of the others only shapes are made, with the same parts trained whole beside them; one that does
    not go with the model is left out.
    """
    own = trainable(model)
    found = [Trains(tuple(methods), own.trained, own.total, True)]
    kinds = {type(method) for method in methods}
    whole = next((method.whole for method in methods if method.whole is not None), None)
    for other in OTHERS:
        if len(methods) == 1 and type(other) in kinds:
            continue
        shape: Any = build(model.config, device="meta")
        shape.provenance = model.provenance
        try:
            tune.apply(shape, other if type(other) is tune.Full else replace(other, whole=whole))
        except AllformerError:
            continue
        counted = trainable(shape)
        found.append(Trains((other,), counted.trained, counted.total))
    return sorted(found, key=lambda one: -one.trained)


def method_table(rows: Sequence[Trains]) -> str:
    """A row for each: its name, what it trains, how much of the model that is, and the memory."""
    head = "".join(
        f'<th scope="col"{css}>{spans(word(f"tuned.{key}"))}</th>'
        for key, css in (
            ("method", ""), ("what", ""), ("numbers", ' class="n"'), ("share", ""),
            ("memory", ' class="n"'),
        )
    )  # fmt: skip
    body = "".join(map(_row, rows))
    return (
        f'<div class="wide"><table class="parameters methods"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _row(one: Trains) -> str:
    share = one.trained / max(1, one.total)
    mark = f' <span class="mark">{spans(word("tuned.own"))}</span>' if one.own else ""
    bar = f'<span class="fill decoder" style="width:{max(100 * share, 0.3):.2f}%"></span>'
    return (
        f"<tr{' class=own' if one.own else ''}>"
        f'<th scope="row">{spans(joined(*map(method_name, one.methods), by=" + "))}{mark}</th>'
        f"<td>{spans(joined(*map(_what, one.methods), by='; '))}</td>"
        f'<td class="n">{one.trained:,}</td><td class="share"><span class="track">{bar}</span>'
        f'<span class="n">{percent(share)}</span></td>'
        f'<td class="n">{amount(EACH * one.trained)}</td></tr>'
    )


def method_name(method: Method) -> Pair:
    """`lora, rank 16`: its name, how large it is, and in what else it is not as it comes."""
    own: Any = type(method)
    told = [own.name]
    for field in fields(own):
        value = getattr(method, field.name)
        usual = field.default if field.default is not MISSING else None
        told_anyway = field.name in SIZES and value is not None
        if field.name == "whole" or not value or (value == usual and not told_anyway):
            continue
        shown = "/".join(map(str, value)) if isinstance(value, tuple) else value
        if isinstance(value, float):
            shown = f"{value:g}"
        told.append(field.name if value is True else f"{field.name} {shown}")
    return said(", ".join(told))


def _what(method: Method) -> Pair:
    key = f"method.{type(method).name}"
    return word(key) if key in WORDS else said("")


def amount(size: float) -> str:
    """Bytes for a reader: 1536 → "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.3g} {unit}"
