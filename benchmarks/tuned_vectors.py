"""Sentence vectors by contrast: Spearman's correlation with people's scores, before and after.

    python benchmarks/tuned_vectors.py --model all-MiniLM-L6-v2 --stsb stsb-multi-mt/data
    python benchmarks/tuned_vectors.py … --multi30k multi30k --case german --rate full=2e-4
    python benchmarks/tuned_vectors.py … --quick            # a few steps of each: whether it runs

`--stsb` has stsb-en-train.csv, stsb-de-dev.csv, … (sentence, sentence, score from 0 to 5, without a
header), as PhilipMay/stsb-multi-mt on GitHub has them: STS-B, and machine translations of it. What
is trained on shares no sentence with the dev and test parts, which are scored.

- english: pairs of STS-B's training part that people gave 4 at least, without their scores: each is
  nearer than all others of its batch.
- scores: all pairs of that part, with their scores: of two pairs the one that people found nearer
  has the higher cosine (objective.loss=order).
- german: `--multi30k` has train.en(.gz) and train.de(.gz): a picture's description and its
  translation, by contrast as in english. The model has read English alone; German sentences are to
  lie where English ones do. Scored on German STS-B, of which nothing is trained on.
- german-scores: as scores, on the German training part.

Nothing is chosen by the scores: all steps are taken, and the last weights are scored.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from side_by_side import add_arguments, table, trained, write_result

from allformer import tune
from allformer.metrics import spearman
from allformer.tasks.embed import similarity
from allformer.tasks.pipeline import open_pipeline
from allformer.train.tune_recipe import tune_recipe

CASES = {"english": "en", "scores": "en", "german": "de", "german-scores": "de"}
ORDERED = ("scores", "german-scores")  # those that learn from scores
METHODS = ("full", "lora")
# All steps are taken, and what comes of the last one is the result.
UNSEEN = (
    "train.best=null", "train.patience=null", "train.validate_every=0.5", "train.save_every=0.5",
)  # fmt: skip
QUICK = ("train.epochs=null", "train.steps=3", "train.batch_rows=8")
ALIKE = 4.0  # a score from which on two sentences are taken for the same
FEW = 32  # records of --quick

Scored = tuple[str, str, float]


def main() -> None:
    """Score, tune by each method, score again; then the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a directory, or a hub id")
    parser.add_argument("--stsb", type=Path, required=True, help="a directory")
    parser.add_argument("--multi30k", type=Path, help="a directory; without it no German")
    parser.add_argument("--out", type=Path, default=Path("runs/vectors"))
    parser.add_argument("--case", action="append", choices=[*CASES], help="may be repeated")
    parser.add_argument("--method", action="append", choices=METHODS, help="may be repeated")
    parser.add_argument("--rate", action="append", default=[], help="METHOD=RATE, else as tune has")
    parser.add_argument("--epochs", type=float, help="else as tune has")
    parser.add_argument("--pairs", type=int, help="so many of the training pairs, drawn once")
    parser.add_argument("--quick", action="store_true")
    add_arguments(parser)
    args = parser.parse_args()
    cases = args.case or [case for case in CASES if case != "german" or args.multi30k]
    found = [row for case in cases for row in measured(case, args)]
    head = ("case", "weights", "rate", "trained", "dev", "test", "seconds")
    print(table(head, [[told(row.get(name)) for name in head] for row in found]))
    print(f"Spearman × 100; {device(args)}")
    write_result(args.result, {"rows": found})


def measured(case: str, args: Any) -> list[dict[str, Any]]:
    """The model as it is, and as each method leaves it."""
    args.out.mkdir(parents=True, exist_ok=True)
    held = {part: scores(args, CASES[case], part) for part in ("dev", "test")}
    pairs = unseen(args, CASES[case], held) if case != "german" else translations(args.multi30k)
    if case == "english":
        pairs = [pair for pair in pairs if pair[2] >= ALIKE]
    random.Random(0).shuffle(pairs)  # files begin with one kind of text
    pairs = pairs[: FEW if args.quick else args.pairs]
    file = args.out / f"{case}.jsonl"
    write(file, pairs)
    print(f"{case}: {len(pairs):,} pairs to train on", flush=True)
    rows = [{"case": case, "weights": "as they are", **judged(args.model, held, args)}]
    order = ("objective.loss=order",) if case in ORDERED else ()
    rates = {name: float(rate) for name, _, rate in (x.partition("=") for x in args.rate)}
    for method in args.method or METHODS:
        recipe = tune_recipe(
            args.model, str(file), task="embed", method=method, rate=rates.get(method),
            epochs=args.epochs, columns={"score": "score"} if order else {},
            overrides=(*UNSEEN, *order, *(QUICK if args.quick else ()), *args.set),
        )  # fmt: skip
        run = args.out / f"run-{case}-{method}"
        result = trained(recipe, run, args)
        trains = tune.trainable(result.run.model).trained
        rows.append({
            "case": case, "weights": method, "rate": f"{recipe.optim.rate:.0e}",
            "trained": f"{trains:,}", **judged(str(run), held, args), "seconds": result.seconds,
        })  # fmt: skip
    return rows


def judged(model: str, held: dict[str, list[Scored]], args: Any) -> dict[str, float]:
    """Spearman's correlation of cosines and scores, by part."""
    pipeline, found = open_pipeline(model, device=args.device, head=False), {}
    for part, rows in held.items():
        first, second, score = map(list, zip(*rows, strict=True))
        near = similarity(pipeline, first, second, pairs=True, truncate=True)
        found[part] = 100 * spearman(score, near.double().tolist())
    return found


# --- data ---------------------------------------------------------------------------------------


def scores(args: Any, language: str, part: str) -> list[Scored]:
    """A part of STS-B in a language."""
    path = args.stsb / f"stsb-{language}-{part}.csv"
    with path.open(newline="", encoding="utf-8") as file:
        found = [(a, b, float(score)) for a, b, score in csv.reader(file)]
    return found[:FEW] if args.quick and part != "train" else found


def unseen(args: Any, language: str, held: dict[str, list[Scored]]) -> list[Scored]:
    """STS-B's training pairs; no sentence of them is scored later."""
    seen = {text for rows in held.values() for row in rows for text in row[:2]}
    return [row for row in scores(args, language, "train") if not {*row[:2]} & seen]


def translations(folder: Path) -> list[Scored]:
    """English descriptions and German ones of the same picture: as near as can be."""
    english, german = (read(folder / f"train.{language}") for language in ("en", "de"))
    return [(a, b, 5.0) for a, b in zip(english, german, strict=True)]


def read(path: Path) -> list[str]:
    """The lines of a file, packed or not."""
    packed = path.with_name(path.name + ".gz")
    data = gzip.decompress(packed.read_bytes()) if packed.is_file() else path.read_bytes()
    return data.decode("utf-8").splitlines()


def write(path: Path, pairs: Iterable[Scored]) -> None:
    """As JSONL, by the names that the objective has for them."""
    names = ("text_a", "text_b", "score")
    records = (dict(zip(names, pair, strict=True)) for pair in pairs)
    lines = (json.dumps(record, ensure_ascii=False) for record in records)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


# --- the table ----------------------------------------------------------------------------------


def told(value: Any) -> str:
    """A cell."""
    if value is None:
        return "–"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def device(args: Any) -> str:
    """The machine, in words."""
    return torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device


if __name__ == "__main__":
    main()
