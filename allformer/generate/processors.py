"""What is done to the scores before a token is taken, in transformers' order.

    for process in make_processors(settings, …):
        scores = process(ids, scores, rows)      # rows L, rows V → rows V

`ids` are all tokens so far (padding too, as in transformers), `rows` says which row of the caller's
batch each one belongs to. Without beams the scores are logits, with beams log-probabilities.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from allformer.errors import ConfigError
from allformer.generate.checks import as_tuple
from allformer.generate.options import GenerationConfig

Processor = Callable[[Tensor, Tensor, Tensor], Tensor]
_NEVER = float("-inf")


def make_processors(
    g: GenerationConfig,
    *,
    prompt: int,
    longest: int,
    eos: Sequence[int],
    source: Tensor,
    vocab: int,
) -> list[Processor]:
    """The processors that settled options ask for; `prompt` and `longest` count tokens.

    `source` (rows S) is what the caller gave as `input_ids`.
    """
    at, device = _Tokens(vocab, source.device), source.device
    out: list[Processor] = []
    if g.sequence_bias:
        out.append(sequence_bias(g.sequence_bias, vocab, device))
    if g.encoder_repetition_penalty not in (None, 1.0):
        out.append(encoder_repetition_penalty(g.encoder_repetition_penalty, source))
    if g.repetition_penalty not in (None, 1.0):
        out.append(repetition_penalty(g.repetition_penalty))
    if g.no_repeat_ngram_size:
        out.append(no_repeat_ngram(g.no_repeat_ngram_size))
    if g.encoder_no_repeat_ngram_size:
        out.append(no_repeat_ngram(g.encoder_no_repeat_ngram_size, source))
    if g.bad_words_ids:
        bad = [(word, _NEVER) for word in g.bad_words_ids if word not in [(i,) for i in eos]]
        out.append(sequence_bias(bad, vocab, device))
    for least in (g.min_length, prompt + g.min_new_tokens if g.min_new_tokens else 0):
        if eos and least:
            out.append(Suppress(at(eos), partial(operator.gt, least)))
    if g.forced_bos_token_id is not None:
        out.append(force(at([g.forced_bos_token_id], "forced_bos_token_id"), 1))
    for length, token in g.forced_decoder_ids or ():
        if token is not None:  # None: whichever is likeliest, of a language that is not told
            out.append(force(at([token], "forced_decoder_ids"), length))
    if g.forced_eos_token_id is not None:
        ends = as_tuple(g.forced_eos_token_id)
        out.append(force(at(ends, "forced_eos_token_id"), longest - 1))
    if g.remove_invalid_values:
        out.append(remove_invalid_values)
    if g.exponential_decay_length_penalty is not None:
        start, factor = g.exponential_decay_length_penalty
        out.append(length_decay(start + prompt, factor, at(eos, "eos_token_id")))
    if g.suppress_tokens:
        out.append(Suppress(at(g.suppress_tokens), lambda length: True))
    if g.begin_suppress_tokens:
        begin = first_free(g, prompt)
        out.append(Suppress(at(g.begin_suppress_tokens), lambda length: length == begin))
    return out


def first_free(g: GenerationConfig, prompt: int) -> int:
    """How many tokens stand before the first that the model may choose: forced ones count."""
    begin = prompt + (prompt <= 1 and g.forced_bos_token_id is not None)
    return max([begin, *(length + 1 for length, _ in g.forced_decoder_ids or ())])


def checked(process: Processor) -> Processor:
    """A processor of the caller's, whose answer is looked at before anything is chosen by it."""

    def answer(ids: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
        made: object = process(ids, scores, rows)
        if not isinstance(made, Tensor) or not made.is_floating_point():
            what = made.dtype if isinstance(made, Tensor) else type(made).__name__
            raise ConfigError(f"a processor gave {what} for scores; return the scores")
        if made.shape != scores.shape:
            raise ConfigError(
                f"a processor made scores of {tuple(made.shape)} from {tuple(scores.shape)}; "
                f"give as many"
            )
        return made

    return answer


class _Tokens:
    """Ids on the device, those beyond the vocabulary left out, or refused by the option's name."""

    def __init__(self, vocab: int, device: torch.device) -> None:
        self.vocab, self.device = vocab, device

    def __call__(self, ids: Sequence[int], must: str | None = None) -> Tensor:
        there = [i for i in ids if 0 <= i < self.vocab]
        if must is not None and (not there or len(there) < len(ids)):
            raise ConfigError(
                f"{must}={list(ids)} must lie in the vocabulary, 0 … {self.vocab - 1}; "
                f"give ids of the model's tokeniser"
            )
        return torch.tensor(there, dtype=torch.long, device=self.device)


def repetition_penalty(penalty: float) -> Processor:
    """Tokens that were said: a score above 0 is divided, one below multiplied (Keskar, 2019)."""
    return lambda ids, scores, rows: _penalise(scores, ids, penalty)


def encoder_repetition_penalty(penalty: float, source: Tensor) -> Processor:
    """The other way round for the tokens of the source: they are favoured."""
    return lambda ids, scores, rows: _penalise(scores, source[rows], 1 / penalty)


def _penalise(scores: Tensor, ids: Tensor, penalty: float) -> Tensor:
    score = scores.gather(1, ids)
    score = torch.where(score < 0, score * penalty, score / penalty)
    return scores.scatter(1, ids, score)


def no_repeat_ngram(size: int, source: Tensor | None = None) -> Processor:
    """No n tokens twice in a row: never what followed the last n−1 before (or in the source)."""

    def process(ids: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
        where = ids if source is None else source[rows]
        if where.shape[1] < size or ids.shape[1] < size - 1:
            return scores
        last = ids[:, ids.shape[1] + 1 - size :]  # rows n−1
        spans = where.unfold(1, size, 1)  # rows spans n
        seen = (spans[..., :-1] == last[:, None]).all(-1)  # rows spans
        # Where nothing was seen a cell beyond the vocabulary is marked, and cut off again.
        beyond = scores.shape[1]
        banned = torch.zeros(len(scores), beyond + 1, dtype=torch.bool, device=scores.device)
        banned.scatter_(1, torch.where(seen, spans[..., -1], beyond), True)
        return scores.masked_fill(banned[:, :beyond], _NEVER)

    return process


def sequence_bias(pairs: Any, vocab: int, device: torch.device) -> Processor:
    """Adds to the last token of a sequence where its first ones stand: −∞ is "never that word"."""
    alone = torch.zeros(vocab, device=device)
    longer: list[tuple[Tensor, int, Tensor]] = []
    for ids, bias in pairs:
        if max(ids) >= vocab:
            raise ConfigError(
                f"sequence_bias or bad_words_ids has token {max(ids)}, but the vocabulary ends at "
                f"{vocab - 1}; give ids of the model's tokeniser"
            )
        if len(ids) == 1:
            alone[ids[0]] = bias
        else:
            first = torch.tensor(ids[:-1], device=device)
            longer.append((first, ids[-1], torch.tensor(float(bias), device=device)))

    def process(ids: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
        total = torch.zeros_like(scores) + alone
        for first, last, bias in longer:
            if len(first) <= ids.shape[1]:
                stands = (ids[:, -len(first) :] == first).all(-1)
                total[:, last] += torch.where(stands, bias, 0.0)
        return scores + total

    return process


class Suppress:
    """These tokens are not said, `when` the length so far says so."""

    def __init__(self, tokens: Tensor, when: Callable[[int], bool]) -> None:
        self.tokens, self.when = tokens, when

    def __call__(self, ids: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
        return scores.index_fill(1, self.tokens, _NEVER) if self.when(ids.shape[1]) else scores

    def now(self, ids: Tensor) -> Tensor:
        """The tokens that are not said next."""
        return self.tokens if self.when(ids.shape[1]) else self.tokens[:0]

    def put(self, ids: Tensor, scores: Tensor) -> None:
        """The same where the scores lie: a copy of a whole vocabulary takes longer than all else
        that is done to it."""
        if self.when(ids.shape[1]):
            scores.index_fill_(1, self.tokens, _NEVER)


def force(tokens: Tensor, length: int) -> Processor:
    """Nothing but these tokens, at that length."""

    def process(ids: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
        if ids.shape[1] != length:
            return scores
        return torch.full_like(scores, _NEVER).index_fill(1, tokens, 0.0)

    return process


def remove_invalid_values(ids: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
    """NaN becomes 0, ±∞ the largest numbers there are."""
    return scores.nan_to_num(nan=0.0)


def length_decay(start: int, factor: float, eos: Tensor) -> Processor:
    """From `start` on the end is ever more likely: its score grows by |score| · (factorⁿ − 1), as
    far as the largest number of its dtype: beyond that the softmax would have no answer."""

    def process(ids: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
        beyond = ids.shape[1] - start
        if beyond <= 0:
            return scores
        score, most = scores[:, eos], torch.finfo(scores.dtype).max
        times = min(max(_power(factor, beyond) - 1, -most), most)
        more = (score.abs() * times).masked_fill(~score.isfinite(), 0.0)
        grown = torch.where(score.isfinite(), (score + more).clamp(-most, most), score)
        return scores.index_copy(1, eos, grown)

    return process


def _power(base: float, n: int) -> float:
    """baseⁿ, or infinity where Python would raise."""
    try:
        return float(base) ** n
    except OverflowError:
        return math.inf if base > 0 or n % 2 == 0 else -math.inf
