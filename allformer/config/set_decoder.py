"""An encoder over an image, and a decoder of queries that look for what is on it (DETR)."""

from __future__ import annotations

from dataclasses import dataclass

from allformer.config.check import refuse
from allformer.config.head import Head
from allformer.config.model import Model, no_cross
from allformer.config.queries import Queries
from allformer.config.resnet import ResNet
from allformer.config.stack import Stack


@dataclass(frozen=True)
class SetDecoder(Model):
    """DETR's shape (Carion et al., 2020): all queries are answered at once, none before another.

    Positions are added to queries and keys in every layer, never to values: sines and cosines of
    row and column to the encoder's, and the learned vectors of `Queries` to the decoder's.
    """

    encoder: Stack
    decoder: Stack
    head: Head | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        no_cross(self, "encoder")
        if not isinstance(self.encoder.source, ResNet):
            refuse(self, "encoder", "reads no feature map", "give it source=ResNet(…)")
        if not isinstance(self.decoder.source, Queries):
            refuse(self, "decoder", "has no queries", "give it source=Queries(100)")
        for name, stack in self.stacks.items():
            if stack.causal or stack.position is not None or stack.relative is not None:
                must = "must look everywhere, with the positions of this model alone"
                refuse(self, name, must, "set causal=False, position=None and relative=None")
        if any(block.cross is None for block in self.decoder.blocks):
            refuse(self, "decoder", "has a Block with cross=None", "give cross=Attention(…)")
        if self.encoder.states != self.decoder.dim:
            must = f"has dim={self.decoder.dim}, but the encoder's states {self.encoder.states}"
            refuse(self, "decoder", must, "give both the same dim")
        if self.encoder.dim % 4:
            must = f"has dim={self.encoder.dim}, of which a quarter each are sines of rows, …"
            refuse(self, "encoder", must, f"try {self.encoder.dim + 4 - self.encoder.dim % 4}")
        if self.head is not None:
            self.head.fits(self.decoder)
