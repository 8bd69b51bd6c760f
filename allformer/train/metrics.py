"""Where figures go: metrics.jsonl, TensorBoard if it is installed, and a picture of the curves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from allformer.errors import CheckpointError


class Metrics:
    """Append-only log of a run; reopened on resume without what the resumed run will write again:
    lines after its step, and the last line of a run that had ended.

    What is left of the old log is written aside and takes its place whole.
    """

    def __init__(self, run: Path, resumed_step: int = 0) -> None:
        self.path = run / "metrics.jsonl"
        rows = read_metrics(run)
        self.rows = [r for r in rows if r["step"] <= resumed_step and "averaged" not in r]
        aside = self.path.with_name(self.path.name + ".new")
        with aside.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.rows)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, self.path)
        self._file = self.path.open("a", encoding="utf-8")
        self._board = _tensorboard(run / "tensorboard", resumed_step)

    def add(self, **row: Any) -> None:
        """One line, out of this process at once: `metrics.add(step=100, loss=3.2)`."""
        self.rows.append(row)
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in row.items():
                if name != "step":
                    self._board.add_scalar(name, value, row["step"])

    def sync(self) -> None:
        """Down to the disk, before a checkpoint that relies on it."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush everything and draw the picture."""
        self._file.close()
        if self._board is not None:
            self._board.close()
        if self.rows:
            draw_loss(self.rows, self.path.with_name("loss.png"))


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl; a last line cut off by a crash is left out."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 ({error}); remove or mend it") from None
    rows: list[dict[str, Any]] = []
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


def _tensorboard(folder: Path, resumed_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:  # the extra `logs` is not installed: metrics.jsonl has it all
        return None
    return SummaryWriter(str(folder), purge_step=resumed_step + 1)


def draw_loss(rows: list[dict[str, Any]], path: Path) -> None:
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
    axes.set(xlabel="step", ylabel="cross-entropy (nats per token)", ylim=(0, None))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
