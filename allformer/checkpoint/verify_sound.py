"""Two sound codecs of the same weights, ours or transformers', run on the same sound.

A code is the nearest of many, and rounding alone may choose another where two are equally near. So
what is compared is the frames before they are quantised, and the sound of one codec's codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from allformer.codecs.sound import SoundCodecModel

LENGTH = 1  # second


def compare_sound(
    ours: SoundCodecModel[Any], other: Any, rows: int, seed: int
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """By name, what both give: `frames` and `audio_values`."""
    make = torch.Generator().manual_seed(seed)
    wave = torch.rand(rows, ours.channels, LENGTH * ours.rate, generator=make) * 2 - 1
    frames = ours.compressed(wave)
    yield "frames", frames, _frames(other, wave)
    codes = ours.choose(frames, ours.books)
    yield "audio_values", ours.sounded(ours.vectors(codes)), _sound(other, codes)


def _frames(codec: Any, wave: Tensor) -> Tensor:
    if isinstance(codec, SoundCodecModel):
        return codec.compressed(wave)
    found = codec.encoder(wave)  # EnCodec's gives a tensor
    return found if isinstance(found, Tensor) else found.latents


def _sound(codec: Any, codes: Tensor) -> Tensor:
    if isinstance(codec, SoundCodecModel):
        return codec.sounded(codec.vectors(codes))
    if codec.config.model_type == "mimi":
        return codec.decode(codes).audio_values  # type: ignore[no-any-return]
    return codec.decode(codes[None], [None]).audio_values  # type: ignore[no-any-return]
