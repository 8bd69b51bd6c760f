"""Codecs by name: OpenAI's, and small ones for images of 28 and 32 pixels; those of sound stand in
`sound.presets`."""

from __future__ import annotations

from allformer.codecs.config import DVAE, VQVAE, Trunk
from allformer.codecs.sound import presets as sound
from allformer.config import SoundCodec
from allformer.errors import ConfigError, did_you_mean

_GREY = {"image": (28, 28), "channels": 1}  # Fashion-MNIST: 7 × 7 codes
_COLOUR = {"image": (32, 32), "channels": 3}  # CIFAR: 8 × 8 codes
_SMALL = {"groups": 3, "hidden": 64, "start": 128}
_LEAST = -2.0  # a few grey levels: narrower, the background would drown all else
PRESETS: dict[str, Trunk] = {
    "dall-e-dvae": DVAE(),
    "dvae-28": DVAE(codes=512, **_GREY, **_SMALL, floor=_LEAST),  # type: ignore[arg-type]
    "dvae-32": DVAE(codes=1024, **_COLOUR, **_SMALL, floor=_LEAST),  # type: ignore[arg-type]
    "vq-28": VQVAE(codes=512, **_GREY, **_SMALL),  # type: ignore[arg-type]
    "vq-32": VQVAE(codes=1024, **_COLOUR, **_SMALL),  # type: ignore[arg-type]
}


def codec_presets() -> list[str]:
    """The names that `codec_preset` knows."""
    return sorted({**PRESETS, **sound.PRESETS})


def codec_preset(name: str) -> Trunk | SoundCodec:
    """A codec's tree by its name: `codec_preset("dvae-28")`."""
    known: dict[str, Trunk | SoundCodec] = {**PRESETS, **sound.PRESETS}
    if name not in known:
        hint = did_you_mean(str(name), known)
        raise ConfigError(
            f"codec preset={name!r} is not known; {hint}there is {', '.join(codec_presets())}"
        )
    return known[name]
