"""The labels of pictures as numbers among a run's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from allformer.data.pictures import Pictures
from allformer.data.pictures.picture import Array
from allformer.errors import DataError


def numbers_of(pictures: Pictures, labels: Sequence[str], objective: str) -> Array:
    """Of each picture the number of its label among `labels`: found by name, or where the pictures
    have but numbers and the labels are words, as it is."""
    ours = {name: i for i, name in enumerate(labels)}
    names = pictures.labels
    if set(names) <= set(ours):
        table = [ours[name] for name in names]
    elif len(names) <= len(ours) and all(name.isdigit() for name in names):
        table = list(range(len(names)))
    else:
        odd = sorted(set(names) - set(ours))
        raise DataError(
            f"the pictures have labels that the model has not: {', '.join(odd[:5])}; it has "
            f"{', '.join(labels[:20])}; for a head of the pictures' own give model.head="
            f"{{kind: classes}} (allformer tune: --new-head)"
        )
    found = [pictures[i].label for i in range(len(pictures))]
    if None in found:
        raise DataError(
            f"{pictures[found.index(None)].name or 'a picture'} has no label; objective="
            f"{objective!r} needs one for each"
        )
    return np.asarray(table, dtype=np.int64)[np.asarray(found, dtype=np.int64)]
