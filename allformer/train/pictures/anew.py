"""Training scenes that are composed anew for every batch: `data.augment.anew`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from allformer.data.pictures.scenes import Scenes
from allformer.errors import DataError
from allformer.images.augment.compose import Compose, Composed


class Anew:
    """`Anew(pictures, table)(rows, generator, device)`: scenes of the same objects by the same
    rules, and the classes of what is on them (B K, −1: none) as `table` numbers the set's."""

    def __init__(self, pictures: Any, table: Any) -> None:
        if not isinstance(pictures, Scenes):
            raise DataError(
                "data.augment.anew=True composes scenes anew, but the pictures to train on are "
                "no scenes; leave it out, or give data.format=scenes"
            )
        self.scenes = pictures
        self.classes = torch.as_tensor(table)[torch.from_numpy(pictures.numbers).long()]
        self._there: dict[torch.device, tuple[Compose, Tensor]] = {}

    def __call__(
        self, rows: int, generator: Generator, device: torch.device
    ) -> tuple[Composed, Tensor]:
        if device not in self._there:  # all objects, once
            s = self.scenes
            objects = torch.tensor(s.images, device=device)  # a copy: a file's bytes are read-only
            how = Compose(objects, s.canvas, s.objects, s.visible, s.ink)
            self._there[device] = how, self.classes.to(device)
        how, classes = self._there[device]
        found = how(rows, generator)
        named = classes[found.chosen.clamp_min(0)]
        return found, torch.where(found.chosen < 0, found.chosen, named)
