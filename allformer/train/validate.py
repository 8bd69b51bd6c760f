"""Likelihood of held-out examples, without dropout and without smoothing."""

from __future__ import annotations

from typing import Any

import torch

from allformer.data.batches import token_batches
from allformer.train.batch import moved
from allformer.train.objectives.objective import Objective


@torch.no_grad()
def validate(
    objective: Objective[Any, Any],
    model: Any,
    examples: Any,
    *,
    batch_tokens: int = 4096,
    dtype: torch.dtype | None = None,
) -> dict[str, float]:
    """Means over the labels that count: `nll`, whose exp is perplexity, and what else is measured.

    >>> validate(Seq2Seq(), model, EncodedPairs.from_pairs(pairs, tokenizer))
    {'nll': 1.273}
    """
    sides = objective.lengths(examples)
    budget = max(batch_tokens, *(int(side.max()) for side in sides))
    was_training = model.training
    model.eval()
    sums: dict[str, float] = {"nll": 0.0}
    tokens = 0
    try:
        for index in token_batches(*sides, budget, seed=0, epoch=0, pool=1000):
            batch = moved(objective.collate(examples, index), model.device)
            _, nll = objective.loss(model, batch, dtype=dtype)
            found = {"nll": nll, **objective.measures(model, batch, dtype=dtype)}
            for name, value in found.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            tokens += batch.tokens
    finally:
        model.train(was_training)
    return {name: total / tokens for name, total in sums.items()}
