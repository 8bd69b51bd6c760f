"""What the objectives share whose model is compared with a reference: conversations as
`instruction` reads them, a model without dropout, and how it began.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch

from allformer.errors import ConfigError
from allformer.train.batch import Frame
from allformer.train.objectives.instruction import Instruction, InstructionOptions
from allformer.train.precision import find_precision
from allformer.train.preferences.reference import AUTO, BASE, START, has_base
from allformer.train.sections.model import CheckpointModel
from allformer.train.sections.section import one_of
from allformer.train.weights import begin


@dataclass(frozen=True)
class ReferenceOptions(InstructionOptions, section="objective"):
    """`reference`: the base without its adapters, the model as it began, or by itself the base
    where there are adapters."""

    reference: Annotated[str, one_of(AUTO, BASE, START)] = AUTO


class Compared(Instruction):
    """`policy` is the model that is tuned, once it is there."""

    perplexity = False
    waits = True  # batches have sizes of their own

    def __init__(self, recipe: Any = None) -> None:
        super().__init__(recipe)
        self.policy: Any = None

    def config(self, vocabulary: Any) -> Any:
        """Settings of other objectives, which would change nothing here, are refused."""
        if self.recipe.train.z_loss:
            raise ConfigError(
                f"train.z_loss={self.recipe.train.z_loss} is for the likelihood of single tokens, "
                f"which objective={self.name!r} does not train; remove it"
            )
        return super().config(vocabulary)

    @property
    def dtype(self) -> torch.dtype | None:
        """What a step computes in, for what is computed beside it."""
        return find_precision(self.recipe.train.precision, self.policy.device).dtype

    def meet(self, model: Any, captures: bool) -> None:
        """The model that is tuned, from now on without dropout: chance would move one answer's
        likelihood against the other's, and both against the reference's."""
        super().meet(model, captures)
        self.policy = model.eval()

    def frozen(self, model: Any) -> Any:
        """The model as it began, read once more; one that cannot be read again is refused."""
        asked = self.recipe.model
        if has_base(model) or not isinstance(asked, CheckpointModel):
            why = "the model has adapters" if has_base(model) else "model has no checkpoint"
            raise ConfigError(
                f"objective.reference={START}: {why}, and how it began cannot be read again; tune "
                f"a checkpoint (merge an adapter into it first: allformer convert --merge)"
            )
        found = begin(asked, model.config, model.device, lambda line: None).model
        return found.eval().requires_grad_(False)

    def frame(self) -> Frame | None:
        """Batches are as large as they are."""
        return None

    def counts(self, batch: Any) -> tuple[int, ...]:
        """What has a loss: pairs, answers with a verdict, answers or tokens of them."""
        counts: tuple[int, ...] = batch.counts
        return counts
