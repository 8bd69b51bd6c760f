"""Pictures of one size, each with a text: what a batch of pairs is made of.

Legend: N pictures, B those of a batch, U its distinct texts, T tokens of the longest.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from allformer.data.encoded import Rows
from allformer.data.pictures import Pictures
from allformer.data.pictures.picture import Array
from allformer.train.pictures.captions import Captions
from allformer.train.pictures.gallery import Gallery


class CaptionedGallery(Gallery):
    """Pictures and what is said of them, `rows` of ids; `at` draws an epoch's."""

    def __init__(
        self, captions: Captions, rows: Rows, width: int | None, pictures: Pictures, *more: Any
    ) -> None:
        """`width`: of all rows, or as wide as the longest."""
        super().__init__(pictures, *more)
        self.captions, self.rows = captions, rows
        self.drawn: Array = captions.drawn(0)  # N, of each picture its text
        self.batches: list[Array] | None = None  # in an order of their own
        self.width = width or int(rows.lengths.max())
        self.origin: CaptionedGallery = self  # which keeps the pixels, for all epochs

    def at(self, seed: int, epoch: int, size: int) -> CaptionedGallery:
        """The same pictures as an epoch has them: texts drawn anew, whole batches of `size`.

        What is left over at the end waits for another epoch: a smaller batch would be an easier
        one, and every rank of several must have as many.
        """
        size = min(size, len(self))
        order = np.random.default_rng([seed, epoch]).permutation(len(self))
        new = copy.copy(self)
        new.drawn = self.captions.drawn(seed, epoch, 1)
        new.batches = list(order[: len(order) // size * size].reshape(-1, size))
        return new

    def pixels(self, index: Array) -> Array:
        """Those of the pictures numbered `index`."""
        return super().pixels(index) if self.origin is self else self.origin.pixels(index)

    def expect(self, index: Array) -> None:
        """Begin to read those."""
        super().expect(index) if self.origin is self else self.origin.expect(index)

    def texts(self, index: Array, room: int | None, pad: int) -> tuple[Array, Array, Array]:
        """The distinct texts of some pictures: ids U T, which are real U T, and of each picture
        which it is, B. With `room` there are so many rows: the first one again, for nobody."""
        own, which = np.unique(self.drawn[index], return_inverse=True)
        if room is not None:
            size = min(room, len(self.rows))
            own = np.concatenate([own, np.repeat(own[:1], size - len(own))])
        ids, keep = grid(self.rows, own, self.width, pad)
        return ids, keep, which.reshape(-1)


def grid(rows: Rows, index: Array, width: int, pad: int) -> tuple[Array, Array]:
    """Rows of ids side by side, padded at the right: ids and which of them are real."""
    lengths = rows.lengths[index]
    keep = np.arange(width) < lengths[:, None]
    ids = np.full(keep.shape, pad, np.int64)
    ids[keep] = rows.take(index).flat()
    return ids, keep
