"""`model.generate` as the tests of search want it: ids as lists, scores of greedy search too."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from allformer.core.model import EncoderDecoderModel


@dataclass(frozen=True)
class Found:
    """For each row: the ids (without <s> and </s>), the score, and whether </s> was reached."""

    ids: list[list[int]]
    scores: list[float]
    ended: list[bool]


def search(
    model: EncoderDecoderModel,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    max_new_tokens: int | Sequence[int],
    num_beams: int = 1,
    length_penalty: float = 1.0,
    **options: Any,
) -> Found:
    """Neither padding nor the start is ever said, as runs have it in their generation config."""
    rows = len(input_ids)
    limits = [max_new_tokens] * rows if isinstance(max_new_tokens, int) else list(max_new_tokens)
    tokens = model.config.decoder.source
    eos = tokens.eos_id
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does nothing without")
        out = model.generate(
            input_ids, attention_mask=attention_mask, limits=limits, num_beams=num_beams,
            max_new_tokens=max(limits), length_penalty=length_penalty,
            suppress_tokens=[i for i in (tokens.pad_id, tokens.bos_id) if i not in (None, eos)],
            return_dict_in_generate=True, output_scores=True, output_logits=True, **options,
        )  # fmt: skip
    said = [row[: limits[i]] for i, row in enumerate(out.sequences[:, 1:].tolist())]
    ended = [eos in row for row in said]
    ids = [row[: row.index(eos)] if eos in row else row for row in said]
    scores = out.sequences_scores
    if scores is None:
        lengths = [len(row) + end for row, end in zip(ids, ended, strict=True)]
        scores = _greedy(out, lengths) / torch.tensor(lengths).double() ** length_penalty
    return Found(ids, scores.tolist(), ended)


def _greedy(out: Any, lengths: list[int]) -> Tensor:
    """The sum of the log-probabilities of what was said."""
    total = torch.zeros(len(lengths), dtype=torch.float64)
    for step, logits in enumerate(out.logits):
        for row, length in enumerate(lengths):
            if step < length:
                token = out.sequences[row, step + 1]
                total[row] += logits[row].double().log_softmax(-1)[token]
    return total
