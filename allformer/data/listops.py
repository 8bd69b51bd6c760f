"""ListOps: nested lists of digits under MIN, MAX, MED and SM, and the digit that each is worth.

    [MAX 2 9 [MIN 4 7 ] 0 ]   →   9

Nangia and Bowman (2018) made it; the Long Range Arena (Tay et al. 2021) made it long: trees of at
most 10 levels and 10 arguments, more than 500 and fewer than 2,000 tokens. An argument is itself a
list with probability 1/4, down to the last level; MED is the median, cut to a whole number, SM the
sum modulo 10. A tree that is too short or too long is drawn again.

    found = listops(1000, seed=0)
    found.text(0), found.labels[0]
    write_listops("listops")             # train.tsv, val.tsv, test.tsv

The labels are not even: of 10,000 trees 17 % are worth 0, 16 % 9, each other digit 7 to 10 %, so
that who always says 0 is right in one of six.

All trees of a chunk are drawn together, level by level, and evaluated from the deepest level up;
a chunk depends on the seed and its number alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from allformer.errors import ConfigError

Array = np.ndarray[Any, Any]

# The tokens by number: digits are their own, then the operators, then the end of a list.
WORDS = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
_MIN, _MAX, _MED, _SUM, _END = range(10, 15)
_SHARE = 0.25  # of the arguments, those that are lists
_ROOTS = 1 << 14  # trees that are drawn together; of the usual shape one in 12 is long enough
_PATIENCE = 20  # chunks without a single tree


@dataclass(frozen=True)
class Shape:
    """How deep, how broad and how long trees are: the defaults are the Long Range Arena's."""

    depth: int = 10  # levels, the deepest of which has digits alone
    args: int = 10  # arguments of an operator: from 2 on
    low: int = 500  # tokens: more than so many
    high: int = 2000  # and fewer than so many

    def __post_init__(self) -> None:
        if self.depth < 2 or self.args < 2:
            raise ConfigError(
                f"depth={self.depth} and args={self.args} must be at least 2: a list has two "
                "arguments on a level below it"
            )
        if self.low < 3 or self.high < self.low + 2:
            raise ConfigError(
                f"low={self.low} and high={self.high} leave no length between them; try 500 and "
                "2000 (the least list has 4 tokens)"
            )


LRA = Shape()


class Level(NamedTuple):
    """The nodes of all trees at one depth; the arguments of a list lie side by side in the next."""

    tree: Array  # which tree a node belongs to
    kind: Array  # its token: a digit, or the operator of a list
    args: Array  # of the lists among them: how many arguments each has

    @property
    def lists(self) -> Array:
        """Which nodes are lists."""
        return np.asarray(self.kind >= _MIN)

    @property
    def first(self) -> Array:
        """Of each list, where its arguments begin in the next level."""
        return np.asarray(np.cumsum(self.args) - self.args)


@dataclass(frozen=True, eq=False)
class Trees:
    """Trees as tokens, end to end, and what each is worth."""

    tokens: Array  # uint8, numbers of WORDS
    lengths: Array
    labels: Array  # 0 … 9

    def __len__(self) -> int:
        return len(self.labels)

    def row(self, i: int) -> Array:
        """The tokens of tree `i`."""
        begin = int(self.lengths[:i].sum())
        return self.tokens[begin : begin + int(self.lengths[i])]

    def text(self, i: int) -> str:
        """`[MAX 2 9 [MIN 4 7 ] 0 ]`."""
        return " ".join(WORDS[token] for token in self.row(i))

    def texts(self) -> list[str]:
        """All of them."""
        words = np.array(WORDS, object)[self.tokens]
        rows = np.split(words, np.cumsum(self.lengths)[:-1])
        return [" ".join(row) for row in rows]

    def take(self, size: int) -> Trees:
        """The first so many."""
        lengths = self.lengths[:size]
        return Trees(self.tokens[: int(lengths.sum())], lengths, self.labels[:size])


def listops(size: int, seed: int = 0, shape: Shape = LRA) -> Trees:
    """So many trees, 3,000 a second: `listops(2000, seed=1).labels`."""
    parts, have = [], 0
    for part in _chunks(seed, shape):
        parts.append(part)
        have += len(part)
        if have >= size:
            break
    names = ("tokens", "lengths", "labels")
    joined = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    return Trees(*joined).take(size)


def write_listops(
    folder: str | Path,
    train: int = 96_000,
    validation: int = 2_000,
    test: int = 2_000,
    *,
    seed: int = 0,
    shape: Shape = LRA,
) -> Path:
    """train.tsv, val.tsv and test.tsv with the columns Source and Target, as the Long Range Arena
    has them (its parentheses, which say nothing, left out). The numbers are its own; with fewer
    for training the other two are the same."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lines = _lines(seed, shape)
    for name, size in (("test", test), ("val", validation), ("train", train)):
        aside = folder / f".{name}.{os.getpid()}"
        with aside.open("w", encoding="utf-8", newline="\n") as file:
            file.write("Source\tTarget\n")
            file.writelines(islice(lines, size))
        os.replace(aside, folder / f"{name}.tsv")
    return folder


def _lines(seed: int, shape: Shape) -> Iterator[str]:
    """`[MAX 2 9 ]\\t9\\n`, without end."""
    for trees in _chunks(seed, shape):
        for text, label in zip(trees.texts(), trees.labels, strict=True):
            yield f"{text}\t{label}\n"


def _chunks(seed: int, shape: Shape) -> Iterator[Trees]:
    """Chunk after chunk, without end; a shape that no tree has is refused."""
    some = False
    for number in count():
        trees = draw(number, seed=seed, shape=shape)
        some = some or len(trees) > 0
        if not some and number == _PATIENCE:
            raise ConfigError(
                f"of {(number + 1) * _ROOTS:,} trees none has more than {shape.low} and fewer than "
                f"{shape.high} tokens at depth={shape.depth} and args={shape.args}; try lengths "
                "that are more usual"
            )
        yield trees


def draw(number: int, *, seed: int, shape: Shape = LRA) -> Trees:
    """Chunk `number`: the trees of the length that is wanted among many."""
    rng = np.random.default_rng([seed, number])
    levels = _grow(rng, shape)
    total = np.zeros(_ROOTS, np.int64)
    for level in levels:  # a list has two tokens of its own: its operator and its end
        total += np.bincount(level.tree, 1 + level.lists, _ROOTS).astype(np.int64)
    wanted = (total > shape.low) & (total < shape.high)
    levels = [_kept(level, wanted) for level in levels]
    return Trees(_laid(levels), total[wanted], _valued(levels))


def _grow(rng: np.random.Generator, shape: Shape) -> list[Level]:
    """Level by level, all trees at once."""
    levels, tree = [], np.arange(_ROOTS)
    for depth in range(1, shape.depth + 1):
        kind = rng.integers(0, 10, len(tree)).astype(np.uint8)
        lists = rng.random(len(tree)) <= (_SHARE if depth < shape.depth else -1)
        kind[lists] = rng.integers(_MIN, _END, np.count_nonzero(lists))
        args = rng.integers(2, shape.args + 1, np.count_nonzero(lists))
        levels.append(Level(tree, kind, args))
        tree = np.repeat(tree[lists], args)
    return levels


def _kept(level: Level, wanted: Array) -> Level:
    """The nodes of some trees: whole trees go, so that arguments stay side by side."""
    keep = wanted[level.tree]
    return Level(level.tree[keep], level.kind[keep], level.args[keep[level.lists]])


def _valued(levels: list[Level]) -> Array:
    """What each tree is worth, from the deepest level up."""
    below = np.zeros(0, np.int64)
    for level in reversed(levels):
        value = level.kind.astype(np.int64)
        if len(level.args):
            value[level.lists] = _applied(level, below)
        below = value
    return below


def _applied(level: Level, values: Array) -> Array:
    """Each list's operator on its arguments, which are runs of `values`."""
    first, args, kind = level.first, level.args, level.kind[level.lists]
    # By list, then by value: the lists lie in order, so that this sorts each list's own run.
    ordered = np.sort(np.repeat(np.arange(len(args)), args) * 10 + values) % 10
    middle = (ordered[first + (args - 1) // 2] + ordered[first + args // 2]) // 2
    found = np.stack(
        [ordered[first], ordered[first + args - 1], middle, np.add.reduceat(values, first) % 10]
    )
    return np.asarray(found[kind - _MIN, np.arange(len(args))])


def _laid(levels: list[Level]) -> Array:
    """The tokens of all trees end to end: a node's place follows from its parent's and from the
    sizes of those before it."""
    sizes: list[Array] = []
    below = np.zeros(0, np.int64)
    for level in reversed(levels):
        size = np.ones(len(level.kind), np.int64)
        if len(level.args):
            size[level.lists] = 2 + np.add.reduceat(below, level.first)
        sizes.insert(0, size)
        below = size
    out = np.zeros(int(sizes[0].sum()), np.uint8)
    start = np.cumsum(sizes[0]) - sizes[0]
    for level, size, under in zip(levels, sizes, [*sizes[1:], None], strict=True):
        lists = level.lists
        out[start] = level.kind
        out[(start + size - 1)[lists]] = _END
        if under is None or not len(level.args):
            break
        before = np.cumsum(under) - under
        start = np.repeat(start[lists] + 1 - before[level.first], level.args) + before
    return out
