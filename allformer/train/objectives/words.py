"""What the objectives over a vocabulary share: a look at how right the words are, and checks.

Legend: N labels, C of them at a time, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.config import LMHead, words_of
from allformer.core.heads.words import LMHead as Words
from allformer.core.loss import IGNORE
from allformer.core.precision import widen
from allformer.errors import ConfigError
from allformer.train.sections.vocabulary import Vocabulary

_NUMBERS = 1 << 26  # logits that are in memory at a time


class Marks(NamedTuple):
    """The ids that stand before and after a text."""

    begin: int
    end: int

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Marks:
        """`<s>` and `</s>`; the end token twice where there is no other, as in GPT-2."""
        end = vocabulary.eos if vocabulary.eos is not None else vocabulary.bos
        if end is None:
            raise ConfigError(
                "the tokeniser has neither an end nor a beginning of text among its special "
                "tokens; use one that has (eos_token), or train one"
            )
        return cls(end if vocabulary.bos is None else vocabulary.bos, end)


@torch.no_grad()
def appraised(head: Words, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Summed NLL over labels ≠ −100, and how many of them are the likeliest word: N dim, N."""
    nll = torch.zeros((), dtype=torch.float64, device=hidden.device)
    right = torch.zeros((), dtype=torch.int64, device=hidden.device)
    step = max(1, _NUMBERS // head.vocab)
    for begin in range(0, len(labels), step):
        wanted = labels[begin : begin + step]
        logits = widen(head(hidden[begin : begin + step]))  # C V
        nll += F.cross_entropy(logits, wanted, ignore_index=IGNORE, reduction="sum").double()
        right += (logits.argmax(-1) == wanted).sum()
    return nll, right


class SaysWords:
    """Of an objective whose batch has `labels`, one for each state: put it before its base."""

    def _hidden(self, model: Any, batch: Any, dtype: torch.dtype | None) -> Tensor:
        """The states that have something to say, N dim."""
        raise NotImplementedError

    def loss(
        self,
        model: Any,
        batch: Any,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Of every token that is to be said: summed cross-entropy, smoothed and plain."""
        hidden = self._hidden(model, batch, dtype)
        found: tuple[Tensor, Tensor] = model.vocab_head.score(
            hidden, batch.labels.flatten(), smoothing, **more
        )
        return found

    def measured(self, model: Any) -> tuple[str, ...]:
        """How often the likeliest token is right."""
        return ("accuracy",)

    def appraise(
        self, model: Any, batch: Any, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The NLL, and how often the likeliest token is the right one."""
        hidden = self._hidden(model, batch, dtype)
        nll, right = appraised(model.vocab_head, hidden, batch.labels.flatten())
        return nll, {"accuracy": right}


def check_words(tree: Any, kind: type, shape: str, name: str) -> None:
    """Refuse a tree of another shape, or without a head over the vocabulary."""
    if isinstance(tree, kind) and isinstance(words_of(tree.head), LMHead):  # type: ignore[attr-defined]
        return
    head = type(tree.head).__name__
    raise ConfigError(
        f"model is a {type(tree).__name__} with head {head}, but objective={name!r} needs "
        f"{shape} with LMHead; choose such a preset, or change model.head"
    )
