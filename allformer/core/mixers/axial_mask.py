"""Text and an image in one sequence: a code looks at all of the text, and back along its row, up
its column or around itself (DALL-E).

Masks are made of places, so that a step of decoding sees what the whole row sees.

Legend: R rows, T queries, S keys.
"""

from __future__ import annotations

from torch import Tensor

from allformer import config
from allformer.core.kernels import Case, Plan, choose
from allformer.core.layout import Packed
from allformer.core.look import blind_rows, make_look
from allformer.core.mixers.full import Full
from allformer.core.mixers.mixer import Scene
from allformer.core.places import Places
from allformer.core.registry import implements


class ImageMask(Full):
    """Softmax over those that `reached` and causality let a code see."""

    def reached(self, far: Tensor) -> Tensor:
        """Whether a code looks at one that stands so `far` before it."""
        raise NotImplementedError

    def plan(self, scene: Scene) -> Plan:
        side = scene.query if isinstance(scene.query, Packed) else None
        case = Case(
            scene.kernel, scene.device, scene.dtype, self.size, side is not None, full=False,
            grouped=self.heads != self.groups, drops=self.training and self.dropout > 0,
        )  # fmt: skip
        places = scene.places()
        mask = self.mask(places)
        blind = None if places.real is None else blind_rows(mask)
        look = make_look(mask, blind=blind, bias=scene.relation.bias(places))
        return Plan(choose(case), look, places, side, side)

    def mask(self, places: Places) -> Tensor:
        """(R or 1) 1 T S, True = may look."""
        far = -places.distance  # R T S
        words = places.key[:, None, :] < self.config.text
        mask: Tensor = (far >= 0) & (words | self.reached(far))
        if places.real is not None:
            mask = mask & places.real[:, None, :]
        if places.path is not None:
            mask = mask & places.path
        return mask[:, None]


@implements(config.RowMask)
class RowMask(ImageMask):
    """Back to the code above."""

    def reached(self, far: Tensor) -> Tensor:
        return far.le(self.config.width)


@implements(config.ColumnMask)
class ColumnMask(ImageMask):
    """Straight up."""

    def reached(self, far: Tensor) -> Tensor:
        width: int = self.config.width
        return far.remainder(width).eq(0)


@implements(config.NearMask)
class NearMask(ImageMask):
    """Up to half a kernel up, and to either side."""

    def reached(self, far: Tensor) -> Tensor:
        c: config.NearMask = self.config
        side, width = c.kernel // 2, c.width
        row = ((far + width // 2) // width).clamp(max=side)  # the nearest that is in the kernel
        return (far - row * width).abs().le(side)
