"""A rollout: what a model answers to prompts, with all that is worked out about it before a step.

drawn = draw_answers(model, prompts, Sampling(length=64), ends=[2], copies=8, seed=7)

The draws are decided by `seed` alone, so that a resumed run makes the same ones.

Legend: P prompts, R = P · copies answers (those of a prompt beside each other), W most tokens of an
answer, K rewards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.core.quantised import AnyQuantised
from allformer.errors import ConfigError
from allformer.generate.rooms import forget
from allformer.train.batch import Array, moved
from allformer.train.preferences.reference import has_base
from allformer.train.preferences.said import Said, lay_said, without_dropout
from allformer.train.sections.section import Count, Section, Whole, positive, share
from allformer.tune.merge import merge, unmerge


@dataclass(frozen=True)
class Sampling(Section, section="objective.sampling"):
    """How answers are drawn: `length` tokens at most. What is learnt is the likelihood of whole
    vocabularies at this temperature, so that `top_k` and `top_p` are for those who know why."""

    length: Count = 256
    temperature: Annotated[float, positive("1.0")] = 1.0
    top_k: Whole = 0  # 0: all
    top_p: Annotated[float, share("1.0", whole=True)] = 1.0


class Drawn(NamedTuple):
    """Answers as ids, each with the token that ends it, if it ended."""

    answers: list[Array]  # R
    ended: list[bool]  # R: False: cut off


@dataclass(frozen=True, eq=False)
class Rollout:
    """Answers, what they are worth, and what models make of their tokens.

    `rows` are plain so that a checkpoint can keep them; `said` lays them out for a model. Values of
    tokens lie on a grid R W, 0 behind the end of an answer.
    """

    rows: list[tuple[Array, Array]]  # R: ids of prompt and answer, and of each whether it is said
    ended: Tensor  # R
    groups: Tensor  # R: the number of its prompt, from 0
    rewards: Tensor  # R K
    score: Tensor  # R: their weighted sum
    logps: Tensor | None = None  # R W: of the model that has drawn them
    reference: Tensor | None = None  # R W: of the reference
    # R or R W: what a method works out, such as advantages
    more: dict[str, Tensor] = field(default_factory=dict)

    @property
    def lengths(self) -> Tensor:
        """Tokens of each answer, R."""
        found = [int(np.asarray(learnt).sum()) for _, learnt in self.rows]
        return torch.tensor(found, device=self.score.device)

    def said(self) -> Said:
        """For a model to read, on the device of the rest."""
        return moved(lay_said(self.rows), self.score.device)  # type: ignore[type-var]

    def take(self, index: Sequence[int]) -> Rollout:
        """Some of its answers, in this order; grids are as wide as the longest of them."""
        rows = [self.rows[i] for i in index]
        width = max(int(np.asarray(learnt).sum()) for _, learnt in rows)
        at = torch.tensor(list(index), device=self.score.device)

        def some(x: Tensor) -> Tensor:
            return x[at] if x.ndim == 1 or x is self.rewards else x[at, :width]

        return Rollout(
            rows, some(self.ended), some(self.groups), some(self.rewards), some(self.score),
            None if self.logps is None else some(self.logps),
            None if self.reference is None else some(self.reference),
            {name: some(x) for name, x in self.more.items()},
        )  # fmt: skip

    # --- across a resume --------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Tensors and lists of them, for a checkpoint."""
        rows = [tuple(torch.from_numpy(np.array(x, np.int64)) for x in row) for row in self.rows]
        kept = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**kept, "rows": rows}

    @classmethod
    def restored(cls, state: dict[str, Any], device: torch.device) -> Rollout:
        """What `state` gave."""
        rows = [tuple(x.cpu().numpy() for x in row) for row in state["rows"]]
        more = {name: x.to(device) for name, x in state["more"].items()}
        rest = {
            name: x.to(device) if isinstance(x, Tensor) else x
            for name, x in state.items()
            if name not in ("rows", "more")
        }
        return cls(rows=rows, more=more, **rest)


@torch.no_grad()
def draw_answers(
    model: Any,
    prompts: Sequence[Array],
    sampling: Sampling,
    *,
    ends: Sequence[int],
    copies: int = 1,
    seed: int = 0,
    dtype: torch.dtype | None = None,
) -> Drawn:
    """So many answers to each prompt, by `model.generate`; adapters are in the weights meanwhile,
    where they can be, so that a step costs no more than the base's."""
    width = max(map(len, prompts))
    fill = ends[0] if ends else 0
    ids = torch.full((len(prompts), width), fill)  # P T, filled on the left
    keep = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.from_numpy(np.asarray(prompt, np.int64))
        keep[row, width - len(prompt) :] = 1
    device = model.device
    with quick(model), without_dropout(model):
        found = model.generate(
            ids.to(device),
            attention_mask=keep.to(device),
            do_sample=True,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            max_new_tokens=sampling.length,
            num_return_sequences=copies,
            eos_token_id=list(ends) or -1,  # −1: nothing ends it
            pad_token_id=fill,
            generator=torch.Generator(device).manual_seed(seed),
            dtype=dtype,
        )
    forget(model)  # training wants the memory
    return _cut(found[:, width:].cpu().numpy(), set(ends))


def _cut(found: Array, ends: set[int]) -> Drawn:
    """Up to the token that ends each, with it: what follows only fills the row."""
    answers, ended = [], []
    for row in found:
        at = next((i for i, token in enumerate(row.tolist()) if token in ends), None)
        answers.append(row if at is None else row[: at + 1])
        ended.append(at is not None)
    return Drawn(answers, ended)


@contextmanager
def quick(model: Any) -> Iterator[None]:
    """For a while adapters are in the weights: not on a quantised base, which would have to be
    widened, and not those that are no change of a matrix (prefix, prompt, bottleneck)."""
    mergeable = has_base(model) and not any(isinstance(m, AnyQuantised) for m in model.modules())
    if mergeable:
        try:
            merge(model)
        except ConfigError:
            mergeable = False
    try:
        yield
    finally:
        if mergeable:
            unmerge(model)
