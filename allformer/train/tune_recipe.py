"""The recipe that `allformer tune` trains: a checkpoint, a task, a method, and what goes with them.

recipe = tune_recipe("models/minilm", "reviews.csv", task="classify", method="lora")
train(recipe, "runs/reviews")
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from allformer.errors import ConfigError, did_you_mean
from allformer.train.objectives import OBJECTIVES
from allformer.train.policy.rewards import anchored
from allformer.train.recipe import make_recipe
from allformer.train.sections.recipe import Recipe
from allformer.train.tune_tasks import OTHER, RATES, TASKS, Task
from allformer.tune.method import find_method

QLORA = "qlora"  # Dettmers et al. (2023): no method of its own, but lora on a base in few bits
NAMED = (".jsonl", ".json", ".csv", ".parquet")  # files whose columns have names


def tasks() -> dict[str, Task]:
    """Those whose objective there is: `tasks()["sft"].about`."""
    return {name: task for name, task in TASKS.items() if task.objective in OBJECTIVES}


def tune_recipe(
    model: str,
    data: str,
    *,
    task: str,
    method: str = "lora",
    settings: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
    new_head: bool = False,
    **told: Any,
) -> Recipe:
    """`settings` are the method's, `columns` the data's names of ours, `overrides` the recipe's.

    With `new_head` the model's own head, which may know other labels, gives way to one for the
    data. `told`: rate, epochs, length, validation, source, target, rewards, quantise; what is None
    is as the task has it. `method="qlora"` is lora on matrices in four bits.
    """
    if task not in tasks():
        hint = did_you_mean(task, tasks())
        raise ConfigError(f"--task {task}: there is no such; {hint}try {', '.join(tasks())}")
    asked, said = tasks()[task], {name: x for name, x in told.items() if x is not None}
    kind = "lora" if method == QLORA else method
    return make_recipe(
        {
            "name": f"{task}-{method}",
            "objective": _objective(asked, task, said),
            "data": _data(asked, task, data, columns or {}, said),
            "model": {
                "checkpoint": model,
                "quantise": said.get("quantise", "int4" if method == QLORA else None),
                **(_head(asked, task) if new_head else {}),
            },
            "tune": {"is": kind, **_settings(kind, settings or {})},
            **_course(asked, said.get("rate", rate_of(asked, kind)), kind == "full", said),
        },
        overrides,
    )


def _objective(task: Task, name: str, said: dict[str, Any]) -> dict[str, Any]:
    """Of one that hears, the language is the objective's and not the data's."""
    if "rewards" in said and not task.rewards:
        judged = ", ".join(other for other, each in tasks().items() if each.rewards)
        raise ConfigError(f"--reward is for --task {judged}: {name} learns from its data alone")
    given = {"rewards": [anchored(x) for x in said["rewards"]]} if "rewards" in said else {}
    heard = {"language": said.pop("source")} if task.spoken and "source" in said else {}
    return {"is": task.objective, **given, **heard}


def rate_of(task: Task, method: str) -> float:
    """The peak of the rate: `rate_of(TASKS["classify"], "lora")` → 5e-4."""
    return RATES.get(method, OTHER)[task.fresh] * task.slow


def _settings(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Alpha is twice the rank, so that another rank needs no other rate."""
    known = {field.name for field in fields(find_method(method))}
    said = dict(given)
    if "rank" in said and "alpha" in known:
        said.setdefault("alpha", 2 * said["rank"])
    return said


def _head(task: Task, name: str) -> dict[str, Any]:
    if task.head is None:
        those = ", ".join(n for n, one in tasks().items() if one.head is not None)
        raise ConfigError(f"--new-head: --task {name} keeps the model's head; it is of {those}")
    return {"head": {"kind": task.head}}


def _length(task: Task, name: str, said: Mapping[str, Any]) -> dict[str, Any]:
    if task.length is not None:
        return {"max_length": said.get("length", task.length)}
    if "length" in said:
        raise ConfigError(
            f"--length {said['length']} is of texts, and --task {name} reads pictures, whose size "
            f"the model says; leave it out"
        )
    return {}


def _data(
    task: Task, name: str, path: str, columns: Mapping[str, str], said: Mapping[str, Any]
) -> dict[str, Any]:
    data = {"path": path, **_length(task, name, said)}
    data |= task.more.get("data", {})
    if odd := next((ours for ours in columns if ours not in task.columns), None):
        there = ", ".join(task.columns) or "none: its shape is known by itself"
        raise ConfigError(f"--column {odd}={columns[odd]}: of --task {name} there is {there}")
    if not task.pairs:
        data |= {ours: int(x) if x.isdigit() else x for ours, x in columns.items()}
    elif columns or Path(path.removesuffix(".gz")).suffix in NAMED:
        data["columns"] = {ours: columns.get(ours, ours) for ours in task.columns}
    for key in ("source", "target", "validation"):
        if key in said:
            data[key] = said[key]
    return data


def _course(task: Task, rate: float, whole: bool, said: Mapping[str, Any]) -> dict[str, Any]:
    """How it is trained: the optimiser, the rate's way, batches, and when it ends."""
    sizes = {"batch_rows": task.rows, "batch_tokens": task.tokens}
    return {
        "optim": {
            "name": "adamw", "rate": rate, "betas": [0.9, 0.999], "eps": 1e-8,
            "weight_decay": 0.01 if whole else 0.0,
        },
        "schedule": {"kind": task.schedule, "warmup": 0.06},
        "train": {
            "epochs": said.get("epochs", task.epochs),
            **{name: size for name, size in sizes.items() if size is not None},
            "smoothing": 0.0, "validate_every": 0.1, "save_every": 0.1, "average": 1,
            "best": task.best, "patience": 4,
        },
        "log": {"every": 10},
    }  # fmt: skip
