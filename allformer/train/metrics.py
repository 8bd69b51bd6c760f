"""Where figures go: metrics.jsonl, TensorBoard if it is installed, and a picture of the curves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Metrics:
    """Append-only log of a run; reopened on resume without what the resumed run will write again:
    lines after its step, and the last line of a run that had ended.
    """

    def __init__(self, run: Path, resumed_step: int = 0) -> None:
        self.path = run / "metrics.jsonl"
        rows = read_metrics(run)
        self.rows = [r for r in rows if r["step"] <= resumed_step and "averaged" not in r]
        self._file = self.path.open("w", encoding="utf-8")
        for row in self.rows:
            self._file.write(json.dumps(row) + "\n")
        self._board = _tensorboard(run / "tensorboard", resumed_step)

    def add(self, **row: Any) -> None:
        """One line, on disk at once: `metrics.add(step=100, loss=3.2)`."""
        self.rows.append(row)
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in row.items():
                if name != "step":
                    self._board.add_scalar(name, value, row["step"])

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
    rows: list[dict[str, Any]] = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
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
        points = [(row["step"], row[key]) for row in rows if key in row]
        if points:
            steps, values = zip(*points, strict=True)
            axes.plot(steps, values, label=label, color=color, marker=marker, markersize=3.5)
    axes.set(xlabel="step", ylabel="cross-entropy (nats per token)", ylim=(0, None))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
