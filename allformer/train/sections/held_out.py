"""Which examples are held out where data has no split for it, and which split is scored."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from allformer.errors import DataError
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


def scored_split(
    splits: Collection[str], split: str | None, *, held: bool, name: str
) -> tuple[str, str | None]:
    """What the split to score is called, and which of `splits` it is: `split`, else test, else val,
    else all. None where it is what training has held out (`held`: it had to). `name` is the data's.

    `told, chosen = scored_split(("train", "test"), None, held=True, name="digits")`
    """
    if held and (split == "val" or (split is None and "test" not in splits)):
        return "val", None
    chosen = split or next(x for x in ("test", "val", "train") if x in splits)
    if chosen not in splits:
        raise DataError(
            f"{name} has no {chosen} split; it has {', '.join(splits)}; try --split "
            f"{next(iter(splits))}"
        )
    return ("all" if split is None and len(splits) == 1 else chosen), chosen
