"""What each pixel of a picture belongs to: segments, each of a class.

Legend: H height, W width, n segments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from allformer.data.pictures.picture import Array, Picture
from allformer.errors import DataError


@dataclass(frozen=True, eq=False)
class Areas:
    """`ids` (H W) is the number of a segment at each pixel, −1 for none; `classes` (n) says which
    of the set's labels a segment shows (−1: it does not count), `things` (n) whether it is one of
    many that are counted.

    `whole`: what is in no segment is known to be nothing else, the background; otherwise nothing is
    known of it, and it does not count.
    """

    ids: Array
    classes: Array
    things: Array | None = None
    whole: bool = False

    def labelled(self, first: int = 0) -> Array:
        """Of each pixel its label, H W int16, those of the set from `first` on; −1: none."""
        known = np.where(self.classes < 0, -1, self.classes + first)
        table = np.append(known, -1).astype(np.int16)
        found: Array = table[self.ids]
        return found


@dataclass(frozen=True, eq=False)
class Mapped(Picture):
    """A picture whose areas are read when they are asked for."""

    areas: Callable[[], Areas] | None = None


def areas_of(picture: Picture) -> Areas:
    """The areas of a picture, from its map or from the masks of its objects; of two masks over each
    other the later lies above. Crowds do not count."""
    if isinstance(picture, Mapped) and picture.areas is not None:
        return picture.areas()
    if picture.masks is None or picture.classes is None:
        raise DataError(
            f"{picture.name or 'a picture'} has no masks: nothing says what its pixels show; give "
            f"a set with masks (PNG maps, COCO, VOC, or data.format=scenes)"
        )
    ids = np.full(picture.masks.shape[1:], -1, np.int32)
    for number, mask in enumerate(picture.masks):
        ids[np.asarray(mask, bool)] = number
    classes = np.array(picture.classes, np.int64)
    if (crowd := getattr(picture, "crowd", None)) is not None:
        classes[crowd] = -1
    return Areas(ids, classes, np.ones(len(classes), bool), whole=True)
