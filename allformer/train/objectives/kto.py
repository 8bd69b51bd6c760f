"""Verdicts: answers that are good become likelier, those that are not become less so (KTO).

    objective: {is: kto, beta: 0.1, good: 1.0, bad: 1.0}
    data: {path: kto_en_demo.json.gz, max_length: 1024}

With log-ratios r = log π(y|x) − log π_ref(y|x) (Ethayarajh et al., 2024, eq. 7 and 8):

    good answers  w_good (1 − σ(β (r − z))),   others  w_bad (1 − σ(β (z − r)))

z is how far the model is from its reference anyway, max(0, mean of r over answers to other
questions): here each question of a micro-batch with the answer to the one before it. A micro-batch
of one has nothing of the kind, so that they should have several; data with pairs gives two
verdicts each.

Legend: N tokens of a batch, R rows (answers).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.data.table import Table
from allformer.errors import ConfigError
from allformer.train.batch import Array, Frame
from allformer.train.objectives.objective import register
from allformer.train.preferences.compared import ReferenceOptions
from allformer.train.preferences.preferred import (
    Preferred,
    half_ties,
    rows_of,
)
from allformer.train.preferences.reference import (
    BASE,
    chosen_reference,
    without_adapters,
)
from allformer.train.preferences.said import Said, lay_said, row_logps, without_dropout
from allformer.train.sections.section import positive


@dataclass(frozen=True)
class KtoOptions(ReferenceOptions, section="objective"):
    """`good` and `bad` weigh the two kinds of answers: where there are n times as many of one, the
    other should weigh about n times as much (section 4.2)."""

    beta: Annotated[float, positive("0.1")] = 0.1
    good: Annotated[float, positive("1.0")] = 1.0
    bad: Annotated[float, positive("1.0")] = 1.0


class VerdictBatch(NamedTuple):
    """Answers, the same answers to other questions, and what the reference says of all of them."""

    said: Said
    other: Said
    good: Tensor  # R: 1 or 0
    reference: Tensor | None  # R, once it is ready
    other_reference: Tensor | None  # R
    tokens: int  # of the answers
    counts: tuple[int, ...]  # R


@register("kto")
class Kto(Preferred):
    """`Kto(make_recipe({"objective": "kto", "data": {"path": "verdicts.jsonl"}, …}))`."""

    Options = KtoOptions
    pairs: ClassVar[bool] = False

    def __init__(self, recipe: Any = None) -> None:
        super().__init__(recipe)
        self.copy: Any = None

    # --- the reference ----------------------------------------------------------------------------

    def config(self, vocabulary: Any) -> Any:
        """`train.smoothing` has no meaning here."""
        if self.recipe.train.smoothing:
            raise ConfigError(
                f"train.smoothing={self.recipe.train.smoothing}: objective='kto' does not know it; "
                f"remove it, or weigh the verdicts with objective.good and objective.bad"
            )
        return super().config(vocabulary)

    def meet(self, model: Any, captures: bool) -> None:
        """Where no adapter can be taken off, the checkpoint is read once more, and frozen: answers
        meet other questions in each epoch, so that nothing can be worked out beforehand."""
        super().meet(model, captures)
        if chosen_reference(model, self.recipe.options.reference) == BASE:
            return
        self.copy = self.frozen(model)

    @contextmanager
    def reference(self, model: Any) -> Iterator[Any]:
        """The base, or the copy of how the model began."""
        if self.copy is not None:
            yield self.copy
        else:
            with without_adapters(model) as base:
                yield base

    def ready(self, batch: Any) -> Any:
        """With the reference's opinion, where a model is tuned."""
        return batch if self.policy is None else self._compared(batch, self.dtype)

    @torch.no_grad()
    def _compared(self, batch: VerdictBatch, dtype: torch.dtype | None) -> VerdictBatch:
        with without_dropout(self.policy), self.reference(self.policy) as model:
            own, other = (row_logps(model, x, dtype) for x in (batch.said, batch.other))
        return batch._replace(reference=own, other_reference=other)

    # --- batches and losses -----------------------------------------------------------------------

    def collate(self, examples: Table, index: Array, frame: Frame | None = None) -> Any:
        """Answers, and each question with the answer before it in the batch."""
        rows = rows_of(examples, np.asarray(index))
        other = [_joined(rows[i], rows[i - 1], self.longest) for i in range(len(rows))]
        said, good = lay_said(rows), torch.from_numpy(np.asarray(examples["value"])[index])
        counts = (len(index),)
        return VerdictBatch(said, lay_said(other), good, None, None, len(said.labels), counts)

    def judged(
        self, model: Any, batch: VerdictBatch, dtype: torch.dtype | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Losses and log-ratios of the answers, R, and z."""
        options: KtoOptions = self.recipe.options
        assert batch.reference is not None
        assert batch.other_reference is not None
        with without_dropout(model):
            with torch.no_grad():
                other = row_logps(model, batch.other, dtype)
            ratios = row_logps(model, batch.said, dtype) - batch.reference
        z = (other - batch.other_reference).mean().clamp_min(0)
        above = options.beta * (ratios - z)
        good = batch.good > 0
        weight = torch.full_like(ratios, options.bad).masked_fill(good, options.good)
        return weight * (1 - above.where(good, -above).sigmoid()), ratios, z

    def loss(
        self,
        model: Any,
        batch: Any,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Of each answer."""
        each, ratios, z = self.judged(model, batch, dtype)
        right = half_ties((ratios.detach() - z) * (2 * batch.good - 1))
        self._last = {"preference_accuracy": right.mean(), "kl": z}
        return each.sum(), each.sum().detach()

    def measured(self, model: Any) -> tuple[str, ...]:
        """Of answers; the margin where there are both kinds."""
        found = ("accuracy", "kl", "chosen", "rejected")
        good = np.asarray(self.validation["value"])
        return (*found, "margin") if 0 < good.mean() < 1 else found

    def appraise(
        self, model: Any, batch: Any, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Sums over answers: `accuracy` (good ones have become likelier than z says, the others
        less so), `kl`, which is z, and the rewards β r of either kind."""
        if batch.reference is None:
            if self.policy is None:  # a run that has ended is looked at
                self.meet(model, False)
            batch = self._compared(batch, dtype)
        each, ratios, z = self.judged(model, batch, dtype)
        rewards = self.recipe.options.beta * ratios
        found = {
            "accuracy": half_ties((ratios - z) * (2 * batch.good - 1)),
            "kl": z.expand(len(each)),
            "chosen": rewards * batch.good,
            "rejected": rewards * (1 - batch.good),
        }
        return each.sum(), {name: x.sum() for name, x in found.items()}

    def follows(self, means: Mapping[str, float], examples: Table) -> dict[str, float]:
        """The mean reward of either kind, and `margin`, the gap between them."""
        good = np.asarray(examples["value"])
        share = float(good.mean())
        found = {
            name: means[name] / part
            for name, part in (("chosen", share), ("rejected", 1 - share))
            if part
        }
        if len(found) < 2:
            return found
        return {**found, "margin": found["chosen"] - found["rejected"]}


def _joined(
    asked: tuple[Array, Array], said: tuple[Array, Array], longest: int
) -> tuple[Array, Array]:
    """One row's question with another one's answer."""
    (ids, learnt), (other, marks) = asked, said
    begin, end = int(np.argmax(learnt)), int(np.argmax(marks))
    both = np.concatenate([ids[:begin], other[end:]]), np.concatenate([learnt[:begin], marks[end:]])
    return both[0][:longest], both[1][:longest]
