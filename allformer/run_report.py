"""The report page of any run: what it learned, how well, and what goes on inside.

result = report_run("runs/mine")      # writes runs/mine/report.html
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.run import Run, load_run
from allformer.core.model import EncoderDecoderModel
from allformer.errors import AllformerError, ConfigError
from allformer.evaluate import evaluate_run
from allformer.explain.report import Sample, write_report
from allformer.tasks.pipeline import run_pipeline
from allformer.train.corpora import open_split
from allformer.train.metrics import read_metrics
from allformer.train.recipe import Recipe, read_recipe
from allformer.version import __version__

NAMES = {
    "de": ("German", "德文"), "en": ("English", "英文"), "es": ("Spanish", "西班牙文"),
    "fr": ("French", "法文"), "it": ("Italian", "意大利文"), "ja": ("Japanese", "日文"),
    "ko": ("Korean", "韩文"), "pt": ("Portuguese", "葡萄牙文"), "ru": ("Russian", "俄文"),
    "zh": ("Chinese", "中文"),
}  # fmt: skip
SHOWN, WRONG, LENGTH = 10, 3, 120  # sentences to look at, further mistakes, and their characters

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class RunReport:
    """Where the page is, and the scores on it; none where there was nothing to score on."""

    page: Path
    scores: dict[str, Any]


def report_run(
    path: str | Path,
    out: str | Path | None = None,
    *,
    split: str | None = None,
    sentences: int = 500,
    device: torch.device | str = "cpu",
    say: Callable[[str], None] = print,
) -> RunReport:
    """Write the page of a run, to RUN/report.html unless `out` says otherwise.

    The first `sentences` of its test split (or of its validation split, or of `split`) are
    translated and scored. A run whose data is gone is shown without scores.
    """
    if sentences < 1:
        raise ConfigError(f"sentences={sentences} must be at least 1; try 500")
    run = load_run(path, device)
    if not isinstance(run.model, EncoderDecoderModel):
        raise ConfigError(f"{path} is no translator: a report shows runs of objective seq2seq")
    file = run.path / "recipe.yaml"
    recipe = read_recipe(file) if file.is_file() else None
    pairs = _pairs(recipe, split, sentences, say)
    scores: dict[str, Any] = {}
    outputs: list[str] = []
    if recipe is not None and pairs:
        say(f"translating {len(pairs):,} sentences")
        scores, outputs = evaluate_run(run_pipeline(run), pairs, recipe.data.target)
    page = write_report(
        run.path / "report.html" if out is None else out,
        model=run.model,
        tokenizer=run.tokenizer.with_specials(),  # the page puts them where it shows them
        history=_history(run.path),
        scores={name: value for name, value in scores.items() if name != "beams"},
        samples=_samples(pairs, outputs),
        facts=_facts(run, recipe, len(pairs)),
    )
    return RunReport(page, scores)


def _pairs(
    recipe: Recipe | None, split: str | None, sentences: int, say: Callable[[str], None]
) -> Pairs:
    """What to translate: of the test split, or else of the validation split; none is told."""
    if recipe is None:
        say("no scores: the run has no recipe.yaml, which says where its data is")
        return []
    problem: AllformerError | None = None
    for name in ("test", "val") if split is None else (split,):
        try:
            return list(islice(_real(open_split(recipe.data, name)), sentences))
        except AllformerError as error:
            problem = problem or error
    if split is not None:
        assert problem is not None
        raise problem
    say(f"no scores: {problem}")
    return []


def _real(pairs: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    return ((source, target) for source, target in pairs if source.strip())


def _history(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, less what is no number: a run that diverged has some."""
    rows = [row for row in read_metrics(run) if isinstance(row, dict)]
    return [{k: v for k, v in row.items() if _is_number(v)} for row in rows]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _samples(pairs: Pairs, outputs: Sequence[str]) -> list[Sample]:
    """Sentences from all over the split, and up to three mistakes: nothing is hidden."""
    found = [Sample(*pair, output) for pair, output in zip(pairs, outputs, strict=bool(outputs))]
    short = [i for i, sample in enumerate(found) if len(sample.source) <= LENGTH]
    chosen = short[:: max(1, len(short) // SHOWN)][:SHOWN]
    wrong = [i for i in short if not found[i].exact and i not in chosen]
    return [found[i] for i in (*chosen, *wrong[:WRONG])]


def _facts(run: Run, recipe: Recipe | None, scored: int) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "allformer": __version__,
        "commands": {
            "translate": f'allformer translate {run.path} "…"',
            "resume": f"allformer train --resume {run.path}",
            "evaluate": f"allformer evaluate {run.path}",
        },
    }
    if recipe is None:
        return facts
    source, target = (
        NAMES.get(code, (code, code)) for code in (recipe.data.source, recipe.data.target)
    )
    if scored:
        facts["test_pairs"] = scored
    return facts | {
        "command": f"allformer train {run.path / 'recipe.yaml'} --out runs/again",
        "title": {
            "en": f"A Transformer learned to translate {source[0]} into {target[0]}",
            "zh": f"一个 Transformer 学会了把{source[1]}译成{target[1]}",
        },
        "direction": {"en": f"{source[0]} → {target[0]}", "zh": f"{source[1]} → {target[1]}"},
        "data": recipe.data.path or recipe.data.corpus or "–",
        "precision": recipe.train.precision,
        "seed": recipe.train.seed,
    }
