"""Families: configs and weight maps over the one core. A family is a file here and a line below."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial

from allformer import config
from allformer.errors import ConfigError
from allformer.families import (
    albert,
    bart,
    bert,
    big_bird,
    bigbird_pegasus,
    clip,
    clip_text,
    clip_vision,
    dalle,
    deit,
    detr,
    dinov2,
    dinov2_with_registers,
    eomt,
    gpt2,
    gpt3,
    imagegpt,
    led,
    linear_transformer,
    linformer,
    llama,
    longformer,
    marian,
    mbart,
    mistral,
    mt5,
    original,
    performer,
    reformer,
    roberta,
    siglip,
    siglip_towers,
    t5,
    transfo_xl,
    vit,
    whisper,
    yolos,
)
from allformer.families.family import Family

# In this order they are asked whether they can say a fresh model: LLaMA before Mistral, which may
# have a window and need not, and T5 before its twin mT5.
_ALL = (
    bert, roberta, longformer, albert, big_bird, gpt2, llama, mistral, marian, bart, mbart, led,
    bigbird_pegasus, t5, mt5, transfo_xl, reformer, vit, deit, dinov2, dinov2_with_registers, clip,
    clip_text, clip_vision, siglip, imagegpt, yolos, detr, eomt,
    whisper,
)  # fmt: skip
_FAMILIES = [
    *(family.FAMILY for family in _ALL),
    siglip_towers.TEXT_FAMILY,
    siglip_towers.VISION_FAMILY,
]
FAMILIES: dict[str, Family] = {family.name: family for family in _FAMILIES}
PRESETS: dict[str, Callable[[], config.Model]] = {
    **original.PRESETS,
    **gpt3.PRESETS,
    **dalle.PRESETS,
}
PRESETS |= {**linear_transformer.PRESETS, **linformer.PRESETS, **performer.PRESETS}
for _family in FAMILIES.values():
    PRESETS |= {name: partial(_family.make, raw) for name, raw in _family.presets.items()}


def presets() -> list[str]:
    """The names that `preset` knows."""
    return sorted(PRESETS)


def preset(name: str) -> config.Model:
    """A ready config by name: `preset("original-base")`."""
    if name not in PRESETS:
        near = get_close_matches(str(name), PRESETS, n=3, cutoff=0.3) or ["original-base"]
        raise ConfigError(
            f"preset={name!r} is not known; try {', '.join(near)}, or one of presets()"
        )
    return PRESETS[name]()
