"""A codec's weights by the first sounds that it shall read (Salimans & Kingma, 2016, section 3).

Whatever the level of the recordings and the depth of the trunk, each convolution begins with
outputs of mean 0 and variance 1; so no step is lost on loudness, and frames meet codebooks of their
own size.

Legend: B sounds, C channels, T samples, d numbers a frame, F frames.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from allformer.codecs.sound.convolution import Weighted
from allformer.codecs.sound.encodec import EncodecModel
from allformer.codecs.sound.seanet import Block, Half

_QUIET = 0.1  # of the sounds' level: the last convolution begins nearly silent
_LITTLE = 1e-8


@torch.no_grad()
def start_on(codec: EncodecModel, wave: Tensor) -> None:
    """Scale the convolutions of a fresh codec by sounds B C T: `start_on(codec, crops)`."""
    level = float(wave.std())
    frames = _through(codec.encoder, wave, 1.0)
    _through(codec.decoder, frames, _QUIET * max(level, _LITTLE))


def _through(half: Half, x: Tensor, last: float) -> Tensor:
    layers = list(half.layers)
    for layer in layers[:-1]:
        x = _settled(layer, x)
    return _settled(layers[-1], x, last)


def _settled(layer: nn.Module, x: Tensor, wanted: float = 1.0) -> Tensor:
    """What the layer gives once its convolutions are scaled to this deviation."""
    if isinstance(layer, Block):
        y = x
        for part in layer.block:
            y = _settled(part, y)
        return _settled(layer.shortcut, x) + y
    if isinstance(layer, Weighted):
        scale = wanted / (layer(x).std() + _LITTLE)
        for tensor in (layer.weight if layer.length is None else layer.length, layer.bias):
            if tensor is not None:
                tensor.mul_(scale)
        if layer.bias is not None:
            layer.bias.sub_(layer(x).mean((0, 2)))
    out: Tensor = layer(x)
    return out
