"""Training scenes that are composed anew for every batch: `data.augment.anew`."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Generator, Tensor

from allformer.config.check import Rule
from allformer.data.pictures.scenes import Scenes
from allformer.errors import DataError
from allformer.images.augment.chain import Drawn
from allformer.images.augment.compose import Compose, Composed

_TWO = Rule(lambda x: len(x) == 2 and 1 <= x[0] <= x[1], "must be two numbers", "try [2, 5]")
Objects = Annotated[tuple[int, ...], _TWO]


class Anew:
    """`anew.apply(anew.draw(rows, generator), device)`: scenes of the same objects by the same
    rules, and the classes of what is on them (B K, −1: none) as `table` numbers the set's.

    `objects` are how many there are on each, if not as many as on the set's own: of a fuller scene
    more is learnt in the same time."""

    def __init__(self, pictures: Any, table: Any, objects: tuple[int, ...] | None = None) -> None:
        if not isinstance(pictures, Scenes):
            raise DataError(
                "data.augment.anew=True composes scenes anew, but the pictures to train on are "
                "no scenes; leave it out, or give data.format=scenes"
            )
        self.scenes = pictures
        self.objects = pictures.objects if objects is None else (objects[0], objects[1])
        self.classes = torch.as_tensor(table)[torch.from_numpy(pictures.numbers).long()]
        self._there: dict[torch.device, tuple[Compose, Tensor]] = {}

    def draw(self, rows: int, generator: Generator) -> Drawn:
        """What is on so many scenes, on the host."""
        return self._on(torch.device("cpu"))[0].draw(rows, generator)

    def apply(self, drawn: Drawn, device: torch.device) -> tuple[Composed, Tensor]:
        """The scenes, composed on a device."""
        how, classes = self._on(device)
        found = how.apply(drawn)
        named = classes[found.chosen.clamp_min(0)]
        return found, torch.where(found.chosen < 0, found.chosen, named)

    def _on(self, device: torch.device) -> tuple[Compose, Tensor]:
        """All objects on a device, and their classes."""
        if device not in self._there:  # all objects, once
            s = self.scenes
            objects = torch.tensor(s.images, device=device)  # a copy: a file's bytes are read-only
            how = Compose(objects, s.canvas, self.objects, s.visible, s.ink)
            self._there[device] = how, self.classes.to(device)
        return self._there[device]
