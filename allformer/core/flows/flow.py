"""What a flow is: it carries states through the layers and hands each sub-layer its input."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from allformer import config
from allformer.core.block import Block, Step


class Run(NamedTuple):
    """A layer at its place: its sub-layers, ready to be called, and the path that it speaks under
    (layers that are shared stand at several). What `keeps` a state changes it: it runs once."""

    layer: Block
    steps: list[Step]
    path: str
    keeps: bool = False


class Flow(nn.Module):
    """The module for a `flow` slot."""

    def __init__(self, flow: config.Flow, path: str) -> None:
        super().__init__()
        self.config, self.path = flow, path

    def forward(self, x: Tensor, runs: list[Run], draws: bool) -> Tensor:
        """What the first layer reads, … dim → what the stack gives, before its final norm.

        `draws`: some layer draws from torch's generator.
        """
        raise NotImplementedError
