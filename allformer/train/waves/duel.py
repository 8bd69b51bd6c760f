"""The judges of a sound codec: what they learn, and what the codec learns from them.

Legend: B crops, S samples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from allformer.train.opponent import Opponent
from allformer.train.optim import Optim
from allformer.train.waves.codec_options import Judges
from allformer.train.waves.discriminator import SpectrumJudges
from allformer.train.waves.hinge import fooling, judging, matching


class Duel:
    """`duel.against(made, real, keep)` in the loss, `duel.step(rate)` when the step is taken."""

    def __init__(
        self, asked: Judges, optim: Optim, device: torch.device, captures: bool = False
    ) -> None:
        self.asked = asked
        judges = SpectrumJudges(asked.windows, asked.width).to(device)
        self.opponent = Opponent(judges, replace(optim, weight_decay=0.0), captures)
        self.weight = torch.zeros((), device=device)  # where a captured step reads it
        self.told = torch.zeros(3, device=device)  # of the last batch: judging, fooling, matching

    def at(self, step: int) -> None:
        """Whether the codec hears its judges in this step."""
        self.weight.fill_(float(step > self.asked.after))

    def against(
        self,
        made: Tensor,
        real: Tensor,
        keep: Tensor,
        *,
        dtype: torch.dtype | None = None,
        learn: bool = True,
    ) -> Tensor:
        """What the waves B S that were made lose before the judges, B; with `learn` these compare
        them with the real ones, and gather what they will learn of it."""
        with torch.set_grad_enabled(learn):
            wanted = self.opponent(real, dtype=dtype)
            judged = judging(wanted, self.opponent(made.detach(), dtype=dtype))
        if learn:
            self.opponent.learn((judged * keep).sum(), keep.sum())
        found = self.opponent.frozen(made, dtype=dtype)
        fooled, matched = fooling(found), matching(wanted, found)
        every = torch.stack([judged, fooled, matched]).detach()
        self.told.copy_((every * keep).sum(1) / keep.sum())
        return self.weight * (self.asked.fool * fooled + self.asked.match * matched)

    def step(self, rate: Tensor | float) -> None:
        """The judges follow what they gathered."""
        self.opponent.step(rate * self.asked.rate)

    def figures(self) -> dict[str, float]:
        """Of the last batch: 2 is what judges lose who cannot tell, 0 who are sure."""
        names = ("judging", "fooling", "matching")
        return dict(zip(names, self.told.tolist(), strict=True))

    def state(self) -> dict[str, Any]:
        """For `restore` after a resume."""
        return self.opponent.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.opponent.restore(state)
