"""Beam search, and beams that are drawn: K sequences of each row side by side.

A finished sequence scores the sum of its tokens' log-probabilities over their number^penalty. Which
candidates are looked at, which of them count as finished and when a row is closed is as in
transformers, step for step, so that the tokens are the same.

Rows that are closed run on with the others, and what they find is not looked at.

Legend: B rows in the batch, K beams, C candidates (2K or more), V vocabulary, L tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from allformer.generate.best_sums import best_sums, serves
from allformer.generate.largest import largest
from allformer.generate.processors import Suppress
from allformer.generate.request import Generated, Kept, Request, first_step
from allformer.generate.stepper import State, Stepper


@dataclass
class Beams:
    """Sequences of each row (M of them), with what belongs to each."""

    ids: Tensor  # B M L
    trail: Tensor | None  # B M new tokens: the beam that each was chosen from, if asked for
    score: Tensor  # B M
    ended: Tensor  # B M
    length: Tensor  # B M, new tokens

    def pick(self, index: Tensor) -> Beams:
        """index B N: the chosen ones of each row."""
        return self._each(lambda x: _pick(x, index))

    def rows(self, rows: Tensor) -> Beams:
        """The chosen rows."""
        return self._each(lambda x: x[rows])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Beams:
        trail = None if self.trail is None else change(self.trail)
        score, ended, length = change(self.score), change(self.ended), change(self.length)
        return Beams(change(self.ids), trail, score, ended, length)

    def best_with(self, new: Beams, fill: int, closed: Tensor) -> Beams:
        """The M best of these and `new`, whose ids are longer by one; `closed` rows (B) stay."""
        ids = torch.cat([pad(self.ids, (0, 1), value=fill), new.ids], dim=1)
        trail = None
        if self.trail is not None and new.trail is not None:
            trail = torch.cat([pad(self.trail, (0, 1), value=-1), new.trail], dim=1)
        score = torch.cat([self.score, new.score], dim=1)
        ended = torch.cat([self.ended, new.ended], dim=1)
        length = torch.cat([self.length, new.length], dim=1)
        best = score.topk(self.score.shape[1], dim=1).indices
        mine = torch.arange(best.shape[1], device=best.device)
        both = Beams(ids, trail, score, ended, length)
        return both.pick(torch.where(closed[:, None], mine, best))


def search_beams(stepper: Stepper, state: State, ids: Tensor, request: Request) -> Generated:
    """Continue each row of `ids` with `request.copies` beams until it is closed."""
    device, prompt, beams = ids.device, ids.shape[1], request.copies
    rows = request.rows(request.limit, device)
    logits = first_step(stepper, state, ids, beams, True)
    vocab, dead = logits.shape[-1], _dead(logits.dtype)
    count = max(2, 1 + len(request.stop.eos)) * beams  # enough that K of them do not end
    count = min(count, beams * vocab)
    first = torch.arange(count, device=device) < beams

    running = _start(ids, beams, dead, logits.dtype, request.keep_trail)
    # All beams of a row start alike: only the first one counts.
    finished = running.pick(torch.arange(beams, device=device).expand(rows.total, -1))
    running.score = torch.where(torch.arange(beams, device=device) == 0, 0.0, running.score)
    results: list[tuple[Tensor, Beams]] = []  # rows of the caller's, and what they have found
    kept = Kept(request, rows, beams)
    candidates = _Candidates(request, kept)
    while True:
        length = rows.steps + 1
        best, where, rank = candidates(logits, running, rows.here, count)  # B C
        beam, token = where // vocab, where % vocab
        grown = running.pick(beam)  # B C
        grown.ids = torch.cat([grown.ids, token[..., None]], dim=2)
        if grown.trail is not None:
            source = rows.here[:, None] * beams + beam
            grown.trail = torch.cat([grown.trail, source[..., None]], 2)
        hits = request.stop(grown.ids.flatten(0, 1)).view_as(token) | rows.at_limit()[:, None]

        # What ends counts as finished only if it is among the K best.
        grown.ended = hits & first
        grown.length = grown.length + 1
        grown.score = best / length**request.length_penalty + ~grown.ended * dead
        finished = finished.best_with(grown, request.pad, rows.over)

        score, order = (best + hits * dead).topk(beams, dim=1)  # B K
        running, beam = grown.pick(order), beam.gather(1, order)
        running.score = score

        rows.end(_closed(finished, score, length, request, rows.limit) | hits.all(1), rank)
        parting = rows.look()
        if rows.ended:
            break
        if parting is not None:
            stay, leave = parting
            results.append((rows.here[leave], finished.rows(leave)))
            rows.keep(stay)
            beam, running, finished = beam[stay], running.rows(stay), finished.rows(stay)
            state.keep(stay, together=beams)
        state.move(beam)
        logits = stepper.step(running.ids[..., -1].flatten()[:, None], state)
    steps = int(rows.count.max())
    if request.draw is not None:
        request.draw.take_back(rows.steps - steps)
    found = _collect([*results, (rows.here, finished)], prompt, request)
    return kept.put(found, steps)


class _Candidates:
    """Which ways to go on are looked at: the best, or those that are drawn."""

    def __init__(self, request: Request, kept: Kept) -> None:
        self.request, self.kept = request, kept
        r = request
        # Whether somebody else may have the scores: whoever asked for them, or one of theirs.
        ours = all(isinstance(each, Suppress) for each in r.processors)
        self.shared = r.keep_scores or not ours
        alone = r.draw is None and not (r.keep_logits or r.warps or r.renormalise)
        self.short = alone and not self.shared  # nobody asks what all the others score

    def __call__(
        self, logits: Tensor, running: Beams, here: Tensor, count: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of logits B·K V: the sums of `count` candidates, where they stand among K·V, and numbers
        that are NaN where a score was."""
        request, beams = self.request, running.score.shape[1]
        flat = running.ids.flatten(0, 1)
        if self.short and serves(logits, count):
            never = [each.now(flat) for each in request.processors if isinstance(each, Suppress)]
            told = torch.cat(never) if never else flat.new_empty(0)
            best, where = best_sums(logits, running.score, count, told)
            return best, where, best
        whose = here.repeat_interleave(beams)
        logp = request.process(flat, logits.log_softmax(-1), whose, own=True)
        self.kept.add(logits, logp)
        sums = logp.view(-1, beams, logp.shape[-1])
        add = sums.add if self.shared else sums.add_
        sums = add(running.score[..., None]).flatten(1)  # B K·V
        if request.draw is None:
            best, where = largest(sums, count)
            return best, where, best
        where, rank = request.draw(sums, here, count)
        return sums.gather(1, where), where, rank


def _start(ids: Tensor, beams: int, dead: float, dtype: torch.dtype, trail: bool) -> Beams:
    """K dead beams of each row, at the prompt."""
    score = torch.full((len(ids), beams), dead, dtype=dtype, device=ids.device)
    none = torch.zeros_like(score, dtype=torch.long)
    empty = ids.new_empty((len(ids), beams, 0)) if trail else None
    return Beams(ids[:, None].expand(-1, beams, -1), empty, score, none.bool(), none)


def _closed(finished: Beams, score: Tensor, length: int, request: Request, limit: Tensor) -> Tensor:
    """Rows of which nothing better can come: the best beam would not beat the worst finished one.

    It is judged as if it ended here; with "never" and a penalty that favours length, as if it came
    to the longest length without losing anything more.
    """
    hope = score[:, :1] / length**request.length_penalty
    if request.early_stopping == "never" and request.length_penalty > 0:
        hope = score[:, :1] / limit.double()[:, None] ** request.length_penalty
    worst = finished.score.min(1, keepdim=True).values
    worst = torch.where(finished.ended, worst, _dead(score.dtype))
    closed: Tensor = ~(hope > worst).any(1)
    return closed | finished.ended.all(1) if request.early_stopping is True else closed


def _collect(results: list[tuple[Tensor, Beams]], prompt: int, request: Request) -> Generated:
    """The returned sequences of all rows, one below the other, padded to one width."""
    back = request.back
    width = max(int(found.length[:, :back].max()) for _, found in results)
    order = torch.cat([here for here, _ in results]).argsort()

    def join(tensors: list[Tensor], fill: int, width: int) -> Tensor:
        cut = [x[:, :back, :width] for x in tensors]
        wide = [pad(x, (0, width - x.shape[2]), value=fill) for x in cut]
        return torch.cat(wide)[order].flatten(0, 1)

    trails = [found.trail for _, found in results if found.trail is not None]
    return Generated(
        join([found.ids for _, found in results], request.pad, prompt + width),
        torch.cat([found.score[:, :back] for _, found in results])[order].flatten(),
        beam_indices=join(trails, -1, width) if trails else None,
    )


def _dead(dtype: torch.dtype) -> float:
    """A score that no real one comes near, so large that what is added to it does not show.

    transformers has −1e9 in fp32, where numbers stand 64 apart; the same in fp64 is 2²⁹ times that.
    Beams that are not there are all alike then, and take no part unless nothing else is left.
    """
    return -1e9 * 2**29 if dtype == torch.float64 else -1e9


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """x B M …, index B N → B N …"""
    if x.ndim == 2:
        return x.gather(1, index)
    return x.gather(1, index[..., None].expand(*index.shape, x.shape[2]))
