"""Where a model is trained: a row for each layer, a column for each part of it.

A cell has the numbers that are trained there, and is as dark as their share of all in it.
"""

from __future__ import annotations

import math
import re
from html import escape
from typing import Any

from allformer.explain.headline import compact
from allformer.explain.words import WORDS, Pair, said, spans, word
from allformer.tune.trainable import Numbers, trainable

_LAYER = re.compile(r"(.*?)\.layers\.(\d+)(?:\.|$)(.*)")
NORMS, NECKS = "norms", "bottleneck"
PALEST = 1e-4  # of a cell's numbers: what is less is as pale

Cells = dict[str, dict[str, Numbers]]  # part of the model, part of a layer ("": it is no layer)


def trained_cells(model: Any) -> Cells:
    """`trained_cells(model)["decoder.layers.0"]["feed.up"]` → Numbers(trained=384, total=2432)."""
    found: Cells = {}
    for name, numbers in trainable(model, _cell).parts.items():
        row, _, column = name.partition("|")
        found.setdefault(row, {})[column] = numbers
    return found


def _cell(path: str) -> str:
    """`decoder.layers.0.feed.up.delta` → `decoder.layers.0|feed.up`."""
    layer = _LAYER.match(path)
    if layer is None:
        stack, *rest = path.split(".")
        if rest[:1] == ["delta"]:  # keys and values before those of the text
            return f"{stack}.prefix|"
        return ".".join([stack, *rest[:1]]) + "|"
    stack, number, inside = layer.groups()
    first, *rest = inside.split(".")
    if first == "delta":
        column = NECKS
    elif first.endswith("norm"):
        column = NORMS
    else:
        column = ".".join([first, *rest[:1]])
    return f"{stack}.layers.{number}|{column}"


def layer_table(model: Any) -> str:
    """The picture, as a table."""
    cells = trained_cells(model)
    layers = {name: row for name, row in cells.items() if _LAYER.match(name)}
    columns = list(dict.fromkeys(column for row in layers.values() for column in row if column))
    columns.sort(key=lambda name: (name in (NORMS, NECKS), name == NECKS))
    head = "".join(f'<th scope="col">{spans(_column(name))}</th>' for name in columns)
    body = "".join(_row(name, row, columns) for name, row in cells.items())
    return (
        f'<div class="wide"><table class="trained"><thead><tr><td></td>{head}'
        f'<th scope="col">{spans(word("tuned.share"))}</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        f'<p class="note">{spans(word("tuned.layers.note"))}</p>'
    )


def _row(name: str, row: dict[str, Numbers], columns: list[str]) -> str:
    """A layer has a cell for each column, anything else one over all of them."""
    whole = Numbers(*(sum(n[i] for n in row.values()) for i in range(2)))
    if _LAYER.match(name):
        inside = "".join(_shaded(row.get(column)) for column in columns)
    else:
        inside = _shaded(whole, len(columns)) if columns else _shaded(whole)
    share = percent(whole.trained / max(1, whole.total))
    return f'<tr><th scope="row">{escape(name)}</th>{inside}<td class="n">{share}</td></tr>'


def _shaded(numbers: Numbers | None, span: int = 1) -> str:
    over = f' colspan="{span}"' if span > 1 else ""
    if numbers is None:
        return f'<td class="gap"{over}></td>'
    if not numbers.trained:
        return f'<td class="none"{over}>·</td>'
    shade = 100 * darkness(numbers.trained / numbers.total)
    return f'<td{over} style="--share:{shade:.0f}%"><b>{compact(numbers.trained)}</b></td>'


def darkness(share: float) -> float:
    """0 … 1 over four powers of ten: one per cent of a matrix is seen, and unlike all of it."""
    return max(0.08, 1 - math.log(max(share, PALEST)) / math.log(PALEST))


def percent(share: float) -> str:
    """0.02575 → "2.58 %"; what is less than a hundredth of one per cent is told as that."""
    if not share:
        return "–"
    if share == 1:
        return "100 %"
    return f"{100 * share:.2f} %" if share >= 1e-4 else "&lt; 0.01 %"


def _column(name: str) -> Pair:
    return word(f"tuned.column.{name}") if f"tuned.column.{name}" in WORDS else said(name)
