"""The model that a tuned one is compared with: its base without adapters, or itself as it began.

Legend: M tokens that are said, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.precision import widen
from allformer.errors import ConfigError
from allformer.train.preferences.said import Said, chunks, row_sums, said_states
from allformer.tune.apply import using
from allformer.tune.tuning import tuning_of

AUTO, BASE, START = "auto", "base", "start"
Acting = Callable[[], AbstractContextManager[Any]]  # for a while, the reference stands there


def has_base(model: Any) -> bool:
    """Whether there are adapters that can be taken off a model."""
    tuning = tuning_of(model)
    return tuning is not None and not any(a.in_place for a in tuning.adapters.values())


def chosen_reference(model: Any, asked: str) -> str:
    """`base` or `start`; by itself the base of a model with adapters."""
    if asked == AUTO:
        return BASE if has_base(model) else START
    if asked == BASE and not has_base(model):
        raise ConfigError(
            "objective.reference=base: there is no adapter on this model that could be taken off; "
            "tune it with one (tune: {is: lora}), or set objective.reference=start"
        )
    return asked


@contextmanager
def without_adapters(model: Any) -> Iterator[Any]:
    """The model with its adapters off: `with without_adapters(model) as base: …`."""
    with using(model, None):
        yield model


@torch.no_grad()
def divergence(model: Any, acting: Acting, said: Said, dtype: torch.dtype | None = None) -> Tensor:
    """KL(π ‖ π_ref) over the vocabulary, the mean over the tokens of each answer: R."""
    states = said_states(model, said, dtype)
    with acting() as reference:
        others = said_states(reference, said, dtype)
    parts = []
    for at in chunks(len(states), model.vocab_head.vocab):
        logp = widen(model.vocab_head(states[at])).log_softmax(-1)
        with acting() as reference:
            other = widen(reference.vocab_head(others[at])).log_softmax(-1)
        parts.append(F.kl_div(other, logp, reduction="none", log_target=True).sum(-1))
    return row_sums(said, torch.cat(parts)) / said.counts
