"""`draw`: images of a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from allformer.errors import ConfigError
from allformer.tasks.call import check_texts
from allformer.tasks.drawing_kit import ColourKit, Pixels, TextKit, open_drawing
from allformer.tasks.image_pipeline import ImageSource, as_image_pipeline
from allformer.tasks.image_text import image_similarity

BATCH = 64  # images that are drawn together
MORE = 4  # drawn for each one that is kept, where a CLIP chooses
DrawingSource = TextKit | ColourKit | str | Path


@dataclass(frozen=True, eq=False)
class Drawing:
    """An image, H W C of bytes; `score` is how near a CLIP finds it to the text."""

    text: str | None
    image: Pixels = field(repr=False)
    score: float | None = None


def draw(
    kit: DrawingSource,
    text: str | Sequence[str] | None = None,
    *,
    count: int = 8,
    temperature: float = 1.0,
    top_k: int | None = None,
    guidance: float = 1.0,
    seed: int = 0,
    rerank: ImageSource | None = None,
    candidates: int | None = None,
    batch: int = BATCH,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """`count` images of a text; of a list of texts, a list for each.

    >>> draw("runs/fashion-dalle", "a red shoe", count=2)
    [Drawing(text='a red shoe', score=None), Drawing(text='a red shoe', score=None)]

    `temperature` below 1 is safer, above 1 bolder; `top_k` keeps the likeliest codes; `guidance`
    above 1 follows the text more closely (of a model that was trained with `drop`). With `rerank`,
    a CLIP, `candidates` (four for each) are drawn, and the nearest to the text kept, best first.
    The same `seed` gives the same images. An ImageGPT draws without a text. `progress` hears how
    many images are drawn.
    """
    _check(count, temperature, top_k, candidates, batch)
    kit = kit if isinstance(kit, TextKit | ColourKit) else open_drawing(kit)
    texts = _texts(kit, text, rerank)
    each = count if rerank is None else (candidates or MORE * count)
    if each < count:
        raise ConfigError(f"candidates={each} must be at least count={count}; give more")
    options = {"temperature": temperature, "top_k": top_k, "guidance": guidance}
    images = _draw(kit, texts, each, seed, batch, progress, options)
    found = []
    judge = None if rerank is None else as_image_pipeline(rerank)
    for i, said in enumerate(texts):
        own = images[i * each : (i + 1) * each]
        drawn = [Drawing(said or None, image) for image in own]
        if judge is not None:
            drawn = _best(judge, drawn, said, count)
        found.append(drawn)
    return found[0] if text is None or isinstance(text, str) else found


def _draw(
    kit: TextKit | ColourKit,
    texts: list[str],
    each: int,
    seed: int,
    batch: int,
    progress: Callable[[int], None] | None,
    options: dict[str, Any],
) -> Pixels:
    """`each` images of every text, one text after the other."""
    which = np.repeat(np.arange(len(texts)), each)
    chance = _noise(len(which), kit.cells, seed)
    found = []
    for first in range(0, len(which), batch):
        part = slice(first, first + batch)
        needed, own = np.unique(which[part], return_inverse=True)
        said = [texts[i] for i in needed.tolist()]
        found.append(kit.draw(said, torch.from_numpy(own), chance[part], **options))
        if progress is not None:
            progress(min(first + batch, len(which)))
    return np.concatenate(found)


def _noise(rows: int, cells: int, seed: int) -> Tensor:
    """Numbers above 0 and at most 1, row after row: the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return 1 - torch.rand(rows, cells, generator=generator, dtype=torch.float64)


def _best(judge: Any, drawn: list[Drawing], text: str, count: int) -> list[Drawing]:
    """The nearest to the text, nearest first."""
    scores = image_similarity(judge, [one.image for one in drawn], text).tolist()
    scored = [Drawing(one.text, one.image, s) for one, s in zip(drawn, scores, strict=True)]
    return sorted(scored, key=lambda one: -(one.score or 0.0))[:count]


def _texts(
    kit: TextKit | ColourKit, text: str | Sequence[str] | None, rerank: ImageSource | None
) -> list[str]:
    """What is to be drawn; "" where nothing is said."""
    if text is None:
        if rerank is not None:
            raise ConfigError("rerank chooses images by a text; give one")
        return [""]
    if not kit.reads:
        raise ConfigError(
            f"{kit.directory} draws pixel after pixel and reads no text; leave the text out"
        )
    texts = [text] if isinstance(text, str) else list(text)
    check_texts(texts)
    if not texts:
        raise ConfigError("there is no text to draw; give one or more")
    return texts


def _check(
    count: int, temperature: float, top_k: int | None, candidates: int | None, batch: int
) -> None:
    """Refuse what cannot be, before anything is opened."""
    for name, value in (("count", count), ("candidates", candidates), ("batch", batch)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError(
            f"temperature={temperature} must be a number above 0; below 1 is safer, above 1 bolder"
        )
    if top_k is not None and top_k < 1:
        raise ConfigError(f"top_k={top_k} must be at least 1; leave it out to keep all")
