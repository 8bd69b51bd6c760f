"""Which heads of cross-attention follow the sound: the ones that word times are read from.

    alignment_heads(model)               # ((1, 0), (2, 0), (2, 5), …): layers and their heads

A checkpoint's generation_config.json may say them (`alignment_heads`). For the published models
OpenAI measured which heads do; a model of which nobody said anything uses all heads of the upper
half of its decoder, as openai-whisper does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
