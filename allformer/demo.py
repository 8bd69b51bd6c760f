"""The demo: a real encoder-decoder learns to translate on a laptop, and shows what it learned.

result = demo("demo")      # trains, scores on unseen pairs, writes demo/report.html
"""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from allformer.core.model import EncoderDecoderModel
from allformer.data.parallel import Corpus
from allformer.errors import CheckpointError
from allformer.evaluate import evaluate_run
from allformer.explain.report import Sample, write_report
from allformer.explain.words import machine
from allformer.tasks.pipeline import run_pipeline
from allformer.train.corpora import open_data
from allformer.train.lock import only_one
from allformer.train.loop import TrainResult, train
from allformer.train.outputs import check_directory, told
from allformer.train.recipe import Recipe, make_recipe
from allformer.version import __version__

RECIPE: dict[str, Any] = {
    "name": "demo",
    "data": {"corpus": "phrasebook", "source": "en", "target": "zh", "max_length": 64},
    "tokenizer": {"kind": "bpe", "vocab": 1000},
    "model": {"dim": 192, "heads": 4, "feed": 768, "layers": 2, "dropout": 0.0},
    "train": {
        "steps": 900,
        "batch_tokens": 1024,
        "rate": 3e-3,
        "warmup": 150,
        "schedule": "cosine",
        "smoothing": 0.1,
        "validate_every": 150,
        "save_every": 50,
        "average": 2,
        "log_every": 10,
        "precision": "fp32",
    },
    "decode": {"beams": 1},
}
# Test sentences to look at: one with each of these words, so that word order differs in each.
_SHOW = ("who", "because", "not as", "two", "Where", "did not", "that", "yesterday", "if", "When")


@dataclass(frozen=True)
class DemoResult:
    """Where the report is, and what it says."""

    run: Path
    report: Path
    scores: dict[str, Any]
    samples: list[Sample]
    seconds: float


def demo(
    out: str | Path = "demo",
    *,
    overrides: tuple[str, ...] = (),
    device: str = "cpu",
    say: Callable[[str], None] = print,
) -> DemoResult:
    """Train English → Chinese on the built-in phrasebook, test on unseen pairs, write a report."""
    out = Path(out)
    recipe = make_recipe(json.loads(json.dumps(RECIPE)), overrides)
    check_directory(out)
    with told(out, "give another --out"):
        _make_room(out)
        return _demo(recipe, out, device, say)


def _demo(recipe: Recipe, out: Path, device: str, say: Callable[[str], None]) -> DemoResult:
    begin = time.monotonic()
    say("making the phrasebook: a grammar writes sentence pairs in English and Chinese")
    corpus = open_data(recipe.data)
    result = train(recipe, out, device=device, corpus=corpus)
    model = result.run.model
    assert isinstance(model, EncoderDecoderModel)
    say(f"translating {_size(corpus.test):,} sentences that it has never seen")
    pipeline = run_pipeline(result.run)
    scores, outputs = evaluate_run(pipeline, corpus.test or [], recipe.data.target)
    samples = _samples(corpus, outputs)
    (out / "scores.json").write_text(json.dumps(scores, indent=2, ensure_ascii=False) + "\n")
    report = write_report(
        out / "report.html",
        model=model,
        tokenizer=result.run.text.with_specials(),  # the page puts them where it shows them
        history=result.rows,
        scores={name: value for name, value in scores.items() if name != "beams"},
        samples=samples,
        facts=_facts(recipe, corpus, result, out),
    )
    return DemoResult(out, report, scores, samples, time.monotonic() - begin)


def _make_room(out: Path) -> None:
    """Remove an earlier demo, and only that."""
    if not out.exists() or not any(out.iterdir()):
        return
    recipe = out / "recipe.yaml"
    if not (recipe.is_file() and "name: demo" in recipe.read_text(encoding="utf-8")):
        raise CheckpointError(f"{out} holds something else than a demo; give another --out")
    with only_one(out):  # not while it is being trained
        shutil.rmtree(out)


def _size(pairs: Any) -> int:
    return len(pairs) if pairs is not None else 0


def _samples(corpus: Corpus, outputs: list[str]) -> list[Sample]:
    """Test sentences of different kinds, and up to three mistakes: nothing is hidden."""
    test = list(corpus.test or [])
    chosen: list[int] = []
    for word in _SHOW:
        for i, (source, _) in enumerate(test):
            if f" {word} " in f" {source} " and i not in chosen and len(source) < 70:
                chosen.append(i)
                break
    wrong = [i for i, (_, reference) in enumerate(test) if outputs[i] != reference]
    chosen += [i for i in wrong[:3] if i not in chosen]
    return [Sample(test[i][0], test[i][1], outputs[i]) for i in chosen]


def _facts(recipe: Recipe, corpus: Corpus, result: TrainResult, out: Path) -> dict[str, Any]:
    return {
        "title": {
            "en": "A Transformer learned to translate English into Chinese",
            "zh": "一个 Transformer 学会了把英文译成中文",
        },
        "direction": {"en": "English → Chinese", "zh": "英文 → 中文"},
        "data": {
            "en": "the built-in phrasebook, made by a grammar; test pairs are unseen combinations",
            "zh": "内置短语集，由语法规则生成；测试句是训练中没有出现过的组合",
        },
        "train_pairs": _size(corpus.train),
        "validation_pairs": _size(corpus.validation),
        "test_pairs": _size(corpus.test),
        "steps": result.steps,
        "seconds": result.seconds,
        "device": machine(
            f"{result.run.model.device.type}, {result.threads} "
            f"thread{'s' * (result.threads != 1)}, {platform.machine()}"
        ),
        "precision": recipe.train.precision,
        "seed": recipe.train.seed,
        "command": f"allformer demo --out {out}",
        "torch": torch.__version__,
        "allformer": __version__,
        "commands": {
            "translate": f'allformer translate {out} "Where did your friend buy these two books?"',
            "resume": f"allformer train --resume {out}",
            "evaluate": f"allformer evaluate {out} --split test",
        },
    }
