"""What ranks other than the main one have where it writes and speaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Quiet:
    """Stands for metrics and progress: takes everything, says nothing, keeps the rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, **row: Any) -> None:
        """A row, for those who ask for the rows later."""
        self.rows.append(row)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **more: None


def silent(line: str) -> None:
    """`say` of a rank that is not the main one."""
