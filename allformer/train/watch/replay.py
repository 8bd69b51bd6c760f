"""A step that went wrong, kept: its batch, its random numbers, the weights; and computed again.

    kept = keep_step(run, stepper, taken, rate=3e-4, why="the loss is not finite")
    replayed = replay(kept)                   # `allformer replay RUN/replay/step-00000006.pt`
    replayed.look.first_bad                   # decoder.0.feed.up …

The file is plain tensors and names (`torch.load` with weights_only). What a batch is made of is
looked up among the modules that the run's objective has loaded; nothing is imported by name.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allformer.checkpoint.load import read_config_of
from allformer.checkpoint.transfer import own_state
from allformer.checkpoint.weights import put_weights
from allformer.core.model import build
from allformer.core.precision import pick_device
from allformer.disk import sync
from allformer.errors import CheckpointError
from allformer.train.batch import Batch, mapped
from allformer.train.objectives import find_objective
from allformer.train.recipe import read_recipe
from allformer.train.sections.recipe import Recipe
from allformer.train.step import Stepper, StepSettings
from allformer.train.watch.extremes import Look, Random, look_again
from allformer.train.window import Taken

FOLDER = "replay"
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Replayed:
    """What the file says of the step, and what the step gives now.

    The weights are those of after step `weights_after`: on a GPU results are read some steps
    later, and with a loss that was finite the training went on meanwhile.
    """

    run: Path
    step: int
    rate: float
    why: str
    weights_after: int
    loss: float  # that was seen then
    look: Look


def keep_step(
    run: Path, stepper: Stepper, taken: Taken, *, rate: float, why: str, now: int
) -> Path:
    """Write RUN/replay/step-N.pt, whole or not at all, and return its path."""
    path = run / FOLDER / f"step-{taken.step:08}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    random = taken.random
    stored = {
        "step": taken.step,
        "rate": rate,
        "why": why,
        "loss": float(taken.result.loss),
        "batches": [_plain(mapped(batch, lambda x: x.cpu())) for batch in taken.batches],
        "random": None if random is None else list(random),
        "weights": {name: x.detach().cpu() for name, x in own_state(stepper.model).items()},
        "weights_after": now,
    }
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        torch.save(stored, file)
        sync(file)
    os.replace(part, path)
    return path


def replay(path: str | Path, device: str | None = None) -> Replayed:
    """Compute a kept step again, in the run that it lies in; nothing is changed there."""
    path, place = Path(path), pick_device(device)
    stored = _read(path)
    run = path.absolute().parents[1]
    recipe = read_recipe(run / "recipe.yaml")
    objective = find_objective(recipe.objective)(recipe)
    objective.at(stored["step"])
    model: Any = build(read_config_of(run / "config.json"), device=place).train()
    put_weights(model, stored["weights"], str(path))
    stepper = Stepper(model, objective, _settings(recipe))
    batches: list[Batch] = [_batch(x, path) for x in stored["batches"]]
    random = None if stored["random"] is None else Random(*stored["random"])
    look = look_again(stepper, batches, random)
    told = {name: stored[name] for name in ("step", "rate", "why", "weights_after", "loss")}
    return Replayed(run=run, look=look, **told)


def _settings(recipe: Recipe) -> StepSettings:
    asked = recipe.train
    return StepSettings(recipe.optim, asked.smoothing, asked.z_loss, asked.precision)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(
            f"{path} is no file; give RUN/{FOLDER}/step-….pt, which training keeps when a loss is "
            f"not finite, or jumps (log.spike)"
        )
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(stored, dict) and {"batches", "weights", "random"} <= stored.keys():
            return stored
        said = "it holds something else"
    except Exception as error:  # whatever pickle and zip say of such bytes
        said = type(error).__name__
    raise CheckpointError(
        f"{path} is not what training keeps ({said}); give RUN/{FOLDER}/step-….pt"
    )


# --- a batch as plain data ------------------------------------------------------------------------


def _plain(x: Any) -> Any:
    """Tensors, numbers, and named tuples as {"class": "module:name", "fields": […]}."""
    if isinstance(x, (Tensor, *_PLAIN)):
        return x
    assert isinstance(x, tuple), f"a batch holds a {type(x).__name__}"
    fields = [_plain(part) for part in x]
    if type(x) is tuple:
        return fields
    return {"class": f"{type(x).__module__}:{type(x).__qualname__}", "fields": fields}


def _batch(x: Any, path: Path) -> Any:
    if isinstance(x, list):
        return tuple(_batch(part, path) for part in x)
    if not isinstance(x, dict):
        return x
    module, _, name = x["class"].partition(":")
    cls: Any = sys.modules.get(module)
    for part in name.split("."):
        cls = getattr(cls, part, None)
    if not (isinstance(cls, type) and issubclass(cls, tuple)):
        raise CheckpointError(
            f"{path} holds a batch of {x['class']}, which the run's objective does not load; "
            f"replay it with the version that kept it"
        )
    return cls(*(_batch(part, path) for part in x["fields"]))
