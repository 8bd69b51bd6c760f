"""Codecs: an image as a grid of codes, and back; sound as frames of codes (`codecs.sound`). Outside
the core: convolutions.

    codec = build(codec_preset("dvae-28"), seed=0)
    ids = codec.encode(pixels)          # B C H W in 0 … 1 → B (h·w)
    images = codec.decode(ids)          # B (h·w) → B C H W in 0 … 1
    codec.grid, codec.codes             # (7, 7), 512

`DVAE` is the discrete VAE of DALL-E (Ramesh et al., 2021), `VQVAE` the vector-quantised one (van
den Oord et al., 2017). `allformer.checkpoint.codec` loads and saves them.
"""

from __future__ import annotations

import allformer.codecs.sound  # noqa: F401  (registers them)
from allformer.codecs.codec import CodecModel
from allformer.codecs.config import DVAE, VQVAE
from allformer.codecs.dvae import DVAEModel
from allformer.codecs.presets import codec_preset, codec_presets
from allformer.codecs.vqvae import VQVAEModel

__all__ = [
    "DVAE",
    "VQVAE",
    "CodecModel",
    "DVAEModel",
    "VQVAEModel",
    "codec_preset",
    "codec_presets",
]
