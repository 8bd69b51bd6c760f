"""Where figures go: metrics.jsonl, the boards that are asked for, and a picture of the curves."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from allformer.disk import sync
from allformer.errors import CheckpointError
from allformer.train.watch.boards import Board

Row = dict[str, Any]


class Lines:
    """A file of one JSON object a line, each with its `step`, that only grows.

    Reopened on resume without the rows that `stays` refuses: what is left of the old file is
    written aside, down to the disk, and takes its place whole.
    """

    def __init__(self, path: Path, stays: Callable[[Row], bool]) -> None:
        self.path = path
        self.rows = [row for row in read_lines(path) if stays(row)]
        aside = path.with_name(path.name + ".new")
        with aside.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.rows)
            sync(file)
        os.replace(aside, path)
        self._file = path.open("a", encoding="utf-8")

    def add(self, row: Row) -> None:
        """One line, out of this process at once."""
        self.rows.append(row)
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Down to the disk, before a checkpoint that relies on it."""
        sync(self._file)

    def close(self) -> None:
        """Nothing more comes."""
        self._file.close()


class Metrics:
    """The log of a run; reopened on resume without what the resumed run will write again: lines
    after its step, and the last line of a run that had ended."""

    def __init__(self, run: Path, resumed_step: int = 0, boards: Sequence[Board] = ()) -> None:
        self._lines = Lines(
            run / "metrics.jsonl", lambda row: row["step"] <= resumed_step and "averaged" not in row
        )
        self.path, self.boards = self._lines.path, boards

    @property
    def rows(self) -> list[Row]:
        """All of them, those of before a resume too."""
        return self._lines.rows

    def add(self, **row: Any) -> None:
        """One line: `metrics.add(step=100, loss=3.2)`."""
        self._lines.add(row)
        for board in self.boards:
            board.add(row["step"], {name: x for name, x in row.items() if name != "step"})

    def sync(self) -> None:
        """Down to the disk, before a checkpoint that relies on it."""
        self._lines.sync()

    def close(self) -> None:
        """Flush everything and draw the picture."""
        self._lines.close()
        for board in self.boards:
            board.close()
        if self.rows:
            draw_loss(self.rows, self.path.with_name("loss.png"))


def read_metrics(run: Path) -> list[Row]:
    """The rows of a run's metrics.jsonl; a last line cut off by a crash is left out."""
    return read_lines(run / "metrics.jsonl")


def read_lines(path: Path) -> list[Row]:
    """The rows of such a file; none if there is no file."""
    if not path.is_file():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 ({error}); remove or mend it") from None
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            if number == len(lines):  # no line break after it: its writing was cut off
                break
            row = None
        if not isinstance(row, dict) or type(row.get("step")) is not int:
            raise CheckpointError(
                f"{path}, line {number} is no object with a whole number as `step`: "
                f"{line[:60]!r}; remove or mend the line"
            )
        rows.append(row)
    return rows


def draw_loss(rows: list[Row], path: Path) -> None:
    """Training and validation loss over the steps, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for key, label, color, marker in (
        ("nll", "training", "#4c78a8", ""),
        ("validation_nll", "validation", "#e45756", "o"),
    ):
        points = [(row["step"], row[key]) for row in rows if isinstance(row.get(key), int | float)]
        if points:
            steps, values = zip(*points, strict=True)
            axes.plot(steps, values, label=label, color=color, marker=marker, markersize=3.5)
    rewarded = any("reward" in row for row in rows)  # what is sought, the other way round
    unit = "divergence's price − reward" if rewarded else "cross-entropy (nats per token)"
    axes.set(xlabel="step", ylabel=unit, **({} if rewarded else {"ylim": (0, None)}))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
