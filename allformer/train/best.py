"""The best weights so far, by a figure of validation: they stay whatever comes after.

RUN/best/: model.safetensors and best.json {"step": 1200, "figure": "f1", "value": 0.91}
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allformer.checkpoint.save import write_json
from allformer.checkpoint.weights import save_weights
from allformer.errors import ConfigError, did_you_mean

LOWER = ("nll", "perplexity", "bits_per_byte", "loss")  # the less the better; all else: the more


class Best:
    """`best.see(model, step, {"f1": 0.9})` after each validation."""

    def __init__(self, run: Path, figure: str) -> None:
        self.folder, self.figure = run / "best", figure.removeprefix("validation_")
        self.kept: dict[str, Any] | None = None
        try:
            kept = json.loads((self.folder / "best.json").read_text(encoding="utf-8"))
            if kept.get("figure") == self.figure:
                self.kept = kept
        except (OSError, ValueError):
            pass

    @property
    def weights(self) -> Path | None:
        """Where the best ones are; None: nothing was validated yet."""
        return self.folder / "model.safetensors" if self.kept else None

    def see(self, model: Any, step: int, figures: Mapping[str, float]) -> bool:
        """Keep the weights if they are better than all before; whether they are."""
        if self.figure not in figures:
            hint = did_you_mean(self.figure, figures)
            raise ConfigError(
                f"train.best={self.figure!r} is no figure of this objective; {hint}there is "
                f"{', '.join(figures)}"
            )
        value = figures[self.figure]
        if self.kept is not None and not self._better(value, self.kept["value"]):
            return False
        part = self.folder.with_name("best.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        save_weights(model, part / "model.safetensors")
        self.kept = {"step": step, "figure": self.figure, "value": value}
        write_json(part / "best.json", self.kept)
        old = self.folder.with_name("best.old")
        shutil.rmtree(old, ignore_errors=True)
        if self.folder.exists():
            os.replace(self.folder, old)
        os.replace(part, self.folder)
        shutil.rmtree(old, ignore_errors=True)
        return True

    def _better(self, value: float, than: float) -> bool:
        lower = self.figure.split("_")[0] in LOWER or self.figure in LOWER
        return value < than if lower else value > than
