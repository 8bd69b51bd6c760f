"""The best weights so far, by a figure of validation: they stay whatever comes after.

RUN/best/: model.safetensors and best.json {"step": 1200, "figure": "f1", "value": 0.91, …}
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from allformer.checkpoint.hashes import sha256
from allformer.checkpoint.save import write_json
from allformer.checkpoint.weights import read_tensors
from allformer.disk import sync_folder
from allformer.errors import CheckpointError, ConfigError, did_you_mean
from allformer.train.tuned import save_trained

# The less of these the better; of all others the more.
LOWER = ("nll", "perplexity", "bits_per_byte", "loss", "mse", "wer", "cer", "spectral")
WEIGHTS, WHICH = "model.safetensors", "best.json"


class Best:
    """`best.see(model, step, {"f1": 0.9})` after each validation."""

    def __init__(self, run: Path, figure: str) -> None:
        self.folder, self.figure = run / "best", figure.removeprefix("validation_")
        self.kept: dict[str, Any] | None = None
        old = self.folder.with_name("best.old")
        if old.exists() and not self.folder.exists():  # killed between the two names
            os.replace(old, self.folder)
        try:
            kept = json.loads((self.folder / WHICH).read_text(encoding="utf-8"))
            if kept["figure"] == self.figure and type(kept["value"]) in (int, float):
                self.kept = kept
        except (OSError, ValueError, KeyError, TypeError):
            pass

    @property
    def told(self) -> str:
        """Which they are."""
        assert self.kept is not None
        return f"the best by {self.figure}, of step {self.kept['step']:,}"

    def read(self, say: Callable[[str], None]) -> dict[str, Tensor] | None:
        """The best weights; None, and said, where the disk has changed them."""
        if self.kept is None:
            return None
        path = self.folder / WEIGHTS
        try:
            if sha256(path) == self.kept.get("sha256"):
                return read_tensors(path)
            said = "it has other bytes than were written"
        except (OSError, CheckpointError) as error:
            said = str(error)
        say(f"{path} is damaged ({said}); the last checkpoints count instead")
        return None

    def check(self, figures: Sequence[str], objective: str) -> None:
        """Refuse a figure that is not among those that validation will have."""
        if self.figure not in figures:
            raise ConfigError(
                f"train.best={self.figure!r} is no figure of objective={objective!r}; "
                f"{did_you_mean(self.figure, figures)}there is {', '.join(figures)}"
            )

    def see(self, model: Any, step: int, figures: Mapping[str, float]) -> bool:
        """Keep the weights if they are better than all before; whether they are."""
        value = figures[self.figure]
        if self.kept is not None and not self._better(value, self.kept["value"]):
            return False
        part = self.folder.with_name("best.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        save_trained(model, part / WEIGHTS)
        digest = sha256(part / WEIGHTS)
        self.kept = {"step": step, "figure": self.figure, "value": value, "sha256": digest}
        write_json(part / WHICH, self.kept)
        sync_folder(part)  # a rename may reach the disk before what is in it
        old = self.folder.with_name("best.old")
        shutil.rmtree(old, ignore_errors=True)
        if self.folder.exists():
            os.replace(self.folder, old)
        os.replace(part, self.folder)
        sync_folder(self.folder.parent)
        shutil.rmtree(old, ignore_errors=True)
        return True

    def _better(self, value: float, than: float) -> bool:
        lower = self.figure.split("_")[0] in LOWER or self.figure in LOWER
        if math.isnan(than):  # a correlation of what does not vary yet is none
            return not math.isnan(value)
        return value < than if lower else value > than
