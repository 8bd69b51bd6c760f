"""Random features that are drawn anew while a model trains (Performer)."""

from __future__ import annotations

from typing import Any

from allformer.config import Features, Model
from allformer.core.mixers.features import redraw
from allformer.errors import ConfigError


class Redraw:
    """Another draw every so many steps, so that no layer leans on one: `Redraw(model, 1000)(step)`.

    Which one is a function of the step alone: alike on every process and after a resume.
    """

    def __init__(self, model: Any, every: int) -> None:
        self.model, self.every = model, every
        if every and not _draws(model.config):
            raise ConfigError(
                f"train.redraw={every} is for random features, and this model has none; leave it "
                f'out, or give its layers mixer=Features("favor", 256)'
            )

    def __call__(self, step: int) -> None:
        """After a step of the optimiser."""
        if self.every and step % self.every == 0:
            self.restore(step)

    def restore(self, step: int) -> None:
        """The draw that belongs to a step, in place of a mean of several, which is none."""
        if self.every and step >= self.every:
            redraw(self.model, seed=step // self.every)


def _draws(model: Model) -> bool:
    mixers = (b.attention.mixer for stack in model.stacks.values() for b in stack.blocks)
    return any(isinstance(mixer, Features) and mixer.kind == "favor" for mixer in mixers)
