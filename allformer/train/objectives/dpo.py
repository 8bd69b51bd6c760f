"""Preferences without a reward model: of two answers, the better one becomes likelier (DPO).

    objective: {is: dpo, loss: {kind: sigmoid, beta: 0.1}}
    data: {path: dpo_zh_demo.json.gz, max_length: 1024}

The losses are in `preferences.losses`; what a record may look like in `data.preferences`. What the
reference says of every answer is worked out once, before the first step: it never changes, and no
second model has to be kept.

Legend: N tokens of a batch, P pairs, R = 2 P rows: all chosen answers, then all rejected ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.data.batches import token_batches
from allformer.data.table import Table
from allformer.train.batch import Array, Frame, moved
from allformer.train.objectives.objective import register
from allformer.train.preferences.compared import ReferenceOptions
from allformer.train.preferences.losses import PairLoss, Scores, Sigmoid
from allformer.train.preferences.preferred import (
    Preferred,
    gap_figures,
    half_ties,
    rows_of,
)
from allformer.train.preferences.reference import (
    BASE,
    chosen_reference,
    divergence,
    without_adapters,
)
from allformer.train.preferences.said import Said, lay_said, row_logps, without_dropout


@dataclass(frozen=True)
class DpoOptions(ReferenceOptions, section="objective"):
    """The loss of a pair, and what the model is compared with."""

    loss: PairLoss = field(default_factory=Sigmoid)


class PairBatch(NamedTuple):
    """Answers, and what the reference says of them."""

    said: Said
    numbers: Tensor  # R: of the rows, through both splits
    reference: Tensor | None  # R, once it is ready; None: nothing is compared with
    tokens: int  # of the answers
    counts: tuple[int, ...]  # P


@register("dpo")
class Dpo(Preferred):
    """`Dpo(make_recipe({"objective": "dpo", "data": {"path": "pairs.jsonl"}, …}))`."""

    Options = DpoOptions

    def __init__(self, recipe: Any = None) -> None:
        super().__init__(recipe)
        self.known: Tensor | None = None  # of all rows, what the reference says
        self.copy: Any = None  # of the model as it began, where it has gone on since

    @property
    def pair_loss(self) -> PairLoss:
        """As the recipe has it."""
        found: PairLoss = self.recipe.options.loss
        return found

    def config(self, vocabulary: Any) -> Any:
        """A loss that does not know `train.smoothing` refuses it."""
        self.pair_loss.check(self.recipe.train.smoothing)
        return super().config(vocabulary)

    # --- the reference ----------------------------------------------------------------------------

    @contextmanager
    def reference(self, model: Any) -> Iterator[Any]:
        """The base, or how the model began: before the first step that is the model itself."""
        if chosen_reference(model, self.recipe.options.reference) == BASE:
            with without_adapters(model) as base:
                yield base
        else:
            yield model if self.copy is None else self.copy

    def at(self, step: int) -> None:
        """Before the first step the reference says what it makes of all answers."""
        if self.known is None and self.pair_loss.refers:
            self.known = self._all()
        super().at(step)

    def _all(self) -> Tensor:
        known, done = torch.zeros(self.rows, dtype=torch.float64), 0
        for table in self._tables.values():
            sides, budget = self.lengths(table), self.recipe.train.batch_tokens
            for index in token_batches(*sides, budget, seed=0, epoch=0, pool=1000):
                self.aside("asking the reference", done, self.rows // 2)
                done += len(index)
                batch = moved(self.collate(table, index), self.policy.device)
                known[batch.numbers.cpu()] = self._say(batch.said, self.dtype).double().cpu()
        return known

    def _look(self, model: Any) -> None:
        """Take up a model that has been tuned already."""
        self.meet(model, False)
        if chosen_reference(model, self.recipe.options.reference) != BASE:
            self.copy = self.frozen(model)

    @torch.no_grad()
    def _say(self, said: Said, dtype: torch.dtype | None) -> Tensor:
        with without_dropout(self.policy), self.reference(self.policy) as model:
            return row_logps(model, said, dtype)

    def ready(self, batch: Any) -> Any:
        """With the reference's opinion: what was worked out, or before that the model's own."""
        if not self.pair_loss.refers or self.policy is None:
            return batch
        if self.known is None:
            return batch._replace(reference=self._say(batch.said, self.dtype))
        known = self.known[batch.numbers.cpu()].to(batch.said.ids.device)
        return batch._replace(reference=known)

    def state(self) -> dict[str, Any]:
        """What the reference said: a run that goes on has no other way to know."""
        return {**super().state(), "reference": self.known}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave."""
        super().restore(state)
        known = state.get("reference")
        self.known = None if known is None else known.cpu()

    # --- batches and losses -----------------------------------------------------------------------

    def collate(self, examples: Table, index: Array, frame: Frame | None = None) -> Any:
        """Both answers of each pair, each behind the prompt."""
        rows = self.pair_rows(np.asarray(index))
        said = lay_said(rows_of(examples, rows))
        numbers = torch.from_numpy(np.asarray(examples["number"])[rows])
        return PairBatch(said, numbers, None, len(said.labels), (len(index),))

    def scores(self, model: Any, batch: PairBatch, dtype: torch.dtype | None = None) -> Scores:
        """How likely both answers are, and were: P 2."""
        with without_dropout(model):
            logps = row_logps(model, batch.said, dtype)
        reference = None if batch.reference is None else batch.reference.to(logps)
        return Scores(
            _paired(logps),
            None if reference is None else _paired(reference),
            _paired(batch.said.counts),
        )

    def loss(
        self,
        model: Any,
        batch: Any,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Of each pair, as `objective.loss` says; and the same as if no label were wrong."""
        scores = self.scores(model, batch, dtype)
        each = self.pair_loss.each(scores, smoothing)
        plain = self.pair_loss.each(scores) if smoothing else each
        rewards = self.pair_loss.rewards(scores).detach()
        gap = rewards[:, 0] - rewards[:, 1]
        self._last = gap_figures(gap)
        return each.sum(), plain.sum().detach()

    def measured(self, model: Any) -> tuple[str, ...]:
        """Of pairs; with adapters the divergence too."""
        found = ("accuracy", "margin", "chosen", "rejected", "likelier")
        beside = chosen_reference(model, self.recipe.options.reference) == BASE
        return (*found, "kl") if beside else found

    def appraise(
        self, model: Any, batch: Any, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Sums over pairs: `accuracy` (the better answer has the higher reward), `margin` (by how
        much), the rewards themselves, `likelier` (whether the better answer is likelier for each
        token, whatever the reference says), and with adapters `kl`, the divergence from the base
        for each token."""
        if batch.reference is None and self.pair_loss.refers:
            if self.policy is None:  # a run that has ended is looked at
                self._look(model)
            batch = batch._replace(reference=self._say(batch.said, dtype))
        scores = self.scores(model, batch, dtype)
        rewards = self.pair_loss.rewards(scores)
        gap, means = rewards[:, 0] - rewards[:, 1], scores.logps / scores.counts
        found = {
            "accuracy": half_ties(gap),
            "margin": gap,
            "chosen": rewards[:, 0],
            "rejected": rewards[:, 1],
            "likelier": half_ties(means[:, 0] - means[:, 1]),
        }
        if chosen_reference(model, self.recipe.options.reference) == BASE:
            kl = divergence(model, lambda: without_adapters(model), batch.said, dtype)
            found["kl"] = _paired(kl).mean(1)
        return self.pair_loss.each(scores).sum(), {name: x.sum() for name, x in found.items()}


def _paired(rows: Tensor) -> Tensor:
    """R → P 2."""
    return rows.view(2, -1).T
