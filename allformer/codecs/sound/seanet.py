"""The halves of a sound codec: convolutions, residual blocks, an LSTM, as `Seanet` lists them.

Their layers are numbered as in transformers' files, activations included.

Legend: B batch, C channels, T steps of time, d numbers a frame, F frames.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from allformer.codecs.sound.convolution import Convolution, Upward
from allformer.codecs.sound.lstm import LSTM
from allformer.codecs.sound.seanet_config import Bend, Conv, Layer, Recurrent, Residual, Seanet
from allformer.core.taps import tap


class Block(nn.Module):
    """A residual block: x (or a convolution of it) + two convolutions, each behind an ELU."""

    def __init__(self, block: Residual, trunk: Seanet) -> None:
        super().__init__()
        first, second, beside = trunk.within(block)
        self.block = nn.ModuleList(made(x, trunk) for x in (Bend(), first, Bend(), second))
        self.shortcut = nn.Identity() if beside is None else made(beside, trunk)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for part in self.block:
            y = part(y)
        out: Tensor = self.shortcut(x) + y
        return out


def made(layer: Layer, trunk: Seanet) -> nn.Module:
    """The module of a layer."""
    if isinstance(layer, Conv):
        return (Upward if layer.up else Convolution)(layer, trunk, trunk.norm)
    if isinstance(layer, Residual):
        return Block(layer, trunk)
    if isinstance(layer, Recurrent):
        return LSTM(layer.width, trunk.lstm)
    return nn.ELU()


class Half(nn.Module):
    """An encoder, B C T → B d F, or a decoder, B d F → B C T."""

    def __init__(self, layers: Iterable[Layer], trunk: Seanet, path: str) -> None:
        super().__init__()
        self.path = path
        self.layers = nn.ModuleList(made(layer, trunk) for layer in layers)

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = tap(self, str(i), layer(x))
        return x
