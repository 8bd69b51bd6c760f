"""The judges of a sound codec: what they learn, and what the codec learns from them.

Legend: B crops, S samples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from allformer.train.opponent import Opponent
from allformer.train.optim import Optim
from allformer.train.waves.codec_options import Judges
from allformer.train.waves.discriminator import SpectrumJudges, Told
from allformer.train.waves.hinge import fooling, judging, matching


class Lost(NamedTuple):
    """What made waves lose before the judges, of each crop, B: by their scores, by their layers."""

    fool: Tensor
    match: Tensor


class Duel:
    """`duel.against(made, real, keep)` in the loss, `duel.step(rate)` when the step is taken."""

    def __init__(
        self, asked: Judges, optim: Optim, device: torch.device, captures: bool = False
    ) -> None:
        self.asked = asked
        judges = SpectrumJudges(asked.windows, asked.width).to(device)
        self.opponent = Opponent(judges, replace(optim, weight_decay=0.0), captures)
        self.told = torch.zeros(3, device=device)  # of the last batch: judging, fooling, matching
        self.sits = asked.after == 0

    def at(self, step: int) -> None:
        """Whether the judges sit in this step; where they do not, they cost nothing."""
        past = step - self.asked.after
        self.sits = past > 0 and (past - 1) % self.asked.every == 0

    def against(
        self,
        made: Tensor,
        real: Tensor,
        keep: Tensor,
        *,
        dtype: torch.dtype | None = None,
        learn: bool = True,
    ) -> Lost:
        """What the waves B S that were made lose before the judges. With `learn` these compare them
        with the real ones and gather what they will learn of it; then `made` is a leaf, of which
        alone a gradient may be asked: the same pass serves both sides."""
        both = torch.cat([real, made])  # one pass of twice as many: half of the kernels
        told = (self.opponent if learn else self.opponent.frozen)(both, dtype=dtype)
        wanted, found = _halves(told, len(real))
        judged = judging(wanted, found)
        if learn:
            self.opponent.learn((judged * keep).sum(), keep.sum(), again=True)
        lost = Lost(fooling(found), matching(wanted, found))
        every = torch.stack([judged, *lost]).detach()
        self.told.copy_((every * keep).sum(1) / keep.sum())
        return lost

    def step(self, rate: Tensor | float) -> None:
        """The judges follow what they gathered."""
        self.opponent.step(rate * self.asked.rate)

    def figures(self) -> dict[str, float]:
        """Of the last batch that they heard: 2 is what judges lose who cannot tell, 0 who are
        sure."""
        names = ("judging", "fooling", "matching")
        return dict(zip(names, self.told.tolist(), strict=True))

    def state(self) -> dict[str, Any]:
        """For `restore` after a resume."""
        return self.opponent.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.opponent.restore(state)


def _halves(told: list[Told], count: int) -> tuple[list[Told], list[Told]]:
    """The first `count` crops, and the rest."""
    first = [Told(one.scores[:count], [x[:count] for x in one.inner]) for one in told]
    rest = [Told(one.scores[count:], [x[count:] for x in one.inner]) for one in told]
    return first, rest
