"""One stage at work: rows that it goes on from, and what it says, each id one that may come there.

    said = say(model, stage, prompts, [12, 8], temperature=0.8, generator=chance)

Legend: R rows, L their ids, V ids that there are, Q books that the stage says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from allformer.audiolm.tokens import Ids, Stage
from allformer.generate.generate import generate
from allformer.generate.processors import Processor

_NEVER = float("-inf")


def say(
    model: Any, stage: Stage, prompts: Sequence[Ids], counts: Sequence[int], **how: Any
) -> list[Ids]:
    """What follows each of `prompts`, so many ids (`counts`): units up to their end, or codes in
    the order of their books.

    Rows of one count go together, so that no row is longer than it was in training.
    """
    found: dict[int, Ids] = {}
    for count in dict.fromkeys(counts):
        own = [i for i, each in enumerate(counts) if each == count]
        said = _together(model, stage, [prompts[i] for i in own], count, **how)
        found |= dict(zip(own, said, strict=True))
    return [found[i] for i in range(len(prompts))]


def _together(
    model: Any,
    stage: Stage,
    prompts: Sequence[Ids],
    count: int,
    *,
    temperature: float,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> list[Ids]:
    width = max(map(len, prompts))
    ids = np.full((len(prompts), width), stage.pad, np.int64)
    for row, prompt in zip(ids, prompts, strict=True):
        row[width - len(prompt) :] = prompt
    mask = np.arange(width) >= width - np.array([[len(prompt)] for prompt in prompts])
    units = stage.name == "semantic"
    rule = units_alone if units else in_turn
    found = generate(
        model, torch.from_numpy(ids).to(model.device), torch.from_numpy(mask).to(model.device),
        max_new_tokens=count, do_sample=True, temperature=temperature, top_k=top_k or 0, top_p=1.0,
        pad_token_id=stage.pad, eos_token_id=stage.end if units else None,
        processors=[rule(stage, width, model.device)], generator=generator,
    )  # fmt: skip
    said = found[:, width:].cpu().numpy()
    return [row[: _length(row, stage)] if units else row for row in said]


def _length(row: Ids, stage: Stage) -> int:
    """Units before the end, or before what fills up."""
    over = np.flatnonzero((row == stage.end) | (row == stage.pad))
    return int(over[0]) if len(over) else len(row)


def in_turn(stage: Stage, width: int, device: torch.device) -> Processor:
    """Only codes of the one book whose turn it is; what is said begins behind `width` ids."""
    books = len(stage.said_books)
    may = torch.zeros(books, stage.size, dtype=torch.bool)
    for number in range(books):
        own = stage.may_say(number)
        may[number, own.start : own.stop] = True
    may = may.to(device)

    def process(ids: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
        return scores.masked_fill(~may[(ids.shape[1] - width) % books], _NEVER)

    return process


def units_alone(stage: Stage, width: int, device: torch.device) -> Processor:
    """Only units, none twice in a row, and the end."""
    may = torch.zeros(stage.size, dtype=torch.bool)
    own = stage.may_say(0)
    may[own.start : own.stop] = True
    may[stage.end] = True
    may = may.to(device)

    def process(ids: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
        return scores.masked_fill(~may, _NEVER).scatter(1, ids[:, -1:], _NEVER)

    return process
