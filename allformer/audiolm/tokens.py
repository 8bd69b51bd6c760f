"""What the three stages read and say, as one row of ids each (Borsos et al., 2022, section III).

    semantic:  <begin> u u u … <end>
    coarse:    <begin> u u u … <then> c₁ c₂ c₁ c₂ …          u units of meaning, without repeats;
    fine:      <begin> c₁ c₂ c₁ c₂ … <then> c₃ c₄ c₃ c₄ …    c the codes of a frame, book by book

Every book has ids of its own: code c of book q is q·V + c, behind the units where there are any.

    stage = Stage("coarse", units=256, codes=1024, coarse=3, books=6)
    row = stage.row(units, codes)                    # U, Q F → ids, and how many of them are given
    codes = stage.read(said)                         # what was said, as Q' F codes

Legend: U units, V codes of a book, Q books, Q' those that a stage says, F frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from allformer.errors import ConfigError, DataError

Ids = npt.NDArray[np.int64]
STAGES = ("semantic", "coarse", "fine")


class Row(NamedTuple):
    """Ids, of which the first `given` are read and not said."""

    ids: Ids
    given: int


def without_repeats(units: npt.ArrayLike) -> Ids:
    """`without_repeats([7, 7, 7, 2, 2, 7])` → `[7, 2, 7]`: how long a sound lasts is no meaning."""
    found = np.asarray(units, np.int64)
    if not len(found):
        return found
    return np.asarray(found[np.append(True, found[1:] != found[:-1])])


def flatten(codes: npt.ArrayLike, size: int, first: int = 0) -> Ids:
    """Frame by frame, each book with its offset: Q F → F·Q. The books are `first`, `first` + 1, …

    >>> flatten([[1, 2], [3, 4]], size=10)
    array([ 1, 13,  2, 14])
    """
    found = np.asarray(codes, np.int64)
    if found.size and not 0 <= found.min() <= found.max() < size:
        raise DataError(
            f"codes {found.min()} … {found.max()} are not those of books of {size}; give the codec "
            f"that made them"
        )
    offsets = (first + np.arange(len(found)))[:, None] * size
    return np.asarray((found + offsets).T.reshape(-1))


def unflatten(ids: npt.ArrayLike, size: int, books: int, first: int = 0) -> Ids:
    """The way back: F·Q → Q F. An id in the place of another book is refused."""
    found = np.asarray(ids, np.int64)
    if len(found) % books:
        raise DataError(f"{len(found)} codes are no whole frames of {books} books")
    codes = found.reshape(-1, books).T - (first + np.arange(books))[:, None] * size
    if codes.size and not 0 <= codes.min() <= codes.max() < size:
        raise DataError("a code stands in the place of another book's; they came out of order")
    return np.ascontiguousarray(codes)


@dataclass(frozen=True)
class Stage:
    """One of the three, with the sizes that its ids follow from: `books` in all, `coarse` of them
    said by the second stage and the others by the third."""

    name: str
    units: int = 0
    codes: int = 0
    coarse: int = 0
    books: int = 0

    def __post_init__(self) -> None:
        if self.name not in STAGES:
            raise ConfigError(f"stage={self.name!r} is not a choice; try {', '.join(STAGES)}")
        if self.name != "fine" and self.units < 1:
            raise ConfigError(
                f"units={self.units} must be at least 1: stage={self.name} reads them"
            )
        if self.name == "semantic":
            return
        if not 1 <= self.coarse <= self.books:
            raise ConfigError(
                f"coarse={self.coarse} must be 1 … {self.books}, the books of the codec"
            )
        if self.name == "fine" and self.coarse == self.books:
            raise ConfigError(
                f"coarse={self.coarse} are all books of the codec: the fine stage has nothing to "
                f"say; leave it out, or give the coarse one fewer"
            )

    # --- ids ------------------------------------------------------------------------------------

    @property
    def said_books(self) -> range:
        """The books whose codes it says; none of the first stage."""
        return {
            "semantic": range(0),
            "coarse": range(self.coarse),
            "fine": range(self.coarse, self.books),
        }[self.name]

    @property
    def _behind_units(self) -> int:
        return 0 if self.name == "fine" else self.units

    @property
    def begin(self) -> int:
        """The first id behind units and codes."""
        return self._behind_units + self.said_books.stop * self.codes

    @property
    def then(self) -> int:
        """Between what is given and what is to be said."""
        return self.begin + 1

    @property
    def end(self) -> int:
        """Behind the last unit."""
        return self.begin + 2

    @property
    def pad(self) -> int:
        """Left of a shorter prompt."""
        return self.begin + 3

    @property
    def size(self) -> int:
        """How many ids there are."""
        return self.begin + 4

    # --- rows -----------------------------------------------------------------------------------

    def prompt(self, units: Any = None, codes: Any = None, *, known: int = 0) -> Ids:
        """What is read before anything is said; of what is said, the first `known` frames.

        The semantic stage goes on from all of `units`.
        """
        if self.name == "semantic":
            return np.concatenate([[self.begin], without_repeats(units)])
        said = self.said_books
        if self.name == "coarse":
            given = without_repeats(units)
        else:
            given = flatten(np.asarray(codes)[: self.coarse], self.codes)
        before = np.zeros(0, np.int64)
        if known:
            before = self._ids(np.asarray(codes)[said.start : said.stop, :known])
        return np.concatenate([[self.begin], given, [self.then], before])

    def row(self, units: Any = None, codes: Any = None) -> Row:
        """A whole example: U and Q F; what a stage does not read may be left out."""
        if self.name == "semantic":
            return Row(np.append(self.prompt(units), self.end), 1)
        given = self.prompt(units, codes)
        said = self.said_books
        own = self._ids(np.asarray(codes)[said.start : said.stop])
        return Row(np.concatenate([given, own]), len(given))

    def read(self, ids: npt.ArrayLike) -> Ids:
        """What was said: units, or codes Q' F."""
        found = np.asarray(ids, np.int64)
        if self.name == "semantic":
            over = np.flatnonzero(found == self.end)
            return found[: over[0]] if len(over) else found
        said = self.said_books
        return unflatten(found - self._behind_units, self.codes, len(said), said.start)

    def may_say(self, number: int) -> range:
        """The ids that may come as the `number`-th of what is said (from 0), the end not counted:
        those of the one book whose turn it is, or all units."""
        if self.name == "semantic":
            return range(self.units)
        book = self.said_books[number % len(self.said_books)]
        first = self._behind_units + book * self.codes
        return range(first, first + self.codes)

    def longest(self, units: int, frames: int) -> int:
        """The most ids of a row of so many units and frames."""
        if self.name == "semantic":
            return units + 2
        given = units if self.name == "coarse" else frames * self.coarse
        return given + 2 + frames * len(self.said_books)

    def _ids(self, codes: Any) -> Ids:
        return self._behind_units + flatten(codes, self.codes, self.said_books.start)
