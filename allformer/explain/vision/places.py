"""What a model knows of where patches lie: how alike the position vectors of any two are, a small
map for each patch (Dosovitskiy et al., 2021, figure 7)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from allformer import config
from allformer.core.model import Model
from allformer.explain.heat import png
from allformer.explain.vision.looks import seeing_stack
from allformer.explain.words import Pair, label, spans, word

MOST = 10  # maps beside each other; a finer grid is thinned


def about_places(model: config.Model) -> list[Pair]:
    """What is said of the positions of a model that sees."""
    name = seeing_stack(model)
    if name is None:
        return []
    position = model.stacks[name].position
    if isinstance(position, config.LearnedPlane):
        rows, columns = position.shape
        return [word("places.intro"), word("places.learned", rows=rows, columns=columns)]
    if isinstance(position, config.SinusoidalPlane):
        return [word("places.intro"), word("places.computed")]
    return [word("places.intro" if position is not None else "positions.none")]


def place_map(model: Model[Any]) -> str:
    """The maps side by side, as one picture; empty where positions are of another kind."""
    name = seeing_stack(model.config)
    if name is None:
        return ""
    stack = model.config.stacks[name]
    if not isinstance(stack.position, config.Plane):
        return ""
    shape = stack.source.shape
    with torch.no_grad():
        like = torch.zeros((), device=model.device)
        table = model.stack(name).source.position(shape, stack.source.placed, like)
    patches = slice(stack.source.placed, stack.source.placed + shape[0] * shape[1])
    vectors = table[patches].detach().float().cpu().nan_to_num().numpy()
    values = similarities(vectors, shape)
    title = word("places.title")
    rows, columns = (len(_some(n)) for n in shape)
    return (
        f'<figure class="chart places"><figcaption><b>{spans(title)}</b>'
        f'<span class="scale"><i>−1</i><i class="ramp"></i><i>1</i></span></figcaption>'
        f'<img class="mosaic" role="img" {label(title)} src="{png(values)}" '
        f'style="aspect-ratio:{values.shape[1]}/{values.shape[0]}">'
        f'<p class="note">{spans(word("places.note", rows=rows, columns=columns))}</p></figure>'
    )


def similarities(vectors: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Cosines of R·C vectors as a mosaic of maps R × C, a line of zeros between two of them."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    maps = (unit @ unit.T).reshape(*shape, *shape)[np.ix_(_some(shape[0]), _some(shape[1]))]
    maps = np.pad(maps, ((0, 0), (0, 0), (0, 1), (0, 1)))  # its own gap behind each
    down, across, height, width = maps.shape
    mosaic = maps.transpose(0, 2, 1, 3).reshape(down * height, across * width)
    return np.ascontiguousarray(mosaic[:-1, :-1])


def _some(n: int) -> list[int]:
    """All of n, or `MOST` of them from the first to the last."""
    return sorted({round(x) for x in np.linspace(0, n - 1, min(n, MOST))})
