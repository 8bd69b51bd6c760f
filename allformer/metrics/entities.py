"""F1 of named entities by seqeval's default mode, which is conlleval's.

An entity counts where type, first and last token agree. Tags are forgiving: I- that follows
nothing, or another type, begins an entity; E- and S- (IOBES) are known too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from allformer.errors import DataError


class Entity(NamedTuple):
    """Tokens `first` … `last`, the last one included."""

    kind: str
    first: int
    last: int


class Score(NamedTuple):
    """Precision, recall and their F1; `wanted` is how many there were."""

    precision: float
    recall: float
    f1: float
    wanted: int


class EntityF1(NamedTuple):
    """Of all entities together (what is usually reported), the mean of the kinds, and each kind."""

    micro: Score
    macro: Score
    by_kind: dict[str, Score]


def entities(tags: Sequence[str]) -> list[Entity]:
    """`entities(["B-PER", "I-PER", "O", "B-LOC"])` → PER 0 … 1, LOC 3 … 3."""
    found = []
    before, kind_before, first = "O", "", 0
    for i, tag in enumerate([*tags, "O"]):
        place, kind = _read(tag, i)
        other = kind != kind_before
        if before != "O" and (before in "ES" or place in "BSO" or other):
            found.append(Entity(kind_before, first, i - 1))
        if place != "O" and (place in "BS" or before in "ESO" or other):
            first = i
        before, kind_before = place, kind
    return found


def entity_f1(wanted: Sequence[Sequence[str]], given: Sequence[Sequence[str]]) -> EntityF1:
    """`entity_f1([["B-PER", "O"]], [["B-PER", "O"]]).micro.f1` → 1.0; a list of tags a sentence.

    The kinds are those that occur on either side. Where nothing is found, or nothing was wanted,
    the figure is 0.
    """
    if [len(tags) for tags in wanted] != [len(tags) for tags in given]:
        raise DataError(
            "entity F1: wanted and given differ in sentences or in tags of a sentence; give one "
            "tag for each token"
        )
    sides = [
        {(i, *entity) for i, tags in enumerate(side) for entity in entities(tags)}
        for side in (wanted, given)
    ]
    kinds = sorted({entity[1] for side in sides for entity in side})
    each = {k: _score(*({e for e in side if e[1] == k} for side in sides)) for k in kinds}
    means = [sum(s[i] for s in each.values()) / max(1, len(each)) for i in range(3)]
    micro = _score(*sides)
    return EntityF1(micro, Score(means[0], means[1], means[2], micro.wanted), each)


def _read(tag: str, i: int) -> tuple[str, str]:
    """`B-PER` → B and PER; a bare B or I is of the kind "_"."""
    place, _, kind = tag.partition("-")
    if place not in ("B", "I", "E", "S") and tag != "O":
        raise DataError(
            f"tag {i} is {tag!r}; it must be O, or B-, I-, E- or S- and a kind, as in B-PER"
        )
    return place, kind or "_"


def _score(wanted: set[tuple[int, str, int, int]], given: set[tuple[int, str, int, int]]) -> Score:
    right = len(wanted & given)
    precision = right / len(given) if given else 0.0
    recall = right / len(wanted) if wanted else 0.0
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return Score(precision, recall, f1, len(wanted))
