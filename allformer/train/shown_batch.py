"""A batch as a person sees it: its rows as text, and which of it is learnt."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from allformer.core.loss import IGNORE
from allformer.text.tokenizer import Tokenizer


class ShownRow(NamedTuple):
    """A row: its ids, whether each is learnt, and its text cut where that changes."""

    ids: list[int]
    learnt: list[bool]
    parts: list[tuple[str, bool]]


def shown_rows(
    tokenizer: Tokenizer, ids: Tensor, labels: Tensor, starts: Tensor
) -> tuple[ShownRow, ...]:
    """Rows end to end (N ids, N labels, each what follows its id): `starts` says where they begin.

    Rows of filler, in which nothing is to be said, are left out.
    """
    found = []
    for begin, end in pairwise(starts.tolist()):
        read, said = ids[begin:end].tolist(), labels[begin:end].tolist()
        if all(label == IGNORE for label in said):
            continue
        last = [said[-1]] if said[-1] != IGNORE else []  # no place reads it
        whole = [*read, *last]
        learnt = [False, *(label != IGNORE for label in said)][: len(whole)]
        found.append(ShownRow(whole, learnt, _parts(tokenizer, whole, learnt)))
    return tuple(found)


def _parts(tokenizer: Tokenizer, ids: list[int], learnt: list[bool]) -> list[tuple[str, bool]]:
    """Decoded run by run: a character of several tokens stays whole."""
    cuts = [i for i in range(1, len(ids)) if learnt[i] != learnt[i - 1]]
    runs = zip([0, *cuts], [*cuts, len(ids)], strict=True)
    return [(tokenizer.decode(ids[a:b], skip_special_tokens=False), learnt[a]) for a, b in runs]
