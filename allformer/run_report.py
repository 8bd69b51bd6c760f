"""The report page of any run: what it learned, how well, and what goes on inside.

result = report_run("runs/mine")      # writes runs/mine/report.html
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.run import Run, load_run
from allformer.config import SoundCodec
from allformer.core.model import EncoderDecoderModel
from allformer.errors import AllformerError, ConfigError
from allformer.evaluate import evaluate_run
from allformer.explain.curves import charts
from allformer.explain.report import Sample, write_report
from allformer.explain.several import Part, write_several
from allformer.explain.sound.rates import rate_table, sound_codec_lead, without_rates
from allformer.explain.tuned.wins import wins
from allformer.explain.words import said, word
from allformer.images.processor import FILES, Processor, load_processor
from allformer.run_facts import run_facts, taught
from allformer.run_judged import judge_name, judged_answers, own_rewards
from allformer.sound.processor import hears
from allformer.tasks.pipeline import run_pipeline
from allformer.train.corpora import open_split
from allformer.train.metrics import read_lines, read_metrics
from allformer.train.predictions import Predictions
from allformer.train.recipe import Recipe, read_recipe
from allformer.train.watch.statistics import FILE as STATISTICS
from allformer.tune.apply import DEFAULT
from allformer.tune.method import Method
from allformer.tune.tuning import tuning_of

NAMES = {
    "de": ("German", "德文"), "en": ("English", "英文"), "es": ("Spanish", "西班牙文"),
    "fr": ("French", "法文"), "it": ("Italian", "意大利文"), "ja": ("Japanese", "日文"),
    "ko": ("Korean", "韩文"), "pt": ("Portuguese", "葡萄牙文"), "ru": ("Russian", "俄文"),
    "zh": ("Chinese", "中文"),
}  # fmt: skip
SHOWN, WRONG, LENGTH = 10, 3, 120  # sentences to look at, further mistakes, and their characters
TRANSLATOR = "seq2seq"

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
    rewards: Sequence[str] = (),
    answers: int = 32,
    device: torch.device | str = "cpu",
    say: Callable[[str], None] = print,
) -> RunReport:
    """Write the page of a run of any objective, to RUN/report.html unless `out` says otherwise.

    Of a translator the first `sentences` of its test split (or of its validation split, or of
    `split`) are translated and scored; one whose data is gone is shown without scores. All others
    are shown with the examples and figures of their last validation. Where `rewards` are given, or
    the run was tuned for some, `answers` held-out questions are answered before and after, and
    judged (`run_judged`).
    """
    if sentences < 1:
        raise ConfigError(f"sentences={sentences} must be at least 1; try 500")
    if answers < 1:
        raise ConfigError(f"answers={answers} must be at least 1; try 32")
    run = load_run(path, device)
    file = run.path / "recipe.yaml"
    recipe = read_recipe(file) if file.is_file() else None
    history = _history(run.path)
    predictions = Predictions.load(run.path)
    told: dict[str, Any] = {
        "history": history,
        "statistics": _rows(read_lines(run.path / STATISTICS)),
        "facts": run_facts(run, recipe, history, predictions),
        "methods": _methods(run, recipe),
    }
    page = run.path / "report.html" if out is None else Path(out)
    if _translates(run, recipe):
        return _translator(run, recipe, split, sentences, page, told, say)
    if split is not None:
        raise ConfigError(
            f"split={split!r}: only a translator's page scores a split; the page of "
            f"{run.path} shows its last validation: leave it out"
        )
    scores = last_figures(history)
    if judges := rewards or own_rewards(recipe):
        found = _judged(run, recipe, judges, bool(rewards), answers, say)
        if found is not None:
            predictions, told["judge"] = found, judge_name(judges)
            won = wins(found)
            scores |= {} if won is None else {"win_rate": won.rate}
    if not run.model.config.stacks:
        return RunReport(_codec(run, page, scores, predictions, told), scores)
    tokenizer = run.tokenizer
    if tokenizer is not None and len(run.model.config.stacks) > 1:
        # between two stacks the page puts its own marks, as a translator's does
        tokenizer = tokenizer.with_specials()
    write_report(
        page,
        model=run.model,
        tokenizer=tokenizer,
        scores=scores,
        predictions=predictions or Predictions(),
        processor=_processor(run.path),
        **told,
    )
    return RunReport(page, scores)


def _judged(
    run: Run,
    recipe: Recipe | None,
    rewards: Sequence[Any],
    asked: bool,
    answers: int,
    say: Callable[[str], None],
) -> Predictions | None:
    """Answers of before and after; a run whose own data or rewards are gone is shown without."""
    try:
        return judged_answers(run, recipe, rewards, answers=answers, say=say)
    except AllformerError as error:
        if asked:
            raise
        say(f"no win rates: {error}")
        return None


def _codec(
    run: Run,
    page: Path,
    scores: dict[str, float],
    predictions: Predictions | None,
    told: dict[str, Any],
) -> Path:
    """The page of a model without stacks: what it makes of pictures or sounds, and how it
    learned."""
    facts, history = told["facts"], told["history"]
    title = said(facts.get("title", {"en": "A codec", "zh": "一个编解码器"}))
    tree: Any = run.model.config
    sounds = isinstance(tree, SoundCodec)
    unit = "crops" if sounds else "pictures"
    plots = charts(history, "chart.plain", unit)
    plots.pop("loss", None)  # a section has its own
    part = Part(
        "samples",
        word("nav.examples"),
        word("rate.title" if sounds else "examples.title"),
        ("", ""),
        run.model,
        history,
        without_rates(scores),
        predictions or Predictions(),
        {name: facts[name] for name in ("steps", "seconds", "device") if name in facts},
        table=rate_table(scores),
        unit=unit,
        plots=plots,
    )
    lead = sound_codec_lead(tree) if sounds else word("lead.codec")
    return write_several(page, title=title, lead=lead, parts=[part], facts=facts)


def _methods(run: Run, recipe: Recipe | None) -> tuple[Method, ...]:
    """What the model was tuned by, in the recipe's words, with the parts that were trained whole
    beside them."""
    if recipe is None or recipe.tune is None:
        return ()
    tuning = tuning_of(run.model)
    adapter = None if tuning is None else tuning.adapters.get(DEFAULT)
    found = () if adapter is None else (method.whole for method in adapter.methods)
    whole = next((parts for parts in found if parts is not None), None)
    first, *rest = recipe.tune.methods
    return (replace(first, whole=whole), *rest)


def _processor(run: Path) -> Processor | None:
    """How a model that sees was taught to see; None where the run does not say."""
    there = any((run / name).is_file() for name in FILES)
    return load_processor(run) if there and not hears(run) else None


def _translates(run: Run, recipe: Recipe | None) -> bool:
    if not isinstance(run.model, EncoderDecoderModel):
        return False
    return recipe is None or taught(recipe) == TRANSLATOR


def _history(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, less what is no number: a run that diverged has some."""
    return [{k: v for k, v in row.items() if _is_number(v)} for row in read_metrics(run)]


def _rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of statistics.jsonl that are what training writes."""
    names = ("weights", "activations")
    return [row for row in rows if all(isinstance(row.get(name), dict) for name in names)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def last_figures(history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of the weights that stayed: of the last validation that there is."""
    held = "validation_"
    rows = [row for row in history if f"{held}nll" in row]
    if not rows:
        return {}
    found = {k.removeprefix(held): x for k, x in rows[-1].items() if k.startswith(held)}
    return {k: x for k, x in found.items() if not k.startswith("nll") or len(found) == 1}


# --- translators ----------------------------------------------------------------------------------


def _translator(
    run: Run,
    recipe: Recipe | None,
    split: str | None,
    sentences: int,
    page: Path,
    told: dict[str, Any],
    say: Callable[[str], None],
) -> RunReport:
    pairs = _pairs(recipe, split, sentences, say)
    scores: dict[str, Any] = {}
    outputs: list[str] = []
    if recipe is not None and pairs:
        say(f"translating {len(pairs):,} sentences")
        scores, outputs = evaluate_run(run_pipeline(run), pairs, recipe.data.target)
    told["facts"] |= _direction(recipe, len(pairs))
    write_report(
        page,
        model=run.model,
        tokenizer=run.text.with_specials(),  # the page puts them where it shows them
        scores={name: value for name, value in scores.items() if name != "beams"},
        samples=_samples(pairs, outputs),
        **told,
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


def _samples(pairs: Pairs, outputs: Sequence[str]) -> list[Sample]:
    """Sentences from all over the split, and up to three mistakes: nothing is hidden."""
    found = [Sample(*pair, output) for pair, output in zip(pairs, outputs, strict=bool(outputs))]
    short = [i for i, sample in enumerate(found) if len(sample.source) <= LENGTH]
    chosen = short[:: max(1, len(short) // SHOWN)][:SHOWN]
    wrong = [i for i in short if not found[i].exact and i not in chosen]
    return [found[i] for i in (*chosen, *wrong[:WRONG])]


def _direction(recipe: Recipe | None, scored: int) -> dict[str, Any]:
    if recipe is None:
        return {}
    source, target = (
        NAMES.get(code, (code, code)) for code in (recipe.data.source, recipe.data.target)
    )
    return {
        **({"test_pairs": scored} if scored else {}),
        "title": {
            "en": f"A Transformer learned to translate {source[0]} into {target[0]}",
            "zh": f"一个 Transformer 学会了把{source[1]}译成{target[1]}",
        },
        "direction": {"en": f"{source[0]} → {target[0]}", "zh": f"{source[1]} → {target[1]}"},
    }
