"""What a head says of whole texts that lie end to end.

Legend: R rows (texts), L labels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from allformer.core.precision import widen
from allformer.train.supervised.packed import Texts, first_places, last_places, places_of, states


def text_scores(model: Any, texts: Texts, dtype: torch.dtype | None = None) -> Tensor:
    """From the state that the head reads (`ClassHead.at`), R L, in at least fp32."""
    x, layout, at = states(model, texts, dtype), texts.layout, model.head.config.at
    if at in ("pool", "first"):
        x = x[first_places(layout)]
    elif at == "last":
        x = x[last_places(layout)]
    else:
        ends = places_of(layout, texts.ids == model.config.writer.source.eos_id)
        x = x[ends.clamp_min(0)]
    if at == "pool":
        x = model.pooled(x[:, None])
    return widen(model.head(x))
