"""Likelihood of held-out examples, without dropout and without smoothing."""

from __future__ import annotations

from typing import Any

import torch

from allformer.data.batches import token_batches
from allformer.train.objectives.objective import Objective


def figures_of(objective: Objective[Any, Any], model: Any) -> tuple[str, ...]:
    """The names of all that `validate` will find, without looking."""
    terms = objective.terms if len(objective.terms) > 1 else ()
    return ("nll", *(f"nll_{name}" for name in terms), *objective.measured(model))


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

    With several terms `nll` is their sum, and each has its own: `nll_words`, `nll_pair`.
    """
    sides = objective.lengths(examples)
    budget = max(batch_tokens, *(int(side.max()) for side in sides))
    was_training = model.training
    model.eval()
    nlls, counts = (
        torch.zeros(len(objective.terms), dtype=torch.float64),
        [0] * len(objective.terms),
    )
    sums: dict[str, float] = {}
    seen, every = 0, len(sides[0])
    try:
        batches = objective.order(examples)
        if batches is None:
            rows = objective.recipe.train.batch_rows
            batches = token_batches(*sides, budget, seed=0, epoch=0, pool=1000, max_rows=rows)
        for index in batches:
            objective.aside("validating", seen, every)
            seen += len(index)
            batch = objective.onto(objective.collate(examples, index), model.device)
            nll, measured = objective.appraise(model, batch, dtype=dtype)
            nlls += nll.reshape(-1).double().cpu()
            counts = [a + b for a, b in zip(counts, objective.counts(batch), strict=True)]
            for name, value in measured.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        figures = objective.metrics(model, examples, batch_tokens=batch_tokens, dtype=dtype)
    finally:
        model.train(was_training)
    means = [float(x) / max(1, n) for x, n in zip(nlls, counts, strict=True)]
    found = {"nll": sum(means)}
    if len(means) > 1:
        found |= {f"nll_{name}": x for name, x in zip(objective.terms, means, strict=True)}
    terms = objective.terms
    for name, total in sums.items():
        own = next((i for i, term in enumerate(terms) if name.startswith(f"{term}_")), 0)
        found[name] = total / max(1, counts[own])
    return found | objective.follows(found, examples) | figures
