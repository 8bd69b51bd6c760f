"""Two image codecs of the same weights, run on the same images.

A code is the likeliest or nearest of many, and rounding alone may choose another. So what is
compared is what the encoder says before a code is chosen, and the images of one codec's codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from allformer.codecs import CodecModel


def compare_images(
    ours: CodecModel[Any], other: CodecModel[Any], rows: int, seed: int
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """By name, what both give: `encoder` and `images`."""
    make = torch.Generator().manual_seed(seed)
    pixels = torch.rand(rows, ours.config.channels, *ours.config.image, generator=make)
    one, two = (codec.encoder(codec.as_input(codec.sized(pixels))) for codec in (ours, other))
    yield "encoder", one, two
    ids = ours.encode(pixels)
    yield "images", ours.decode(ids), other.decode(ids)
