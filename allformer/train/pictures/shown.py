"""Pictures to show with what was said of them: up to half of them mistakes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from allformer.data.pictures.picture import Array
from allformer.images.thumbnail import thumbnail
from allformer.train.pictures.gallery import Gallery
from allformer.train.predictions import Seen


def told_pictures(
    examples: Gallery,
    wanted: Callable[[int], str],
    given: Callable[[int], str],
    right: Array,
    score: Array,
    count: int = 48,
) -> tuple[Seen, ...]:
    """The surest mistakes first, then others in their order; `wanted` and `given` say the words of
    a picture by its number."""
    wrong = np.flatnonzero(~right)
    wrong = wrong[np.argsort(-score[wrong], kind="stable")][: count // 2]
    others = np.flatnonzero(right)[: count - len(wrong)]
    return tuple(
        Seen(
            thumbnail(_picture(examples, i)),
            wanted(i),
            given(i),
            bool(right[i]),
            round(float(score[i]), 4),
        )
        for i in map(int, (*wrong, *others))
    )


def _picture(examples: Gallery, index: int) -> Array:
    """As the model sees it, H W C, or grey H W."""
    pixels: Array = examples.pixels(np.array([index]))[0]
    return pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
