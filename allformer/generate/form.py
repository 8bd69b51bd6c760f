"""The processor behind structured output: tokens that would break the form are not said.

Where in the form a row stands depends on the tokens that it has said alone, so the automaton's
states are kept by these tokens: rows may leave, move, multiply (beams) or be asked again, and rows
that have said the same share a state.

Legend: R rows, L tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from allformer.errors import GenerationError

_NEVER = float("-inf")
Said = tuple[int, ...]


class Form:
    """`Form(matcher, start=prompt, eos=(2,), vocab=32000)(ids, scores, rows)` → scores (R V).

    The first `start` columns of `ids` are not looked at, and what comes before them is free.
    """

    def __init__(self, matcher: Any, *, start: int, eos: Sequence[int], vocab: int) -> None:
        self.start, self.eos, self.vocab = start, frozenset(eos), vocab
        self.states: dict[Said, Any] = {(): matcher}  # None: over, nothing is asked of it any more
        self.begin = matcher

    def __call__(self, ids: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
        """Only what the form allows; a row that is left with nothing has no numbers."""
        if ids.shape[1] < self.start:
            return scores
        said = [tuple(row) for row in ids[:, self.start :].tolist()]
        self.states = {key: self._reach(key) for key in dict.fromkeys(said)}
        masks = _masks(list(self.states.values()), self.vocab)
        at = {key: i for i, key in enumerate(self.states)}
        return _keep(scores, masks[[at[key] for key in said]].to(scores.device))

    def complete(self, tokens: Sequence[int]) -> bool:
        """Whether these tokens satisfy it; what stands behind an end does not count."""
        state = self.begin.deep_copy()
        for token in tokens:
            if token in self.eos:
                break
            if not state.consume_token(token):
                return False
        return bool(state.is_accepting())

    def _reach(self, said: Said) -> Any:
        """The state behind these tokens, from the longest beginning of them that is known."""
        known = len(said)
        while known and said[:known] not in self.states:
            known -= 1
        state = self.states.get(said[:known], self.begin)
        for token in said[known:]:
            if state is None or token in self.eos or not state.validate_tokens([token]):
                return None  # a row that has ended, or a beam that is dead
            state = state.deep_copy()
            state.consume_token(token)
            _check(state)
        return state


def _masks(states: list[Any], vocab: int) -> Tensor:
    """N V/8 bytes, a bit for each token that is allowed: all of them where a state is over."""
    from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

    masks = allocate_token_bitmask(len(states), vocab)  # all ones
    running = [(state, i) for i, state in enumerate(states) if state is not None]
    if running:
        fill_next_token_bitmask_par(_threads(), running, masks)
    for state, _ in running:
        _check(state)
    return torch.from_numpy(masks).view(torch.uint8)


@lru_cache(maxsize=1)
def _threads() -> Any:
    from llguidance import LLExecutor

    return LLExecutor()


def _check(state: Any) -> None:
    """What is wrong in the rules was told before: here nothing fits, or a limit is reached."""
    if not state.is_error():
        return
    cause = state.get_error().splitlines()[0]
    if cause.startswith("NoExtension"):
        raise GenerationError(
            "the form goes on with text that no token of this tokeniser spells; change the form, "
            "or use another checkpoint"
        )
    raise GenerationError(f"the form cannot be followed any further: {cause}; make it simpler")


def _keep(scores: Tensor, bits: Tensor) -> Tensor:
    """`bits` R V/8; −∞ for what is not allowed, and NaN throughout where nothing is left.

    The search looks for NaN, without waiting for the device, and says that no token is left.
    """
    never = _spread(scores.dtype, scores.device)[bits.int()].flatten(1)  # R V
    kept = scores + never[:, : scores.shape[1]]
    nothing = torch.where(kept.amax(-1, keepdim=True) == _NEVER, float("nan"), 0.0)
    return kept.add_(nothing)


@lru_cache(maxsize=8)
def _spread(dtype: torch.dtype, device: torch.device) -> Tensor:
    """256 8: what each byte adds to the scores of its eight tokens."""
    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return torch.where(bits == 1, 0.0, _NEVER).to(device, dtype)
