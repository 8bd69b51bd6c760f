"""Figures elsewhere than in the run's own files: TensorBoard, Weights & Biases."""

from __future__ import annotations

import importlib.util
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from allformer.errors import ConfigError
from allformer.train.sections.common import LogRecipe


class Board(Protocol):
    """Somewhere that figures go to, by step."""

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        """Some figures of a step."""

    def close(self) -> None:
        """Nothing more comes."""


def check_boards(log: LogRecipe) -> None:
    """Refuse, before any work, a board whose package is missing."""
    if log.wandb is not None and importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            f"log.wandb={log.wandb!r} needs the package wandb, which is not installed: "
            f"pip install allformer[wandb], or leave log.wandb out"
        )


def open_boards(
    run: Path, log: LogRecipe, step: int, name: str = "run", recipe: Mapping[str, Any] | None = None
) -> list[Board]:
    """Those that the recipe asks for, to go on after `step`."""
    found: list[Board] = []
    if log.tensorboard and (board := _tensorboard(run / "tensorboard", step)) is not None:
        found.append(board)
    if log.wandb is not None:
        check_boards(log)
        found.append(Wandb(run, log.wandb, name, recipe or {}))
    return found


class TensorBoard:
    """An event file; of an earlier one, what comes after `step` no longer counts."""

    def __init__(self, folder: Path, step: int, writer: Any) -> None:
        self.writer = writer(str(folder), purge_step=step + 1)

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        """Scalars."""
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Down to the disk."""
        self.writer.close()


def _tensorboard(folder: Path, step: int) -> TensorBoard | None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:  # the extra `logs` is not installed: metrics.jsonl has it all
        return None
    return TensorBoard(folder, step, SummaryWriter)


class Wandb:
    """A run of a project at Weights & Biases; RUN/wandb.json keeps its id for a resume.

    Rows carry their step themselves: a resumed run repeats some, and W&B's own counter of steps
    never goes back.
    """

    def __init__(self, run: Path, project: str, name: str, recipe: Mapping[str, Any]) -> None:
        import wandb

        kept = run / "wandb.json"
        try:
            known = str(json.loads(kept.read_text(encoding="utf-8"))["id"])
        except (OSError, ValueError, KeyError, TypeError):
            known = secrets.token_hex(4)
            kept.write_text(json.dumps({"project": project, "id": known}) + "\n", encoding="utf-8")
        self.run = wandb.init(
            project=project, name=name, id=known, resume="allow", dir=str(run), config=dict(recipe)
        )
        self.run.define_metric("*", step_metric="step")

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        """One row."""
        self.run.log({"step": step, **figures})

    def close(self) -> None:
        """Let it send what is left."""
        self.run.finish()
