"""What a model answers to questions of held-out conversations, for the report.

Legend: R questions, T tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from allformer.data.table import Table
from allformer.generate.rooms import forget
from allformer.text.tokenizer import Tokenizer
from allformer.train.supervised.supervised import judging

ROWS = 6  # more would take long, and nobody reads them
NEW = 96  # tokens of an answer


class Samples(NamedTuple):
    """Conversations up to their first answer, and that answer: numbers of rows, and ids."""

    rows: list[int]
    prompts: list[list[int]]
    answers: list[list[int]]
    most: int = NEW  # tokens that an answer may have


def first_answers(table: Table, longest: int | None, count: int = ROWS) -> Samples:
    """Some from all over a table (`ids`, `learnt`); of the `longest` positions that a model may
    have, an answer has half at least."""
    found: list[tuple[Any, ...]] = []
    for row in range(len(table)):
        ids, learnt = table["ids"][row], table["learnt"][row]
        begin = int(np.argmax(learnt))
        if longest is not None and begin > longest // 2:
            continue
        rest = np.flatnonzero(learnt[begin:] == 0)
        end = begin + int(rest[0]) if len(rest) else len(ids)
        found.append((row, ids[:begin].tolist(), ids[begin:end].tolist()))
    chosen = np.unique(np.linspace(0, len(found) - 1, min(count, len(found))).astype(int))
    rows, prompts, answers = ([found[i][part] for i in chosen] for part in range(3))
    room = NEW if longest is None else longest - max(map(len, prompts), default=0)
    return Samples(rows, prompts, answers, min(NEW, room))


def replies(model: Any, tokenizer: Tokenizer, samples: Samples, ends: Sequence[int]) -> list[str]:
    """The likeliest token each time: no chance is in it, and two models can be compared."""
    if not samples.rows:
        return []
    width = max(map(len, samples.prompts))
    fill = ends[0] if ends else 0
    ids = torch.full((len(samples.prompts), width), fill)  # R T, filled on the left
    keep = torch.zeros_like(ids)
    for row, prompt in enumerate(samples.prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        keep[row, width - len(prompt) :] = 1
    with judging(model):
        said = model.generate(
            ids.to(model.device),
            attention_mask=keep.to(model.device),
            max_new_tokens=samples.most,
            do_sample=False,
            eos_token_id=list(ends) or None,
            pad_token_id=fill,
        )
    forget(model)  # training wants the memory
    return [tokenizer.decode(_until(row, ends)) for row in said[:, width:].tolist()]


def _until(ids: list[int], ends: Sequence[int]) -> list[int]:
    """Up to the first end: what follows only fills the row."""
    return ids[: next((i for i, token in enumerate(ids) if token in ends), len(ids))]
