"""Greedy and beam search for translating: each row with a limit of its own, ids as lists.

    out = search(model, input_ids, attention_mask, max_new_tokens=50, num_beams=4)
    out.ids[0]      # the best sequence of row 0, without <s> and </s>

The search is `generate`'s. A sequence's score is the sum of the model's log-probabilities of its
tokens, </s> included, divided by their number^length_penalty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from allformer.core.model import EncoderDecoderModel
from allformer.errors import ConfigError
from allformer.generate.beams import search_beams
from allformer.generate.decode import decode
from allformer.generate.processors import suppress
from allformer.generate.request import Request
from allformer.generate.stepper import EncoderDecoderStepper
from allformer.generate.stop import Stop


@dataclass(frozen=True)
class Found:
    """For each row: the ids (without <s> and </s>), the score, and whether </s> was reached."""

    ids: list[list[int]]
    scores: list[float]
    ended: list[bool]


@torch.inference_mode()
def search(
    model: EncoderDecoderModel,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    max_new_tokens: int | Sequence[int],
    num_beams: int = 1,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    use_cache: bool = True,
    dtype: torch.dtype | None = None,
) -> Found:
    """Translate a batch of source ids; greedy with one beam, beam search with more.

    `max_new_tokens` is one limit, or one for each row. `early_stopping=False` goes on until no
    running beam, ended where it is, would beat the worst finished one; True stops a row as soon
    as it has `num_beams` finished.
    """
    rows = input_ids.shape[0]
    limits = [max_new_tokens] * rows if isinstance(max_new_tokens, int) else list(max_new_tokens)
    for name, value in (("max_new_tokens", min(limits, default=1)), ("num_beams", num_beams)):
        if value < 1:
            raise ConfigError(f"{name}={value} must be at least 1; try 1 or more")
    if len(limits) != rows:
        raise ConfigError(f"max_new_tokens has {len(limits)} limits for {rows} rows; give one each")
    tokens = model.config.decoder.source
    if tokens.bos_id is None or tokens.eos_id is None:
        raise ConfigError(
            "searching needs Tokens.bos_id and Tokens.eos_id; set them in the decoder's Tokens"
        )
    eos, device = tokens.eos_id, input_ids.device
    # No sentence has these in it.
    never = [i for i in (tokens.bos_id, tokens.pad_id) if i is not None and i != eos]
    request = Request(
        limit=torch.tensor(limits, dtype=torch.long),
        stop=Stop((eos,)),
        pad=eos,
        processors=[suppress(torch.tensor(never, device=device), lambda length: True)],
        copies=num_beams,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        total=True,
    )
    stepper = EncoderDecoderStepper(model, dtype)
    state = stepper.open(input_ids, attention_mask, use_cache)
    start = torch.full((rows, 1), tokens.bos_id, device=device)
    found = (search_beams if num_beams > 1 else decode)(stepper, state, start, request)
    assert found.sequences_scores is not None
    said = [row[: limits[i]] for i, row in enumerate(found.sequences[:, 1:].tolist())]
    return Found(
        [row[: row.index(eos)] if eos in row else row for row in said],
        found.sequences_scores.tolist(),
        [eos in row for row in said],
    )
