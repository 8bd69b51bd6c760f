"""Positions as heat maps: a PNG whose opacity is the size and whose colour is the sign.

Being transparent where the value is 0, one picture suits a light page and a dark one.
"""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import matplotlib.image
import numpy as np
import torch

from allformer import config
from allformer.core.model import Model
from allformer.core.position import Learned, sinusoid
from allformer.core.stack import Stack
from allformer.explain.charts import Chart, Tick, frame
from allformer.explain.words import Pair, spans, word

ROWS, MOST_VALUES = 64, 65_536  # positions shown, fewer in a very wide model
PLUS, MINUS = (204, 96, 28), (38, 112, 190)  # orange, blue


def position_figures(model: Model[Any]) -> dict[str, Chart]:
    """The heat maps by name, encoder first; the decoder's only when it has vectors of its own."""
    stacks = {name: model.stack(name) for name in model.config.stacks}
    tables = {
        name: _table(stack)
        for name, stack in stacks.items()
        if isinstance(stack.config.position, config.Sinusoidal | config.Learned)
    }
    first = next(iter(stacks.values()))
    for name, stack in list(stacks.items())[1:]:
        same = stack.config.position == first.config.position
        if same and isinstance(first.config.position, config.Sinusoidal):
            del tables[name]
    figures = {}
    for name, table in tables.items():
        key = "positions.map" if len(tables) == 1 else f"positions.map.{name}"
        figures[f"map-{name}"] = _map(f"map-{name}", word(key), table, word("axis.dimension"))
        figures[f"similar-{name}"] = _similar(f"similar-{name}", stacks[name].config, table)
    return figures


def about_positions(model: config.Model) -> list[Pair]:
    """The sentences that explain this model's positions."""
    position, dim = model.reader.position or model.writer.position, model.reader.dim
    relative = model.reader.relative or model.writer.relative
    if position is None and relative is not None:
        kinds = {config.Rotary: "rotary", config.XLRelative: "distances"}
        key = kinds.get(type(relative), "bias")
        return [word(f"positions.{key}")]
    if position is None:
        return [word("positions.none")]
    if isinstance(position, config.Learned):
        return [word("positions.intro"), word("positions.learned", length=f"{position.length:,}")]
    if isinstance(position, config.StoredSinusoids):
        return [word("positions.intro"), word("positions.stored", length=f"{position.length:,}")]
    if not isinstance(position, config.Sinusoidal):  # one's own
        return [word("positions.intro")]
    slow = 2 * math.pi * position.base ** ((dim - 2) / dim)
    formula = word(
        "positions.formula",
        base=f"{position.base:,g}" if position.base < 1e6 else f"{position.base:g}",
        dim=dim,
        fast="6.3",
        slow=f"{round(slow, -int(math.log10(slow)) + 1):,.0f}",
    )
    return [word("positions.intro"), formula, word(f"positions.{position.layout}")]


def png(values: np.ndarray) -> str:
    """Values in −1 … 1 as the data address of a PNG, one pixel each."""
    sign = np.where(values[..., None] > 0, PLUS, MINUS)
    # 51 steps of opacity: no eye sees more, and the file is half as long.
    alpha = np.rint(np.abs(values).clip(0, 1) * 51)[..., None] * 5
    return address(np.concatenate([np.where(alpha > 0, sign, 0), alpha], axis=-1).astype(np.uint8))


def address(pixels: np.ndarray) -> str:
    """Pixels (H W 4, uint8) as the data address of a PNG."""
    buffer = io.BytesIO()
    matplotlib.image.imsave(buffer, pixels, format="png", metadata={"Software": "Allformer"})
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _table(stack: Stack) -> np.ndarray:
    """The vectors of the first positions, P D."""
    position, dim = stack.config.position, stack.config.dim
    most = max(2, min(ROWS, MOST_VALUES // dim))
    if isinstance(position, config.Sinusoidal):
        where = torch.arange(position.start, position.start + most)
        rows = sinusoid(where, dim, layout=position.layout, base=position.base)
    else:
        assert isinstance(stack.source.position, Learned)
        rows = stack.source.position.weight.detach()[:most].float().cpu()
    return rows.nan_to_num().numpy()


def _map(name: str, title: Pair, values: np.ndarray, x_name: Pair, css: str = "") -> Chart:
    scale = float(np.abs(values).max()) or 1.0
    rows, columns = values.shape
    picture = f'<img alt="" src="{png(values / scale)}">'
    plot = frame(picture, name, title, _ticks(columns), _ticks(rows), x_name, f"heat {css}")
    html = (
        f'<figure class="chart {css}"><figcaption><b>{spans(title)}</b>'
        f'<span class="unit">{spans(word("axis.position"))} ↓</span>'
        f'<span class="scale"><i>{-scale:.2g}</i><i class="ramp"></i><i>{scale:.2g}</i></span>'
        f'</figcaption>{plot}<output aria-live="polite"></output></figure>'
    )
    return Chart(html, {"rows": rows, "columns": columns, "scale": scale, "values": _int8(values)})


def _similar(name: str, stack: config.Stack, table: np.ndarray) -> Chart:
    unit = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-9)
    title, axis = word("positions.similar"), word("axis.position")
    chart = _map(name, title, unit @ unit.T, axis, css="square")
    sinusoidal = isinstance(stack.position, config.Sinusoidal)
    note = word("positions.similar.sinusoidal" if sinusoidal else "positions.similar.note")
    html = chart.html.replace("</figure>", f'<p class="note">{spans(note)}</p></figure>')
    return Chart(html, {**chart.data, "similar": True})


def _ticks(n: int) -> list[Tick]:
    """Ticks in the middle of their pixel: 0, and about four more."""
    step = max(1, 2 ** round(math.log2(n / 4))) if n > 4 else 1
    return [((k + 0.5) / n, str(k)) for k in range(0, n, step)]


def _int8(values: np.ndarray) -> str:
    """Values as base64 bytes, −127 … 127, for the script to read out."""
    scale = float(np.abs(values).max()) or 1.0
    return base64.b64encode(np.rint(values / scale * 127).astype(np.int8).tobytes()).decode()
