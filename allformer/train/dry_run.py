"""What a recipe will cost, before it is paid: sizes, memory by part, steps, expected time.

plan = dry_run(read_recipe("recipes/multi30k-en-de.yaml"))
plan.parameters, plan.memory["activations"], plan.steps_per_epoch, plan.seconds

The data is read and the tokeniser made as training would; a few steps are taken on real batches, in
a folder that is gone afterwards. All of it is done by this process alone: of a plan for many the
counts are those of all, memory and times those of one that has the whole model.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from allformer.core import heap
from allformer.core.precision import pick_device
from allformer.train.loop import Job, open_objective
from allformer.train.sections.common import LogRecipe
from allformer.train.sections.recipe import Recipe
from allformer.train.stream import batches_of, prefetch
from allformer.train.threads import threads

MEASURED = 5  # steps that are timed, after those that compile and warm up
WARM = {"cpu": 2, "cuda": 6}


@dataclass(frozen=True)
class DryRun:
    """`memory` is in bytes, by part; `seconds` is for all steps, without validation and saving."""

    parameters: int
    trained: int
    memory: dict[str, int]
    tokens_per_step: float
    examples: int
    steps_per_epoch: float
    steps: int
    seconds_per_step: float
    device: str
    precision: str
    processes: int = 1

    @property
    def seconds(self) -> float:
        """The expected time of the whole training."""
        return self.seconds_per_step * self.steps

    @property
    def tokens_per_second(self) -> float:
        """Labels that count."""
        return self.tokens_per_step / self.seconds_per_step

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        more = {"seconds": self.seconds, "tokens_per_second": self.tokens_per_second}
        return asdict(self) | more


def dry_run(
    recipe: Recipe,
    *,
    device: str | None = None,
    compile: bool | None = None,
    corpus: Any = None,
) -> DryRun:
    """Prepare everything, take a few steps, and tell what the whole will take."""
    place = pick_device(device)
    # No board is told of it: at Weights & Biases a run would appear.
    quiet = dataclasses.replace(recipe, log=LogRecipe(tensorboard=False))
    objective = open_objective(quiet, corpus)
    with TemporaryDirectory(prefix="allformer-dry-run-") as folder:
        job = Job(objective, Path(folder), place, False, False, compile)
        with heap.kept(place), threads(job.threads, place):
            found = _measure(job)
        job.metrics.close()
    return _of_all(found, recipe)


def _of_all(found: DryRun, recipe: Recipe) -> DryRun:
    """The counts of as many processes as the recipe's plan is for."""
    plan = recipe.parallel
    readers = max(1, plan.data) * plan.shard  # those that read batches of their own
    per_epoch, epochs = found.steps_per_epoch / readers, recipe.train.epochs
    return dataclasses.replace(
        found,
        tokens_per_step=found.tokens_per_step * readers,
        steps_per_epoch=per_epoch,
        steps=found.steps if epochs is None else max(1, math.ceil(epochs * per_epoch)),
        processes=readers * plan.tensor * plan.context * plan.pipeline,
    )


def _measure(job: Job) -> DryRun:
    source = prefetch(job.batches())
    kept: list[int] = []
    tokens, steps = 0, 0
    try:
        warm = WARM.get(job.device.type, 2)
        for number in range(warm + MEASURED):
            if number == warm:
                _wait(job.device)
                begin = time.perf_counter()
                tokens, steps = 0, 0
            taken = [next(source)[0] for _ in range(job.recipe.train.accumulate)]
            batches = [job.objective.onto(batch, job.device) for batch in taken]
            if number == 0 and job.device.type == "cpu":
                with _saved(job.model, kept):
                    job.stepper.plain_loss(batches[0])
            tokens += job.stepper(batches, 0.0).tokens
            steps += 1
        _wait(job.device)
        seconds = time.perf_counter() - begin
    finally:
        source.close()
    examples = next(job.objective.chunks(0))
    sides = job.objective.lengths(examples)
    batches = batches_of(job.objective, examples, job.recipe.train, 0, job.frame)
    per_epoch = len(batches) / job.recipe.train.accumulate
    return DryRun(
        parameters=job.parameters,
        trained=job.trained,
        memory=_memory(job, kept[0] if kept else None),
        tokens_per_step=tokens / steps,
        examples=len(sides[0]),
        steps_per_epoch=per_epoch,
        steps=job.steps,
        seconds_per_step=seconds / steps,
        device=job.device.type,
        precision=job.stepper.precision,
    )


def _memory(job: Job, activations: int | None) -> dict[str, int]:
    """Bytes by part; activations are those of one micro-batch: counted, or the GPU's peak."""
    weights = _bytes(job.model.parameters()) + _bytes(job.model.buffers())
    gradients = _bytes(p for p in job.model.parameters() if p.requires_grad)
    state = [x for s in job.stepper.optimizer.state.values() for x in s.values()]
    parts = {
        "weights": weights,
        "gradients": gradients,
        "optimiser": _bytes(x for x in state if isinstance(x, Tensor)),
    }
    if job.stepper.ema is not None:
        parts["moving average"] = _bytes(job.stepper.ema.average.values())
    if activations is None:
        activations = max(0, torch.cuda.max_memory_allocated() - sum(parts.values()))
    return {**parts, "activations": activations}


def _bytes(tensors: Any) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


@contextmanager
def _saved(model: Any, found: list[int]) -> Iterator[None]:
    """The bytes that autograd keeps for the backward pass, each storage once, without weights."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        yield
    found.append(sum(seen.values()))
