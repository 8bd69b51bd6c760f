"""How likely a long text is to a model that remembers: segment after segment, each token once.

    ids     0 1 2 3 4 5 6 7 8 9        length 4
    first  [0 1 2 3]                   in brackets: what is read, and foretells the next token
    then          M M[4 5 6 7]         M: what is remembered

A long text is read in several places at once. Each but the first begins `memory` tokens early, and
what it says of those is not counted: every token is scored once, with a full memory before it.

Legend: R rows, T tokens of a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from allformer.core.inputs import Side
from allformer.errors import ConfigError
from allformer.evaluate.windows import token_scores

_WORTH = 8  # times as much as it reads early is what a row must have to score


@torch.inference_mode()
def segment_nll(
    model: Any,
    ids: Sequence[int],
    *,
    length: int,
    memory: int,
    batch_tokens: int = 4096,
    advance: Callable[[int], object] = lambda tokens: None,
) -> Tensor:
    """−ln p of each token but the first, in fp64, with so much `memory` of earlier segments.

        segment_nll(model, ids, length=128, memory=512)

    `advance` is told of the tokens that were scored, for progress.
    """
    if length < 1:
        raise ConfigError(f"length={length} must be at least 1: the tokens of a segment")
    text = torch.tensor(ids, dtype=torch.long)
    total = max(0, len(text) - 1)
    found = torch.zeros(total, dtype=torch.float64)
    early = -(-memory // length) * length
    rows = max(1, min(batch_tokens // length, total // (_WORTH * (early + length))))
    width = -(-(total + (rows - 1) * early) // rows)  # tokens that a row reads, in whole segments
    width = -(-width // length) * length if rows > 1 else width
    starts = torch.arange(rows) * (width - early)
    cache = model.new_cache(memory)
    for at in range(0, width, length):
        columns = torch.arange(at, min(at + length, width))
        places = starts[:, None] + columns  # R T
        counted = (places < total) & ((columns >= early) | (starts[:, None] == 0))
        read = text[places.clamp_max(max(0, total - 1))].to(model.device)
        side = Side(cache.grid(*read.shape, None), {"input_ids": read}, read)
        hidden = model.hidden({"decoder": side}, cache=cache)["decoder"]
        own = places[counted]
        if len(own):
            states = hidden[counted.to(hidden.device)]
            found[own], _ = token_scores(model, states, text[own + 1])
            advance(len(own))
    return found


def memory_of(model: Any, asked: int | None) -> int:
    """Tokens to remember: as asked, or as its config says; 0: it remembers nothing."""
    relative = model.config.decoder.relative
    own = 0 if relative is None else relative.memory
    return own if asked is None else asked
