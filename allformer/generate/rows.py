"""The rows of a search: which have ended, and when the host looks.

Whether a row has ended is worked out on the device. To wait for a GPU after each token would leave
it idle while the next step is prepared, so the host looks every few steps alone; what was done too
much by then is cut off, and no result depends on it. Rows that have ended run on with the others,
unseen; where they have become many, the others go on without them.

Legend: R rows of the caller's, B of them in the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from allformer.errors import GenerationError

BETWEEN = {"cpu": 1}  # steps from one look to the next: a CPU need not be waited for
_USUAL = 8
FEW = 8  # in a batch as small as this, rows that run on cost next to nothing
IDLE = 0.25  # so large a part of a batch is worth a copy of the rest


def steps_between(device: torch.device) -> int:
    """How many steps are taken from one look of the host to the next."""
    return BETWEEN.get(device.type, _USUAL)


class Parting(NamedTuple):
    """Rows of the batch that go on, and those that leave it."""

    stay: Tensor
    leave: Tensor


class Rows:
    """`limit` (R): how many tokens each row may get. The host looks each `every` steps.

    `together`: rows that have ended go on, seen, until all have. `parts=False`: none leaves, for a
    row is known by its place (adapters by row).
    """

    def __init__(
        self,
        limit: Tensor,
        device: torch.device,
        every: int,
        together: bool = False,
        parts: bool = True,
    ) -> None:
        self.total, self.longest = len(limit), int(limit.max())
        self.every, self.together, self.parts = every, together, parts
        self.limit = limit.to(device)  # B, as the next three
        self.here = torch.arange(self.total, device=device)  # which of the R each row is
        self.hit = torch.zeros(self.total, dtype=torch.bool, device=device)
        self.over = self.hit  # what they say is not looked at any more
        self.count = torch.zeros_like(self.here)  # R: tokens said before that
        self.wrong = self.hit.any()  # whether a score was not a number
        self.steps, self.ended = 0, False

    @property
    def whole(self) -> bool:
        """Whether all rows are in the batch, in order."""
        return len(self.here) == self.total

    def at_limit(self) -> Tensor:
        """B: those that may have no token after the one of this step."""
        return self.limit <= self.steps + 1

    def end(self, hit: Tensor, rank: Tensor) -> None:
        """A step is done, and those in `hit` end with it; `rank` (B or B N) is NaN where a score
        was."""
        running = ~self.over
        nan = rank.isnan() if rank.ndim == 1 else rank.isnan().any(1)
        self.wrong = self.wrong | (nan & running).any()
        self.count.index_add_(0, self.here, running.long())
        self.hit = self.hit | hit
        self.over = self.hit.all().expand_as(self.hit) if self.together else self.hit
        self.steps += 1

    def look(self) -> Parting | None:
        """Wait for the device, if it is time: have all `ended`, or so many that they should go?"""
        if self.steps % self.every and self.steps < self.longest:
            return None
        *over, wrong = torch.cat([self.over, self.wrong[None]]).tolist()
        if wrong:
            raise not_numbers()
        self.ended = all(over)
        many = len(over) > FEW and sum(over) >= IDLE * len(over)
        if self.ended or not (many and self.parts):
            return None
        stay, leave = ([i for i, x in enumerate(over) if x is is_over] for is_over in (False, True))
        device = self.here.device
        return Parting(torch.tensor(stay, device=device), torch.tensor(leave, device=device))

    def keep(self, stay: Tensor) -> None:
        """Only these rows of the batch go on."""
        self.limit, self.here, self.hit = self.limit[stay], self.here[stay], self.hit[stay]
        self.over = self.hit  # together, nobody leaves


def not_numbers() -> GenerationError:
    """What to raise when the score of a chosen token is NaN."""
    return GenerationError(
        "the scores of the next token are not numbers (NaN); look for NaN in the weights, "
        "try a wider dtype, and see that the options do not forbid every token"
    )
