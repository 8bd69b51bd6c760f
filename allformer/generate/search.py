"""Greedy and beam search for an encoder-decoder, cached, with rows leaving as they finish.

    out = search(model, input_ids, attention_mask, max_new_tokens=50, num_beams=4)
    out.ids[0]      # the best sequence of row 0, without <s> and </s>

Argument names and meaning are transformers'. A sequence's score is the sum of the model's
log-probabilities of its tokens, </s> included, divided by their number^length_penalty.

Legend: B rows still running, K beams, V vocabulary, L tokens so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from allformer.core.cache import Cache
from allformer.core.model import EncoderDecoderModel
from allformer.core.precision import widen
from allformer.errors import ConfigError

_NEVER = float("-inf")  # the log-probability of what is not there


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
    early_stopping: bool = False,
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
    decoder = _Decoder(model, input_ids, attention_mask, num_beams, use_cache, dtype)
    limit = torch.tensor(limits, dtype=torch.long)
    if num_beams == 1:
        return _greedy(decoder, limit, length_penalty)
    return _beams(decoder, limit, num_beams, length_penalty, early_stopping)


class _Decoder:
    """The model as a function of the tokens so far: `next_logp(ids)`, and rows that can move."""

    def __init__(
        self,
        model: EncoderDecoderModel,
        input_ids: Tensor,
        mask: Tensor | None,
        beams: int,
        use_cache: bool,
        dtype: torch.dtype | None,
    ) -> None:
        tokens = model.config.decoder.source
        if tokens.bos_id is None or tokens.eos_id is None:
            raise ConfigError(
                "searching needs Tokens.bos_id and Tokens.eos_id; set them in the decoder's Tokens"
            )
        self.model, self.dtype = model, dtype
        self.bos, self.eos, self.pad = tokens.bos_id, tokens.eos_id, tokens.pad_id
        memory = model.encode(input_ids, mask, dtype=dtype)
        if beams > 1:
            memory = memory.repeat_interleave(beams, dim=0)
            mask = None if mask is None else mask.repeat_interleave(beams, dim=0)
        self.memory, self.mask = memory, mask
        self.cache = Cache(len(model.config.decoder.blocks)) if use_cache else None

    def next_logp(self, ids: Tensor) -> Tensor:
        """log p(next token | ids): rows L → rows V, in at least fp32."""
        if self.cache is None:
            cache = Cache(len(self.model.config.decoder.blocks))
            logits = self.model.step(ids, cache, self.memory, self.mask, dtype=self.dtype)
        else:
            new = ids[:, self.cache.length :]
            logits = self.model.step(new, self.cache, self.memory, self.mask, dtype=self.dtype)
        logp = widen(logits).log_softmax(-1)
        for never in (self.bos, self.pad):  # no sentence has these in it
            if never is not None and never != self.eos:
                logp[:, never] = _NEVER
        return logp

    def select(self, rows: Tensor, *, sources: bool) -> None:
        """Reorder the state; `sources` when rows leave, so that the source side moves too."""
        if self.cache is not None:
            self.cache.select(rows, cross=sources)
        if sources:
            self.memory = self.memory.index_select(0, rows)
            self.mask = None if self.mask is None else self.mask.index_select(0, rows)


def _greedy(decoder: _Decoder, limit: Tensor, penalty: float) -> Found:
    device, rows = decoder.memory.device, len(limit)
    found = Found([[]] * rows, [0.0] * rows, [False] * rows)
    alive = torch.arange(rows)  # which row of the caller's each running row is
    ids = torch.full((rows, 1), decoder.bos, device=device)
    total = torch.zeros(rows, device=device, dtype=torch.float64)
    for length in count(1):
        best, token = decoder.next_logp(ids).max(dim=-1)
        total = total + best
        ids = torch.cat([ids, token[:, None]], dim=1)
        ended = (token == decoder.eos).cpu()
        leave = ended | (limit[alive] <= length)
        for i in leave.nonzero().flatten().tolist():
            row = int(alive[i])
            sequence = ids[i, 1:].tolist()
            found.ids[row] = sequence[:-1] if ended[i] else sequence
            found.scores[row] = float(total[i]) / length**penalty
            found.ended[row] = bool(ended[i])
        if leave.all():
            break
        if leave.any():
            stay = (~leave).nonzero().flatten()
            alive, moved = alive[stay], stay.to(device)
            ids, total = ids[moved], total[moved]
            decoder.select(moved, sources=True)
    return found


def _beams(decoder: _Decoder, limit: Tensor, beams: int, penalty: float, early: bool) -> Found:
    device, rows, widest = decoder.memory.device, len(limit), int(limit.max())
    found = Found([[]] * rows, [0.0] * rows, [False] * rows)
    alive = torch.arange(rows)
    ids = torch.full((rows, beams, 1), decoder.bos, device=device)  # B K L
    total = torch.full((rows, beams), _NEVER, device=device, dtype=torch.float64)  # B K
    total[:, 0] = 0.0  # all beams start alike: only the first one counts
    done_ids = torch.full((rows, beams, widest), decoder.eos, device=device)  # B K limit
    done_score = torch.full((rows, beams), _NEVER, device=device, dtype=torch.float64)
    done_length = torch.zeros((rows, beams), device=device, dtype=torch.long)
    for length in count(1):
        running = ids.shape[0]
        logp = decoder.next_logp(ids.flatten(0, 1)).view(running, beams, -1)  # B K V
        vocab = logp.shape[-1]
        sums = (total[..., None] + logp.double()).flatten(1)  # B K·V
        # 2K candidates hold at least K that do not end, whatever the model says.
        best, where = sums.topk(min(2 * beams, sums.shape[1]), dim=1)  # B 2K
        beam, token = where // vocab, where % vocab
        grown = torch.cat([_take(ids, beam), token[..., None]], dim=2)  # B 2K L+1
        # At a row's limit whatever is there counts as it is, and may still be the best.
        at_limit = limit[alive] <= length
        ends = (token == decoder.eos) | at_limit.to(device)[:, None]

        # A candidate that ends counts only if it is among the K best.
        fresh = torch.where(ends, best / length**penalty, _NEVER)
        fresh[:, beams:] = _NEVER
        pool_score = torch.cat([done_score, fresh], dim=1)
        pool_ids = torch.cat([done_ids, _pad(grown[:, :, 1:], widest, decoder.eos)], dim=1)
        pool_length = torch.cat([done_length, torch.full_like(beam, length)], dim=1)
        done_score, order = pool_score.topk(beams, dim=1)
        done_ids, done_length = _take(pool_ids, order), pool_length.gather(1, order)

        total, order = torch.where(ends, _NEVER, best).topk(beams, dim=1)  # B K
        ids, beam = _take(grown, order), beam.gather(1, order)
        rows_of = torch.arange(running, device=device)[:, None] * beams + beam
        decoder.select(rows_of.flatten(), sources=False)

        finished = (done_score > _NEVER).all(dim=1)
        if not early:
            finished &= done_score[:, -1] >= total[:, 0] / length**penalty
        leave = finished.cpu() | at_limit
        for i in leave.nonzero().flatten().tolist():
            row = int(alive[i])
            sequence = done_ids[i, 0, : int(done_length[i, 0])].tolist()
            found.ended[row] = sequence[-1] == decoder.eos
            found.ids[row] = sequence[:-1] if found.ended[row] else sequence
            found.scores[row] = float(done_score[i, 0])
        if leave.all():
            break
        if leave.any():
            stay = (~leave).nonzero().flatten()
            alive, moved = alive[stay], stay.to(device)
            ids, total = ids[moved], total[moved]
            done_ids, done_score = done_ids[moved], done_score[moved]
            done_length = done_length[moved]
            flat = (moved[:, None] * beams + torch.arange(beams, device=device)).flatten()
            decoder.select(flat, sources=True)
    return found


def _take(x: Tensor, index: Tensor) -> Tensor:
    """x B M …, index B N → B N …: the chosen beams of each row."""
    return x.gather(1, index[..., None].expand(*index.shape, x.shape[2]))


def _pad(x: Tensor, width: int, value: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, width - x.shape[2]), value=value)
