"""Mean intersection over union: how well maps of classes agree, over a whole set.

counts = confusion(predicted, wanted, classes=21)      # added up over all pictures
iou(counts).mean

|A ∩ B| / |A ∪ B| of each class over the pixels of all pictures together, and the mean of those
classes that are there at all (Everingham et al., 2015); it is no mean over pictures.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from allformer.errors import ConfigError


class Agreement(NamedTuple):
    """The mean over classes; of each class, nan where it is nowhere; and the share of pixels."""

    mean: float
    classes: tuple[float, ...]
    accuracy: float


def confusion(predicted: Tensor, wanted: Tensor, classes: int) -> Tensor:
    """How many pixels of each class (rows) were taken for each (columns), classes × classes.

    `wanted` below 0 does not count.
    """
    if predicted.shape != wanted.shape:
        raise ConfigError(
            f"predicted={tuple(predicted.shape)} and wanted={tuple(wanted.shape)} must be maps of "
            f"one size; resize the scores"
        )
    real = wanted >= 0
    # No pixel is taken out, so that nothing waits for the device: the last bin is thrown away.
    pairs = torch.where(real, wanted.long() * classes + predicted.long(), classes**2)
    return torch.bincount(pairs.flatten(), minlength=classes**2 + 1)[:-1].view(classes, classes)


def iou(counts: Tensor) -> Agreement:
    """What a confusion matrix comes to."""
    both = counts.diagonal().double()
    either = (counts.sum(0) + counts.sum(1)).double() - both
    each = both / either  # 0 / 0 is nan: a class that nobody has and nobody says
    there = each[either > 0]
    total = float(counts.sum())
    return Agreement(
        float(there.mean()) if len(there) else 0.0,
        tuple(each.tolist()),
        float(both.sum()) / total if total else 0.0,
    )
