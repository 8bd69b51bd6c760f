"""The processor behind structured output: tokens that would break the form are not said.

Where in the form a row stands depends on the tokens that it has said alone, so the automaton's
states are kept by these tokens: rows may leave, move, multiply (beams) or be asked again, and rows
that have said the same share a state.

Legend: R rows, L tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        masks = {key: self._mask(state) for key, state in self.states.items()}
        bits = torch.stack([masks[key] for key in said])
        free = [self.states[key] is None for key in said]
        return _keep(scores, bits.to(scores.device), torch.tensor(free, device=scores.device))

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

    def _mask(self, state: Any) -> Tensor:
        """V/8 bytes, a bit for each token."""
        bits = torch.zeros((self.vocab + 31) // 32 * 4, dtype=torch.uint8)
        if state is not None:
            state.unsafe_compute_mask_ptr(bits.data_ptr(), bits.numel())
            _check(state)
        return bits


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


def _keep(scores: Tensor, bits: Tensor, free: Tensor) -> Tensor:
    """`bits` R V/8; −∞ for what is not allowed, and NaN throughout where nothing is left.

    The search looks for NaN, without waiting for the device, and says that no token is left.
    """
    each = bits[:, :, None] >> torch.arange(8, device=bits.device, dtype=torch.uint8) & 1
    allowed = each.flatten(1)[:, : scores.shape[1]].bool() | free[:, None]
    kept = scores.masked_fill(~allowed, _NEVER)
    nothing = (kept == _NEVER).all(-1) & ~free
    return kept.masked_fill(nothing[:, None], float("nan"))
