"""What an engine asks to be read of one text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Line(NamedTuple):
    """New tokens of a row, behind `past` that were read; the row's pages, those for them too; and
    the pages of its source, which has `source` tokens."""

    ids: Sequence[int]
    past: int
    pages: Sequence[int]
    sources: Sequence[int] = ()
    source: int = 0
