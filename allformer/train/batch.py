"""Batches for training, packed: no padding is stored, moved or computed.

A batch is a NamedTuple of an objective's own: tensors, layouts, and `tokens`, how many labels its
loss counts (with several terms also `counts`, one for each); perhaps `key`, the seed of what is
drawn for it on the device. What is here works on any of them.

Legend: N tokens, R rows (sentences), W the longest row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from allformer.core.layout import Packed
from allformer.data.encoded import Rows
from allformer.errors import TrainingError

Array = np.ndarray[Any, Any]


class Batch(Protocol):
    """`class LineBatch(NamedTuple): ids: Tensor; layout: Layout; labels: Tensor; tokens: int`"""

    @property
    def tokens(self) -> int:
        """Labels that count, known on the host to spare a wait for the device."""


B = TypeVar("B", bound=Batch)


def tensors(batch: Any) -> list[Tensor]:
    """All tensors in a fixed order, for copying into another batch of the same sizes."""
    if isinstance(batch, Tensor):
        return [batch]
    return [x for part in batch for x in tensors(part)] if isinstance(batch, tuple) else []


def mapped(batch: B, change: Callable[[Tensor], Tensor]) -> B:
    """The same batch with `change` applied to each tensor: moved, pinned, copied."""

    def walk(x: Any) -> Any:
        if isinstance(x, Tensor):
            return change(x)
        if not isinstance(x, tuple):
            return x
        return type(x)(*map(walk, x)) if hasattr(x, "_fields") else tuple(map(walk, x))

    new: B = walk(batch)
    return new


def uncounted(batch: B) -> B:
    """The same batch for a compiled graph, which would be made anew for each number of tokens."""
    numbers = {"tokens": 0, "counts": (), "key": None}
    fields = batch._fields  # type: ignore[attr-defined]
    new: B = batch._replace(**{k: x for k, x in numbers.items() if k in fields})  # type: ignore[attr-defined]
    return new


def keyed(batch: B, *place: int) -> B:
    """The same batch with its `key`, if it has a field for one: `keyed(batch, seed, epoch, 7)`."""
    if "key" not in getattr(batch, "_fields", ()):
        return batch
    key = int(np.random.SeedSequence(place).generate_state(1, np.uint64)[0] >> 1)
    new: B = batch._replace(key=key)  # type: ignore[attr-defined]
    return new


def moved(batch: B, device: torch.device | str) -> B:
    """The same batch on another device."""
    return mapped(batch, lambda x: x.to(device, non_blocking=True))


@dataclass(frozen=True)
class Frame:
    """One size for every batch, so that a compiled step never meets a new shape.

    `sentences` and `tokens` bound what a batch may hold; what is missing is filled with rows of
    padding that nothing looks at and no loss counts.
    """

    tokens: int
    sentences: int
    width: int

    @property
    def rows(self) -> int:
        """Sentences and the rows that filler may need."""
        return self.sentences + -(-self.tokens // self.width)


def rows_that_fit(longest: int, tokens: int, most: int | None) -> int:
    """Rows of `longest` in a batch of so many `tokens`, at least one, and at `most` so many:
    `rows_that_fit(65, 16_384, None)` is 252."""
    fit = max(1, tokens // longest)
    return fit if most is None else min(fit, most)


class Side(NamedTuple):
    """Rows end to end: their ids, how they lie, and how many of the ids are no filler."""

    ids: Array  # N
    layout: tuple[Array, Array, Array, Array]  # the four of `Packed`
    real: int

    @property
    def starts(self) -> Array:
        """Where each row begins; those of no length at the end begin behind the last id."""
        starts: Array = self.layout[2][:-1]
        return starts

    def packed(self) -> Packed:
        """The layout as tensors."""
        return Packed(*map(torch.from_numpy, self.layout))  # type: ignore[arg-type]


class Laid(NamedTuple):
    """Where the tokens of rows end to end stand; filler rows are the last ones."""

    row: Array  # N: of each token, its row
    place: Array  # N: and its number there
    starts: Array  # R + 1
    layout: tuple[Array, Array, Array, Array]  # the four of `Packed`
    real: int  # tokens that are no filler

    def packed(self) -> Packed:
        """The layout as tensors."""
        return Packed(*map(torch.from_numpy, self.layout))  # type: ignore[arg-type]


def lay_rows(lengths: Array, frame: Frame | None = None) -> Laid:
    """Rows of these lengths end to end; with a `frame`, filled up to its size."""
    lengths = lengths.astype(np.int64)
    real = int(lengths.sum())
    if frame is not None:
        lengths = np.concatenate([lengths, filler(lengths, real, frame)])
    width = int(lengths.max()) if frame is None else frame.width
    starts = np.concatenate([[0], lengths.cumsum()])
    row = np.repeat(np.arange(len(lengths)), lengths)  # N
    place = np.arange(starts[-1]) - starts[row]  # N
    keep = np.arange(width) < lengths[:, None]
    layout = (keep, row * width + place, starts.astype(np.int32), place)
    return Laid(row, place, starts, layout, real)


def pack_rows(rows: Rows, index: Array, end: int | None, frame: Frame | None = None) -> Side:
    """The rows numbered `index` with `end` after each; with a `frame`, filled up to its size.

    `end=None`: the rows have their own.
    """
    begin, lengths = rows.starts[index].astype(np.int64), rows.lengths[index].astype(np.int64)
    laid = lay_rows(lengths + (end is not None), frame)
    real, row, place = laid.real, laid.row, laid.place
    ids = np.full(len(row), 0 if end is None else end, dtype=np.int64)
    inner = place[:real] < lengths[row[:real]]
    ids[:real][inner] = rows.ids[(begin[row[:real]] + place[:real])[inner]]
    return Side(ids, laid.layout, real)


def filler(lengths: Array, real: int, frame: Frame) -> Array:
    """The lengths of the rows of padding that fill a frame."""
    if real > frame.tokens or len(lengths) > frame.sentences or lengths.max() > frame.width:
        raise TrainingError(
            f"a batch of {len(lengths)} sentences, {real} tokens, the longest {lengths.max()}, "
            f"does not fit {frame}; cut batches with the frame's own bounds"
        )
    full, rest = divmod(frame.tokens - real, frame.width)
    extra = [frame.width] * full + [rest] * (rest > 0)
    extra += [0] * (frame.rows - len(lengths) - len(extra))
    return np.array(extra, dtype=np.int64)
