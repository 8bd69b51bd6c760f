"""The codes of images, drawn one after the other from a decoder over text and an image.

    codes = draw_codes(model, texts, which, noise, temperature=0.9, top_k=64)

Chance is `noise`, a number from 0 to 1 for each code, so that an image is the same whichever batch
it is drawn in.

Legend: U texts, R images, L places of text, N codes of an image, V codes that there are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from allformer.core.inputs import Side
from allformer.core.model import DecoderOnlyModel
from allformer.core.precision import widen


@torch.no_grad()
def draw_codes(
    model: DecoderOnlyModel,
    texts: Tensor,
    which: Tensor,
    noise: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    guidance: float = 1.0,
    empty: Tensor | None = None,
) -> Tensor:
    """Codes R N of images of the `texts` U L that `which` R numbers, by `noise` R N.

    Each text is read once. With `guidance` g the scores are u + g (c − u), where u are those
    without a caption (`empty`, L): what the caption adds counts g times (Ho and Salimans, 2022).
    """
    head: Any = model.vocab_head
    guided, rows = guidance != 1.0, which
    if guided:
        assert empty is not None
        texts = torch.cat([texts, empty[None]])
        rows = torch.cat([which, torch.full_like(which, len(texts) - 1)])
    cache = model.new_cache()
    state = _read(model, texts, cache).index_select(0, rows)  # R dim, or twice as many
    cache.select(rows)
    said: list[Tensor] = []
    for chance in noise.unbind(1):
        scores = widen(head.codes(state))
        if guided:
            with_text, without = scores.chunk(2)
            scores = without + guidance * (with_text - without)
        said.append(pick(scores, chance, temperature, top_k))
        if len(said) < noise.shape[1]:
            new = said[-1] + head.source.words
            state = _read(model, (new.repeat(2) if guided else new)[:, None], cache)
    return torch.stack(said, 1)


def _read(model: DecoderOnlyModel, ids: Tensor, cache: Any) -> Tensor:
    """The state of the last of these tokens, R dim."""
    grid = cache.grid(*ids.shape, None)
    side = Side(grid, {"input_ids": ids}, ids, grid.total)
    return model.hidden({"decoder": side}, cache=cache)["decoder"][:, -1]


def pick(scores: Tensor, chance: Tensor, temperature: float, top_k: int | None) -> Tensor:
    """A code of each row, R V → R: the one in whose part of 0 … 1 its `chance` R falls.

    With `top_k` the likeliest so many share all of it.
    """
    scores = scores / temperature
    if top_k is not None and top_k < scores.shape[-1]:
        least = scores.topk(top_k, -1).values[:, -1:]
        scores = scores.masked_fill(scores < least, float("-inf"))
    ends = scores.double().softmax(-1).cumsum(-1)  # fp64: many small shares add up
    beyond = ends < (chance.double()[:, None] * ends[:, -1:]).clamp(
        min=torch.finfo(torch.double).tiny
    )
    return beyond.sum(-1).clamp(max=scores.shape[-1] - 1)
