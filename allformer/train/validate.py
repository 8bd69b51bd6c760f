"""Likelihood of held-out pairs, without dropout and without smoothing."""

from __future__ import annotations

import torch

from allformer.core.model import EncoderDecoderModel
from allformer.data.batches import token_batches
from allformer.data.encoded import EncodedPairs
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import batch_loss, collate


@torch.no_grad()
def validation_nll(
    model: EncoderDecoderModel,
    pairs: EncodedPairs,
    tokenizer: Tokenizer,
    *,
    batch_tokens: int = 4096,
    dtype: torch.dtype | None = None,
) -> float:
    """Mean negative log-likelihood per target token, </s> included; perplexity is its exp."""
    sources, targets = pairs.source_lengths + 1, pairs.target_lengths + 1
    budget = max(batch_tokens, int(sources.max()), int(targets.max()))
    was_training = model.training
    model.eval()
    total, tokens = 0.0, 0
    try:
        for index in token_batches(sources, targets, budget, seed=0, epoch=0, pool=1000):
            batch = collate(pairs, index, tokenizer.bos_id, tokenizer.eos_id).to(model.device)
            _, nll = batch_loss(model, batch, dtype)
            total += float(nll)
            tokens += batch.tokens
    finally:
        model.train(was_training)
    return total / tokens
