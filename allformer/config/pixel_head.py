"""The head that paints what was hidden."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allformer.config.base import Positive
from allformer.config.check import refuse
from allformer.config.counting import Part, dense
from allformer.config.head import Head
from allformer.config.patches import Patches
from allformer.config.stack import Stack


@dataclass(frozen=True)
class PixelHead(Head):
    """The pixels of each patch from its state: a square of `stride` pixels, by one matrix (SimMIM).

    It learns from the image itself where `bool_masked_pos` hides patches of it: the mean distance
    |x − x̂| of hidden pixels. So `stride` is the source's patch, unless nothing is to be learnt.
    """

    stride: Positive

    def fits(self, stack: Stack) -> None:
        if not isinstance(stack.source, Patches):
            must = "paints patches, but its stack reads no image"
            refuse(self, "stride", must, "give the stack source=Patches(…)")

    def outputs(self, stack: Stack) -> int:
        """Numbers that it gives for each patch."""
        assert isinstance(stack.source, Patches)
        return int(self.stride**2 * stack.source.channels)

    def parameters(self, stack: Stack) -> int:
        return dense(stack.states, self.outputs(stack))

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        wide = self.outputs(stack)
        text = f"d·{wide} + {wide}"
        yield Part(name, text, self.parameters(stack), 2 * stack.states * wide)
