"""Scenes composed anew for every batch, on the device: no two that training sees are alike.

Legend: M objects to choose from, B scenes, K objects of a scene at most, T places tried for each,
h w an object's sides, H W the canvas's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from allformer.images.augment.chain import Drawn, there

TRIES = 8  # places for an object before it is left out
NOBODY = -1


class Composed(NamedTuple):
    """Scenes, and what is on them."""

    pixels: Tensor  # B 1 H W, uint8
    owner: Tensor  # B H W: the number of the object that is seen there, −1: none
    chosen: Tensor  # B K: which of the M it is, −1: none
    boxes: Tensor  # B K 4: centre and size of what is seen of it, as shares of the canvas


@dataclass(frozen=True, eq=False)
class Compose:
    """`Compose(objects, (96, 96), (2, 5), 0.7, 16)(rows, generator)`: from `count[0]` to `count[1]`
    of the `objects` (M h w, uint8; they say where scenes are made) on each canvas, fewer where no
    place is found. An object is where its pixels are at least `ink`; what lies later covers what
    lies below it, but of each a share of `visible` is seen at least. `data/pictures/scenes.py` has
    the same rule for scenes that stay.
    """

    objects: Tensor
    canvas: tuple[int, int]
    count: tuple[int, int]
    visible: float
    ink: int

    def __call__(self, rows: int, generator: Generator) -> Composed:
        return self.apply(self.draw(rows, generator))

    def draw(self, rows: int, generator: Generator) -> Drawn:
        """Of each scene which objects, B K, who of them is there, and the corners that are tried
        for each, B K T 2, on the host."""
        most, (high, wide) = self.count[1], self.objects.shape[1:]
        chosen = torch.randint(len(self.objects), (rows, most), generator=generator)
        counts = torch.randint(self.count[0], most + 1, (rows, 1), generator=generator)
        present = torch.arange(most) < counts
        free = torch.tensor([self.canvas[0] - high + 1, self.canvas[1] - wide + 1])
        corners = (torch.rand(rows, most, TRIES, 2, generator=generator) * free).long()
        return chosen, present, corners

    def apply(self, drawn: Drawn) -> Composed:
        """What was drawn, laid on canvases."""
        return self._laid(*(there(x, self.objects) for x in drawn))

    def _laid(self, chosen: Tensor, present: Tensor, corners: Tensor) -> Composed:
        """Each object at the first of its places that leaves enough of all below it."""
        (rows, most), (height, width) = chosen.shape, self.canvas
        device, span = chosen.device, self.objects.shape[1:]
        image = torch.zeros(rows, height * width, dtype=torch.uint8, device=device)
        owner = torch.full((rows, height * width), NOBODY, dtype=torch.int64, device=device)
        left = torch.zeros(rows, most, device=device)  # pixels of each that may still be covered
        down, right = (torch.arange(n, device=device) for n in span)
        inside = (down[:, None] * width + right).flatten()  # h·w
        numbers = torch.arange(most, device=device)
        kept = []
        for k in range(most):
            stamp = self.objects[chosen[:, k]].flatten(1)  # B h·w
            ink = stamp >= self.ink
            first = corners[:, k, :, 0] * width + corners[:, k, :, 1]  # B T
            places = first[..., None] + inside  # B T h·w
            under = owner.gather(1, places.flatten(1)).view_as(places)
            under = torch.where(ink[:, None], under, NOBODY)
            covered = (under[..., None] == numbers).sum(2)  # B T K
            fits = (covered <= left[:, None]).all(2)  # B T
            laid = fits.any(1) & present[:, k] & ink.any(1)
            which = fits.int().argmax(1)[:, None, None].expand(-1, 1, places.shape[2])
            place = places.gather(1, which)[:, 0]  # B h·w
            over = ink & laid[:, None]
            gone = (over[..., None] & (owner.gather(1, place)[..., None] == numbers)).sum(1)
            left = left - gone
            image = image.scatter(1, place, torch.where(over, stamp, image.gather(1, place)))
            owner = owner.scatter(1, place, torch.where(over, k, owner.gather(1, place)))
            area = ink.sum(1)
            left[:, k] = area - (self.visible * area).ceil()
            kept.append(torch.where(laid, chosen[:, k], NOBODY))
        owner = owner.view(rows, height, width)
        named = torch.stack(kept, 1)
        return Composed(image.view(rows, 1, height, width), owner, named, self._boxes(owner, named))

    def _boxes(self, owner: Tensor, named: Tensor) -> Tensor:
        """Around what is seen of each object; of none nothing."""
        seen = owner[:, None] == torch.arange(named.shape[1], device=owner.device)[:, None, None]
        ends = []
        for size, across in zip(self.canvas, (3, 2), strict=True):
            line = seen.any(across)  # B K size
            low = line.int().argmax(2)
            high = size - line.flip(2).int().argmax(2)
            ends.append((low / size, high / size))
        (top, bottom), (start, end) = ends
        boxes = torch.stack([(start + end) / 2, (top + bottom) / 2, end - start, bottom - top], 2)
        return boxes * (named != NOBODY)[..., None]
