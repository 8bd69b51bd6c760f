"""Who wins: held-out questions, answered by a run and by the model that it began with, and judged.

judged = judged_answers(run, recipe, ["words.py:used"], answers=32)
wins(judged).rate                    # explain.tuned.wins

Both say the likeliest token each time: no chance is in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from allformer.checkpoint.load import load
from allformer.checkpoint.run import Run
from allformer.data.table import Table
from allformer.errors import ConfigError
from allformer.train.objectives import find_objective
from allformer.train.objectives.instruction import Instruction
from allformer.train.objectives.replies import Samples, replies
from allformer.train.policy.rewards import Answered, Rewards, read_rewards
from allformer.train.predictions import Prediction, Predictions
from allformer.train.preferences.reference import has_base, without_adapters
from allformer.train.sections.model import CheckpointModel
from allformer.train.sections.recipe import Recipe

NEW = 256  # tokens of an answer that is judged


def own_rewards(recipe: Recipe | None) -> Sequence[Any]:
    """Those that a run was tuned for; none of most."""
    found: Sequence[Any] = getattr(getattr(recipe, "options", None), "rewards", ())
    return found


def judge_name(rewards: Sequence[Any]) -> str:
    """`judge_name(["words.py:used", "runs/mood:good"])` → "used + good"."""
    return " + ".join(Rewards(read_rewards(rewards)).names)


def judged_answers(
    run: Run,
    recipe: Recipe | None,
    rewards: Sequence[Any],
    *,
    answers: int = 32,
    say: Callable[[str], None] = print,
) -> Predictions:
    """Held-out questions of a run that answers, with the rewards of both answers to each."""
    judges = Rewards(read_rewards(rewards, "--reward"))
    judges.check()
    found = None if recipe is None else find_objective(recipe.objective)
    if recipe is None or found is None or not issubclass(found, Instruction):
        kind = "there is no recipe.yaml" if recipe is None else f"objective={recipe.objective}"
        raise ConfigError(f"--reward judges answers, and {run.path} gives none ({kind}); remove it")
    objective = found(recipe)
    objective.open()
    objective.encode(run.text, lambda line: None)
    samples = objective.samples(run.model, answers)
    samples = samples._replace(most=_room(run.model, samples, recipe))
    say(f"answering {len(samples.rows)} questions, before and after")
    texts = [replies(run.model, run.text, samples, objective.ends)]
    with _begun(run, recipe) as model:
        texts.insert(0, replies(model, run.text, samples, objective.ends))
    table = objective.asked
    judges.open(run.model.device)
    scores = [judges.total(judges(_answered(table, samples, said))).tolist() for said in texts]
    wanted = run.text.decode_batch(samples.answers)
    rows = zip(samples.rows, wanted, *texts, *scores, strict=True)
    return Predictions(
        tuple(
            Prediction(table["question"][i], text, after, before=before, rewards=(low, high))
            for i, text, before, after, low, high in rows
        )
    )


def _room(model: Any, samples: Samples, recipe: Recipe) -> int:
    """Tokens of an answer: as many as were drawn in training, or as there is room for."""
    most: int = getattr(getattr(recipe.options, "sampling", None), "length", NEW)
    longest = model.config.decoder.longest
    return most if longest is None else min(most, longest - max(map(len, samples.prompts)))


@contextmanager
def _begun(run: Run, recipe: Recipe) -> Iterator[Any]:
    """The model as it was before: without its adapters, or read from where it began."""
    if has_base(run.model):
        with without_adapters(run.model) as model:
            yield model
    elif isinstance(recipe.model, CheckpointModel):
        yield load(recipe.model.directory, device=run.model.device).eval()
    else:
        raise ConfigError(
            f"--reward compares with the model that {run.path} began with, and it began at random; "
            f"remove it"
        )


def _answered(table: Table, samples: Samples, texts: Sequence[str]) -> list[Answered]:
    """What a reward is asked about; of prompts for a reward the data's record goes along."""
    found = []
    for i, text in zip(samples.rows, texts, strict=True):
        one = Answered(table["question"][i], text)
        if "record" in table.columns:
            before, record = (json.loads(table[key][i]) for key in ("messages", "record"))
            one = replace(one, messages=before, record=record)
        found.append(one)
    return found
