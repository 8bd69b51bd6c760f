"""The recipe of a run that goes on: its own, with what may change on the way."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from allformer.disk import sync
from allformer.errors import ConfigError
from allformer.train.recipe import Recipe, read_override, read_recipe

# All else is in the weights, the optimiser's state or the order of the batches already.
MAY_CHANGE = (
    "train.steps", "train.epochs", "optim.rate", "optim.clip", "schedule.kind", "schedule.warmup",
    "schedule.floor", "schedule.decay", "schedule.shape", "train.smoothing", "train.z_loss",
    "train.accumulate", "train.validate_every", "train.save_every", "train.average", "train.keep",
    "train.patience",
    "log.every", "log.tensorboard", "log.wandb", "log.statistics", "log.spike", "decode.beams",
    "decode.length_penalty", "parallel.data", "parallel.shard", "parallel.tensor",
    "parallel.context", "parallel.pipeline", "data.workers",
)  # fmt: skip


def resumed_recipe(path: Path, overrides: Iterable[str] = ()) -> Recipe:
    """`resumed_recipe(run / "recipe.yaml", ["train.steps=2000"])`."""
    overrides = list(overrides)
    for override in overrides:
        section, name, _ = read_override(override)
        key = f"{section}.{name}" if name else section
        if key not in MAY_CHANGE:
            raise ConfigError(
                f"--set {override}: a run that goes on keeps its {key}; what may change is "
                f"{', '.join(MAY_CHANGE)}; for all else start anew with --out"
            )
    if not path.is_file():
        told = f"it has no {path.name}" if path.parent.exists() else "there is no such directory"
        raise ConfigError(
            f"--resume {path.parent}: {told}; give the directory that `allformer train` wrote"
        )
    return read_recipe(path, overrides)


def write_recipe(recipe: Recipe, path: Path) -> None:
    """In one step: never half a recipe."""
    aside = path.with_name(path.name + ".new")
    with aside.open("w", encoding="utf-8") as file:
        file.write(recipe.to_yaml())
        sync(file)
    os.replace(aside, path)
