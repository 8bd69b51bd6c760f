"""Which examples are kept to validate with, where data has no split for it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from allformer.train.sections.section import Section

Index = npt.NDArray[np.int64]


def held_out(
    section: Section, total: int, *, most: int, seed: int, what: str
) -> tuple[Index, Index]:
    """Of `total` examples the numbers of those to train on and of those held out, drawn by the
    seed: `section.hold_out` of them, or such a share; None: 5 %, at most `most`.

    `train, held = held_out(data, 2_700, most=500, seed=0, what="recordings")`
    """
    count: float | None = getattr(section, "hold_out", None)
    if count is None:
        count = min(most, max(1, total // 20))
    size = round(count * total) if count < 1 else int(count)
    if not 0 < size < total:
        section.refuse("hold_out", f"leaves nothing of {total:,} {what}", "try 0.1")
    order = np.random.default_rng([seed, total]).permutation(total)
    return np.sort(order[size:]), np.sort(order[:size])
