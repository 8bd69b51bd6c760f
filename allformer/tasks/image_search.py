"""`search_images` and `search_texts`: what is nearest to a text, or to an image (CLIP)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from allformer.errors import ConfigError
from allformer.images.processor import WORKERS
from allformer.images.read import Image
from allformer.tasks.image_pipeline import BATCH, ImageSource, as_images
from allformer.tasks.image_text import image_similarity
from allformer.tasks.result import Match

TOP = 10


def search_images(
    pipeline: ImageSource,
    texts: str | Sequence[str],
    images: Sequence[Image],
    *,
    top: int = TOP,
    batch: int = BATCH,
    workers: int = WORKERS,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """The images that are nearest to a text, nearest first; of several texts a list each.

    >>> search_images("openai/clip-vit-base-patch32", "a cat", ["dog.jpg", "cat.jpg"], top=1)
    [Match(score=0.2895, index=1, found='cat.jpg')]

    `score` is the cosine, `index` the image's number in the list. Each image is read once, however
    many texts are looked for.
    """
    _check(top)
    words = [texts] if isinstance(texts, str) else list(texts)
    given = list(images)
    scores = image_similarity(
        pipeline, given, words, batch=batch, workers=workers, progress=progress
    )
    found = [ranked(column, given, top) for column in scores.T]
    return found[0] if isinstance(texts, str) else found


def search_texts(
    pipeline: ImageSource,
    images: Image | Sequence[Image],
    texts: Sequence[str],
    *,
    top: int = TOP,
    batch: int = BATCH,
    workers: int = WORKERS,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """The texts that are nearest to an image, nearest first; of several images a list each.

    >>> search_texts("openai/clip-vit-base-patch32", "cat.jpg", ["a dog", "a cat"], top=1)
    [Match(score=0.2895, index=1, found='a cat')]
    """
    _check(top)
    many, one = as_images(images)
    words = list(texts)
    scores = image_similarity(
        pipeline, many, words, batch=batch, workers=workers, progress=progress
    )
    found = [ranked(row, words, top) for row in scores]
    return found[0] if one else found


def ranked(scores: Tensor, things: Sequence[Any], top: int | None = None) -> list[Match]:
    """The `top` things by their scores; of equal ones the earlier comes first."""
    order = scores.argsort(descending=True, stable=True)[:top].tolist()
    return [Match(scores[i].item(), i, things[i]) for i in order]


def _check(top: int) -> None:
    if top < 1:
        raise ConfigError(f"top={top} must be at least 1: so many are given")
