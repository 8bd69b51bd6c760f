"""Which heads of cross-attention follow the sound: the ones that word times are read from.

    alignment_heads(model)               # ((1, 0), (2, 0), (2, 5), …): layers and their heads

A checkpoint's generation_config.json may say them (`alignment_heads`). For the published models
OpenAI measured which heads do; a model of which nobody said anything uses all heads of the upper
half of its decoder, as openai-whisper does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from allformer.core.model import EncoderDecoderModel
from allformer.errors import ConfigError, did_you_mean

Heads = tuple[tuple[int, int], ...]  # (layer, head)

# Measured by OpenAI, published in openai-whisper: layer → heads.
PUBLISHED: Mapping[str, Mapping[int, tuple[int, ...]]] = {
    "tiny.en": {1: (0,), 2: (0, 5), 3: (0, 1, 2, 3, 4)},
    "tiny": {2: (2,), 3: (0, 2, 3, 4, 5)},
    "base.en": {3: (3,), 4: (7,), 5: (1, 5, 7)},
    "base": {3: (1,), 4: (2, 3, 7), 5: (1, 2, 4, 6)},
    "small.en": {
        6: (6,), 7: (0, 3, 8), 8: (2, 5, 7), 9: (0, 4, 8, 10), 10: (0, 1, 2, 3, 6, 11), 11: (2, 4),
    },
    "small": {5: (3, 9), 8: (0, 4, 7, 8), 9: (0, 7, 9), 10: (5,)},
    "medium.en": {
        11: (4,), 14: (1, 12, 14), 15: (4,), 16: (0, 4, 9), 17: (12, 14), 18: (7, 10, 15),
        20: (0, 3, 9, 14), 21: (12,),
    },
    "medium": {13: (15,), 15: (4, 15), 16: (1,), 20: (0,), 23: (4,)},
    "large-v1": {9: (19,), 11: (2, 4, 17), 22: (7, 11, 17), 23: (2, 15)},
    "large-v2": {
        10: (12,), 13: (17,), 16: (11, 12, 13), 17: (15, 16), 18: (4, 11, 19), 19: (11,),
        21: (2, 3), 22: (3, 9, 12), 23: (5, 7, 13), 25: (5,), 26: (1, 12), 27: (15,),
    },
    "large-v3": {
        7: (0,), 10: (17,), 12: (18,), 13: (12,), 16: (1,), 17: (14,), 19: (11,), 21: (4,),
        24: (1,), 25: (6,),
    },
    "large-v3-turbo": {2: (4, 11), 3: (3, 6, 11, 14)},
}  # fmt: skip


def pairs(by_layer: Mapping[int, Iterable[int]]) -> Heads:
    """`pairs({1: (0,), 2: (0, 5)})` → ((1, 0), (2, 0), (2, 5))."""
    return tuple((layer, head) for layer, heads in by_layer.items() for head in heads)


# How many layers the encoder and the decoder have, the decoder's heads, and the vocabulary. Large
# v1 and v2 have the same: which of them a model is, its makers must say.
_SIZES = {
    (4, 4, 6, 51_864): "tiny.en", (4, 4, 6, 51_865): "tiny",
    (6, 6, 8, 51_864): "base.en", (6, 6, 8, 51_865): "base",
    (12, 12, 12, 51_864): "small.en", (12, 12, 12, 51_865): "small",
    (24, 24, 16, 51_864): "medium.en", (24, 24, 16, 51_865): "medium",
    (32, 32, 20, 51_866): "large-v3", (32, 4, 20, 51_866): "large-v3-turbo",
}  # fmt: skip


def alignment_heads(model: EncoderDecoderModel, given: Heads | str | None = None) -> Heads:
    """The heads that word times are read from: those `given`, else what is known of the model.

    >>> alignment_heads(af.load("openai/whisper-tiny.en"))
    ((1, 0), (2, 0), (2, 5), …)

    `given` may be the name of a published model. A model that says nothing and has the sizes of a
    published one is taken for it, tuned or not.
    """
    counts = [0 if x.cross is None else x.cross.heads for x in model.config.decoder.blocks]
    found = _named(given) if isinstance(given, str) else given or _said(model) or _known(model)
    if found is None:
        return pairs({i: range(counts[i]) for i in range(len(counts) // 2, len(counts))})
    for layer, head in found:
        if not (0 <= layer < len(counts) and 0 <= head < counts[layer]):
            raise ConfigError(
                f"alignment_heads has layer {layer}, head {head}; the decoder has {len(counts)} "
                f"layers of {max(counts)} heads; leave it out to use those of the upper half"
            )
    return found


def _named(name: str) -> Heads:
    if name in PUBLISHED:
        return pairs(PUBLISHED[name])
    raise ConfigError(
        f"alignment_heads={name!r} is no published model; {did_you_mean(name, PUBLISHED)}give one "
        f"of {', '.join(PUBLISHED)}, or pairs of layer and head"
    )


def _said(model: EncoderDecoderModel) -> Heads | None:
    """What generation_config.json says."""
    generation: Any = model.provenance.generation
    said = generation if isinstance(generation, Mapping) else getattr(generation, "other", {})
    heads = said.get("alignment_heads")
    return tuple((int(layer), int(head)) for layer, head in heads) if heads else None


def _known(model: EncoderDecoderModel) -> Heads | None:
    """What was measured for models of these sizes."""
    encoder, decoder = model.config.encoder.blocks, model.config.decoder.blocks
    heads = 0 if not decoder or decoder[0].cross is None else decoder[0].cross.heads
    sizes = len(encoder), len(decoder), heads, model.config.decoder.tokens.vocab
    return pairs(PUBLISHED[_SIZES[sizes]]) if sizes in _SIZES else None
