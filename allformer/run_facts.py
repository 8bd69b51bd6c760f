"""What there is to say of a run besides its figures: what it was taught, by what, on what; and how
it is used.

facts = run_facts(run, recipe, history, predictions)
"""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.run import Run
from allformer.explain.words import WORDS, Pair, machine, word
from allformer.text.whisper import START
from allformer.train.objectives import find_objective
from allformer.train.pictures.data import PictureData
from allformer.train.predictions import Predictions
from allformer.train.sections.model import CheckpointModel, PresetRecipe
from allformer.train.sections.recipe import Recipe
from allformer.train.spoken.data import SpokenData
from allformer.train.watch.watch import MACHINE
from allformer.train.waves.data import WaveData
from allformer.tune.trainable import trainable
from allformer.version import __version__

Rows = Sequence[Mapping[str, Any]]
# How a run of each objective is used; {run} is its directory, {text} an example of its data.
USES: dict[str, dict[str, str]] = {
    "seq2seq": {"translate": "allformer translate {run} {text}"},
    "causal-lm": {"generate": "allformer generate {run} {text} --top-p 0.9 --seed 1"},
    "instruction": {"generate": "allformer generate {run} {text} --chat"},
    "dpo": {"generate": "allformer generate {run} {text} --chat"},
    "kto": {"generate": "allformer generate {run} {text} --chat"},
    "grpo": {"generate": "allformer generate {run} {text} --chat"},
    "ppo": {"generate": "allformer generate {run} {text} --chat"},
    "reward": {},  # it is used by what is tuned for a reward
    "masked-lm": {"fill": "allformer fill {run} {gap}"},
    "span-corruption": {"generate": "allformer generate {run} {text}"},
    "denoising": {"generate": "allformer generate {run} {text}"},
    "duplication": {},  # a test of attention: there is nothing to ask it
    "classification": {"classify": "allformer classify {run} {text}"},
    "tagging": {"tag": "allformer tag {run} {text}"},
    "answering": {"answer": "allformer answer {run} --question '…?' --passage-file text.txt"},
    "choice": {"choose": "allformer choose {run} {text} --choice '…' --choice '…'"},
    "vectors": {
        "embed": "allformer embed {run} --file sentences.txt --out vectors.npy",
        "similarity": "allformer similarity {run} '…' '…'",
    },
    "image-classification": {
        "classify-image": "allformer classify-image {run} picture.jpg",
        "embed-image": "allformer embed-image {run} pictures/ --out vectors.npy",
    },
    "contrastive": {
        "zero-shot": "allformer classify-image {run} picture.jpg --labels '…,…'",
        "search": "allformer similarity {run} '…' --image pictures/",
    },
    "detection": {"detect": "allformer detect {run} picture.jpg"},
    "segmentation": {"segment": "allformer segment {run} picture.jpg"},
    "image-codec": {},  # it is used by what draws: text-to-image
    "text-to-image": {"draw": "allformer draw {run} '…'"},
    "sound-codec": {},  # it is used by what speaks: sound-tokens
    "transcription": {"transcribe": "allformer transcribe talk.wav --model {run}"},
    "sound-tokens": {
        "continue": "allformer generate {run} --audio prompt.wav --seconds 5 --out out.wav"
    },
}
LONGEST = 80  # characters of a text that a command line can show


def run_facts(
    run: Run, recipe: Recipe | None, history: Rows, predictions: Predictions | None = None
) -> dict[str, Any]:
    """For `write_report`."""
    facts: dict[str, Any] = {
        **_measured(history, recipe),
        **_machine(run.path),
        "torch": torch.__version__,
        "allformer": __version__,
        "commands": commands(run, recipe, predictions),
    }
    if kept := sorted((run.path / "replay").glob("step-*.pt")):
        facts["kept"] = ", ".join(str(path) for path in kept)
    if recipe is None:
        return facts
    facts |= {
        "command": f"allformer train {run.path / 'recipe.yaml'} --out runs/again",
        "objective": recipe.objective,
        "data": getattr(recipe.data, "path", None) or getattr(recipe.data, "corpus", None) or "–",
        "optimiser": f"{recipe.optim.plain()['name']}, {recipe.optim.rate:g}",
        "schedule": f"{recipe.schedule.plain()['kind']}, warmup {recipe.schedule.warmup:,}",
        **_batch(recipe),
        "precision": recipe.train.precision,
        "seed": recipe.train.seed,
    }
    if model := _begun_with(recipe):
        facts["model"] = model
    if recipe.tune is not None:
        facts |= tuned_facts(run.model, recipe.tune.told)
    kind = f"title.{taught(recipe)}"
    staged = f"{kind}.{getattr(recipe.options, 'stage', None)}"
    if title := next((key for key in (staged, kind) if key in WORDS), None):
        facts["title"] = dict(zip(("en", "zh"), word(title), strict=True))
    return facts


def tuned_facts(model: Any, method: str) -> dict[str, str]:
    """How much of a model its tuning trained, and where; layers that are alike are told once."""
    found = trainable(model)
    parts = {name: n.trained for name, n in found.parts.items() if n.trained}
    groups: dict[tuple[str, int], list[str]] = {}
    for name, count in parts.items():
        stem, _, number = name.rpartition(".")
        layer = number.isdigit()
        groups.setdefault((stem if layer else name, count), []).append(number if layer else "")
    told = [
        f"{name}.{numbers[0]}–{numbers[-1]}: {count:,} each" if len(numbers) > 1
        else f"{'.'.join(filter(None, (name, numbers[0])))}: {count:,}"
        for (name, count), numbers in groups.items()
    ]  # fmt: skip
    total = sum(n.total for n in found.parts.values())
    share = f"{method}: {found.trained:,} of {total:,} ({found.trained / total:.2%})"
    return {"tune": share, "tune_parts": "; ".join(told)}


def _batch(recipe: Recipe) -> dict[str, Any]:
    """Tokens of a step; of pictures and sounds so many of them."""
    rows = recipe.train.batch_rows
    if rows is not None and (name := _counted(recipe)) != "tokens":
        return {name: rows * recipe.train.accumulate}
    return {"batch": f"{recipe.train.batch_tokens * recipe.train.accumulate:,}"}


def _counted(recipe: Recipe | None) -> str:
    """What a batch is counted in, as `facts.NAME` calls it."""
    kinds = ((PictureData, "pictures"), (WaveData, "crops"), (SpokenData, "recordings"))
    return next(
        (name for kind, name in kinds if recipe and isinstance(recipe.data, kind)), "tokens"
    )


def commands(
    run: Run, recipe: Recipe | None, predictions: Predictions | None = None
) -> dict[str, str]:
    """What to do with it, by name: the words beside them are `next.NAME`."""
    where = shlex.quote(str(run.path))
    kind = taught(recipe)
    fill = {"run": where, "text": _example(predictions), "gap": _gap(run)}
    uses = {name: line.format(**fill) for name, line in USES.get(kind, {}).items()}
    if run.tokenizer is None or run.tokenizer.token_to_id(START) is None:
        uses.pop("transcribe", None)  # it asks for Whisper's tokens
    return uses | {
        "load": f"python -c \"import allformer as af; print(af.load('{run.path}'))\"",
        "evaluate": f"allformer evaluate {where}",
        "resume": f"allformer train --resume {where}",
    }


def taught(recipe: Recipe | None) -> str:
    """The objective as `USES` names it: one that is made from another is used like it."""
    return "" if recipe is None else used_as(recipe.objective)


def used_as(objective: str) -> str:
    """`used_as("seq2seq-rdrop")` is "seq2seq"; empty where `USES` knows nothing like it."""
    kinds = (vars(cls).get("name", "") for cls in find_objective(objective).__mro__)
    return next((name for name in kinds if name in USES), "")


def _example(predictions: Predictions | None) -> str:
    """A text of the run's own kind, as a shell takes it."""
    for row in () if predictions is None else predictions.rows:
        text = row.input.strip()
        if text and len(text) <= LONGEST and text.isprintable():
            return shlex.quote(text)
    return '"…"'


def _gap(run: Run) -> str:
    names = getattr(getattr(run.tokenizer, "settings", None), "names", {})
    return shlex.quote(f"… {names.get('mask', '[MASK]')} …")


def _begun_with(recipe: Recipe) -> str | None:
    if isinstance(recipe.model, PresetRecipe):
        return str(recipe.model.preset)
    return str(recipe.model.checkpoint) if isinstance(recipe.model, CheckpointModel) else None


def _speed_unit(recipe: Recipe | None) -> Pair:
    """Of `tokens_per_second`: what draws and what writes down counts the tokens that it says."""
    name = _counted(recipe)
    says = name == "recordings" or taught(recipe) == "text-to-image"
    return word(f"card.{'tokens' if says else name}.unit")


def _measured(history: Rows, recipe: Recipe | None) -> dict[str, Any]:
    """Steps, time, speed, memory: as metrics.jsonl has them."""
    facts: dict[str, Any] = {}
    if history:
        facts["steps"] = max(row.get("step", 0) for row in history)
        facts["seconds"] = max(row.get("seconds", 0.0) for row in history)
    found = {
        key: [row[key] for row in history if key in row]
        for key in ("tokens_per_second", "peak_share", "data_wait", "memory_gib")
    }
    if all(found[key] for key in ("tokens_per_second", "peak_share", "data_wait")):
        speed, peak, wait = (
            statistics.median(found[key])
            for key in ("tokens_per_second", "peak_share", "data_wait")
        )
        shares = {"peak": f"{peak:.1%}", "wait": f"{wait:.1%}"}
        told = word("facts.speed.value", speed=f"{speed:,.0f}", unit=_speed_unit(recipe), **shares)
        facts["speed"] = dict(zip(("en", "zh"), told, strict=True))
    if found["memory_gib"]:
        facts["memory"] = f"{max(found['memory_gib']):.2f} GiB"
    return facts


def _machine(run: Path) -> dict[str, Any]:
    """What training wrote of the machine that it ran on."""
    try:
        raw = json.loads((run / MACHINE).read_text(encoding="utf-8"))
        return {"device": machine(str(raw["device"]))}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
