"""The prompts of an epoch, and those of a batch.

Legend: N tokens of a batch's prompts, P prompts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.data.table import Table
from allformer.train.batch import Array

HELD_OUT = -1  # the epoch of prompts that nothing is learnt from


class Prompts(NamedTuple):
    """Of an epoch, in its order. An example is one use of a prompt: number i is the prompt at place
    i mod len(rows), used for the i // len(rows)-th time."""

    table: Table
    rows: Array  # numbers in the table
    epoch: int = HELD_OUT
    uses: int = 1

    def batches(self, size: int, together: int = 1) -> list[Array]:
        """Batches of `size` prompts, as numbers of examples. `together` batches, which make a step,
        are used up before the next ones come; where they come again, a rest that makes no step is
        left out."""
        total = len(self.rows)
        cut = [np.arange(i, min(i + size, total)) for i in range(0, total, size)]
        if self.uses == 1:
            return cut
        steps = [cut[i : i + together] for i in range(0, len(cut) - together + 1, together)]
        return [part + use * total for step in steps for use in range(self.uses) for part in step]


class PromptBatch(NamedTuple):
    """Prompts to answer, or whose answers are used again."""

    ids: Tensor  # N: end to end
    lengths: Tensor  # P
    rows: Tensor  # P: numbers in the table
    place: tuple[int, int]  # the epoch, and the number of its rollout
    use: int  # for which time the rollout is used, from 0
    tokens: int
    counts: tuple[int, ...]

    def prompts(self) -> list[Array]:
        """Each as ids."""
        cuts = self.lengths.cumsum(0)[:-1].tolist()
        return np.split(self.ids.cpu().numpy(), cuts)


def collate_prompts(examples: Prompts, index: Array, size: int) -> PromptBatch:
    """The examples numbered `index`, which `Prompts.batches` has cut."""
    total = len(examples.rows)
    use, at = int(index[0]) // total, np.asarray(index) % total
    rows = examples.rows[at]
    ids = examples.table["ids"].take(rows)
    return PromptBatch(
        torch.from_numpy(ids.flat().astype(np.int64)),
        torch.from_numpy(ids.lengths.astype(np.int64)),
        torch.from_numpy(rows.astype(np.int64)),
        (examples.epoch, int(at[0]) // size),
        use,
        int(ids.lengths.sum()),
        (len(rows),),
    )
