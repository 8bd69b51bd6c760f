"""Steps by one token of each row, in a few fixed shapes, so that a GPU replays them as graphs.

Rows are filled up to the next size of `SIZES` with rows that are nobody's, which write to page 0.

Legend: R rows, P pages of a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.core.resumed import Resumed, resume_each
from allformer.generate.graph import WARM, Graph, loosely
from allformer.generate.line import Line

SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
# The pages of a row, and of a source, are filled up too, to the next power of two from here on: a
# table costs next to nothing, a graph tens of milliseconds.
PAGES, SOURCES = 256, 8

Call = Callable[[Tensor, Resumed, Tensor, tuple[Tensor, Tensor] | None], Tensor]


class Shape(NamedTuple):
    """Rows, pages of each, and pages of a source; 0: nothing is looked at across."""

    rows: int
    pages: int
    sources: int


class FixedSteps:
    """`call(ids, layout, table, sources)` in fixed shapes; with `capture`, as graphs of a GPU.

    If one cannot be captured, all are called as they are from then on; `refused` says why.
    """

    def __init__(self, call: Call, device: torch.device, across: bool, capture: bool) -> None:
        self.call, self.device, self.across, self.capture = call, device, across, capture
        self._frames: dict[Shape, _Frame] = {}
        self._graphs: dict[Shape, Graph] = {}
        # One graph runs at a time: they may have their memory together.
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    @property
    def refused(self) -> str | None:
        """Why a shape could not be captured."""
        return next((x.refused for x in self._graphs.values() if x.refused is not None), None)

    def read(self, lines: Sequence[Line]) -> Tensor:
        """The logits behind the one token of each line, R V; they stand until the next call."""
        shape = self._shape(lines)
        if shape not in self._frames:
            frame = self._frames[shape] = _Frame(shape, self.device)
            run, pool = partial(loosely(self._run), frame), self._pool
            self._graphs[shape] = Graph(run, self.device, lambda: pool)
        frame = self._frames[shape]
        frame.fill(lines)
        graphs = self.capture and self.refused is None
        logits = self._graphs[shape]() if graphs else self._run(frame)
        return logits[: len(lines)]

    def warm_up(self, rows: int) -> None:
        """Have every size up to so many `rows` captured: lines that are nobody's are read."""
        nobody = Line([0], 0, [0], [0] if self.across else (), int(self.across))
        sizes = [size for size in SIZES if size < rows]
        for size in (*sizes, rows):
            for _ in range(WARM + 1):
                self.read([nobody] * size)

    def _shape(self, lines: Sequence[Line]) -> Shape:
        rows = next((size for size in SIZES if size >= len(lines)), _power(len(lines)))
        pages = max(PAGES, _power(max(len(x.pages) for x in lines)))
        sources = max(SOURCES, _power(max(len(x.sources) for x in lines))) if self.across else 0
        return Shape(rows, pages, sources)

    def _run(self, frame: _Frame) -> Tensor:
        sources = (frame.sources, frame.lengths) if self.across else None
        return self.call(frame.ids, resume_each(frame.past), frame.table, sources)


class _Frame:
    """What a step reads, in one tensor, which is moved at once: a token of each row, how many were
    read before it, its source's length, its pages and the source's."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        width = 3 + shape.pages + shape.sources
        self._host = torch.zeros(shape.rows, width, dtype=torch.long)
        if device.type == "cuda":
            self._host = self._host.pin_memory()
        self._rows: np.ndarray = self._host.numpy()
        self._there = torch.zeros_like(self._host, device=device)
        self.ids, self.past, self.lengths = self._there[:, :3].unbind(1)
        self.table = self._there[:, 3 : 3 + shape.pages]
        self.sources = self._there[:, 3 + shape.pages :]
        self._pages, self._used = shape.pages, 0
        # Whose pages stand in each row, and how many: they do but become more, so that most rows
        # are as they were.
        self._had: list[tuple[Sequence[int], int]] = [((), 0)] * shape.rows

    def fill(self, lines: Sequence[Line]) -> None:
        """Rows behind the last line are nobody's."""
        rows = self._rows  # of the last step, which has been waited for
        rows[: len(lines), :3] = [(line.ids[0], line.past, line.source) for line in lines]
        for i, line in enumerate(lines):
            kept, count = self._had[i]
            if kept is not line.pages or count != len(kept):
                self._put(rows[i, 3 : 3 + self._pages], line.pages)
                self._put(rows[i, 3 + self._pages :], line.sources)
                self._had[i] = line.pages, len(line.pages)
        for i in range(len(lines), self._used):
            rows[i], self._had[i] = 0, ((), 0)
        self._used = len(lines)
        self._there.copy_(self._host, non_blocking=True)

    @staticmethod
    def _put(row: np.ndarray, pages: Sequence[int]) -> None:
        row[: len(pages)] = pages
        row[len(pages) :] = 0


def _power(count: int) -> int:
    """The next power of two."""
    return 1 << max(0, count - 1).bit_length()
