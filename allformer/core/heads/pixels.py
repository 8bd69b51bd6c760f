"""Pixels of hidden patches, from the states of all.

Legend: B images, C channels, H and W rows and columns of patches, S the head's stride.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from allformer import config
from allformer.core.heads.head import Head, Hidden
from allformer.core.linear import Linear
from allformer.core.loss import Sums
from allformer.core.precision import widen
from allformer.core.registry import implements
from allformer.core.taps import tap
from allformer.errors import ConfigError


@implements(config.PixelHead)
class PixelHead(Head):
    """B F+N dim → B C H·S W·S: each state becomes a square of the image (SimMIM)."""

    gives = ("reconstruction",)
    targets = ()  # the image itself, which the source reads

    def __init__(
        self, head: config.PixelHead, stack: config.Stack, path: str, **given: Any
    ) -> None:
        super().__init__(head, stack, path)
        self.out = Linear(stack.states, head.outputs(stack))

    def outputs(self, hidden: Hidden) -> dict[str, Tensor]:
        source: Any = self.stack.source
        rows, columns = source.cut(*hidden.inputs["pixel_values"].shape[2:])
        x = self.out(hidden.grid[:, source.patches])  # B N C·S·S
        x = x.transpose(1, 2).unflatten(2, (rows, columns))
        return {"reconstruction": tap(self, "pixels", F.pixel_shuffle(x, self.config.stride))}

    def learns(self, targets: Mapping[str, Tensor], hidden: Hidden) -> bool:
        return hidden.inputs.get("bool_masked_pos") is not None

    def sums(
        self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], hidden: Hidden
    ) -> Sums:
        """|x − x̂| over the pixels of hidden patches; what makes no whole patch does not count."""
        side = self.config.stride
        if side != self.stack.source.patch:  # type: ignore[attr-defined]
            raise ConfigError(
                f"PixelHead.stride={side} paints other squares than "
                f"Patches.patch={self.stack.source.patch} "  # type: ignore[attr-defined]
                f"hides; make them equal, or leave bool_masked_pos out"
            )
        guess = widen(outputs["reconstruction"])
        height, width = guess.shape[2:]
        pixels = hidden.inputs["pixel_values"][:, :, :height, :width].to(guess.dtype)
        hide = hidden.inputs["bool_masked_pos"].bool()
        hide = hide.view(-1, 1, height // side, width // side)
        hide = hide.repeat_interleave(side, 2).repeat_interleave(side, 3)
        loss = ((pixels - guess).abs() * hide).sum() / guess.shape[1]
        # As the reference has it: the small number was against 0 / 0.
        return Sums(loss, loss.detach(), hide.sum() + 1e-5)
