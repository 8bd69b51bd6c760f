"""Pseudo-likelihood of a text to a masked language model: each token masked in its turn.

Salazar et al. (2020), Masked Language Model Scoring: PLL(w) = Σ log p(w_t | all others). As many
passes as there are tokens: meant for sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from allformer.errors import TaskError
from allformer.evaluate.windows import token_scores


@torch.inference_mode()
def pseudo_nll(
    model: Any,
    ids: Tensor,
    places: Tensor,
    mask: int,
    *,
    batch_tokens: int = 4096,
    advance: Callable[[int], object] = lambda tokens: None,
) -> Tensor:
    """−ln p of the tokens at `places` of one text, each with `mask` in its place, in fp64.

    >>> pseudo_nll(model, ids, torch.arange(1, len(ids) - 1), tokenizer.mask_id)
    tensor([3.1, 0.2, …])
    """
    rows = max(1, batch_tokens // max(1, len(ids)))
    nlls = [torch.zeros(0, dtype=torch.float64)]
    for some in torch.split(places, rows):
        read = ids.repeat(len(some), 1)
        each = torch.arange(len(some))
        read[each, some] = mask
        *_, hidden = model.states(input_ids=read.to(model.device)).values()
        nlls.append(token_scores(model, hidden[each, some], ids[some])[0])
        advance(len(some))
    return torch.cat(nlls)


def mask_of(tokenizer: Any, where: Any) -> int:
    """The id of the gap; a tokeniser without one is refused."""
    if "mask" not in tokenizer.special_ids:
        raise TaskError(
            f"pseudo-perplexity needs a mask token, and the tokeniser of {where} has none; "
            f"give a masked language model, as BERT is"
        )
    mask: int = tokenizer.mask_id
    return mask
