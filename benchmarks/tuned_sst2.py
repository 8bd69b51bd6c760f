"""SST-2 on a small encoder by every method of tuning: accuracy, trained numbers, memory, time.

    python benchmarks/tuned_sst2.py --model all-MiniLM-L6-v2 --data sst2 --out runs/sst2
    python benchmarks/tuned_sst2.py … --method full --method lora --seeds 3 --together 6
    python benchmarks/tuned_sst2.py … --rates 0.5,1,2    # times the default; the best is taken
    python benchmarks/tuned_sst2.py … --rate lora=1e-3 --epochs 5
    python benchmarks/tuned_sst2.py … --quick            # a few steps of each: whether it runs

`--data` is a directory with train.tsv and dev.tsv, each line a sentence, a tab, 0 or 1. Each run is
what `allformer tune --task classify` does with its defaults, but for one thing: nothing is chosen
by the dev set. All epochs are run, and the last weights are scored on it, once. --rates tries each
method first, on nine tenths of the training sentences, and takes the rate that does best on the
tenth; then all are trained on. Accuracy is the mean over the seeds, which draw the head, the
adapter, the order and dropout; ± is their deviation. Memory is the most that was held: of a GPU's
memory, or on a CPU of the process. With --together the times are those of so many trainings side by
side.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from side_by_side import add_arguments, side_by_side, table, trained, write_result

from allformer import tune
from allformer.train.tune_recipe import rate_of, tune_recipe
from allformer.train.tune_tasks import TASKS

METHODS = ("full", "lora", "bottleneck", "prefix", "prompt", "bitfit", "ia3")
# All steps are taken, and what comes of the last one is the result.
UNSEEN = (
    "train.best=null", "train.patience=null", "train.validate_every=0.5", "train.save_every=0.5",
)  # fmt: skip
HELD = 692  # training sentences that rates are chosen by
QUICK = ("train.epochs=null", "train.steps=3", "train.batch_rows=8")


def main() -> None:
    """Every method and seed as a process of its own; then the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a directory, or a hub id")
    parser.add_argument("--data", required=True, help="a directory with train.tsv and dev.tsv")
    parser.add_argument("--out", type=Path, default=Path("runs/sst2"))
    parser.add_argument("--method", action="append", choices=METHODS, help="may be repeated")
    parser.add_argument("--rate", action="append", default=[], help="METHOD=RATE, else as tune has")
    parser.add_argument("--rates", help="times the default: 0.5,1,2; the best of each is taken")
    parser.add_argument("--epochs", type=float, help="else as tune has")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--together", type=int, default=1, help="trainings at a time")
    parser.add_argument("--minutes", type=float, default=60, help="for all of them")
    parser.add_argument("--quick", action="store_true")
    add_arguments(parser)
    args = parser.parse_args()
    if args.one:
        write_result(args.result, tuned(*(args.one + "--").split("-")[:3], args))
        return
    args.method = args.method or [*METHODS]
    rates = chosen(args) if args.rates else []
    names = [f"{method}-{seed}" for seed in range(args.seeds) for method in args.method]
    found = processes(names, args, rates)
    rows = {
        m: [x for i in range(args.seeds) if "error" not in (x := found[f"{m}-{i}"])]
        for m in args.method
    }
    print(told(rows))
    print(f"{args.seeds} seed(s), {args.together} training(s) at a time, {device(args)}")
    write_result(args.result, rows)


def processes(names: list[str], args: Any, more: list[str]) -> dict[str, dict[str, Any]]:
    """This script once for each name; errors are told."""
    again = [sys.executable, __file__, *sys.argv[1:], *more]
    commands = {name: [*again, "--one", name] for name in names}
    found = side_by_side(commands, args.out, args.minutes, args.together)
    for name, result in found.items():
        if "error" in result:
            print(f"{name}: {result['error']}")
    return found


def chosen(args: Any) -> list[str]:
    """The best rate of each method on training sentences that it has not seen, as arguments."""
    tried = [f"{m}-0-{times}" for m in args.method for times in args.rates.split(",")]
    found, more = processes(tried, args, []), list[str]()
    for method in args.method:
        some = [x for name, x in found.items() if name.split("-")[0] == method and "rate" in x]
        for one in some:
            print(f"{method} at {one['rate']:.1e}: {one['accuracy']:.2%}, nll {one['nll']:.3f}")
        if some:
            best = max(some, key=lambda x: (x["accuracy"], -x["nll"]))
            more += ["--rate", f"{method}={best['rate']}"]
    return more


def tuned(method: str, seed: str, times: str, args: Any) -> dict[str, Any]:
    """One run, as `allformer tune` makes it; with `times`, a trial of another rate."""
    rates = {name: float(rate) for name, _, rate in (x.partition("=") for x in args.rate)}
    data, rate, changes = few(args.data, args.out) if args.quick else args.data, None, []
    if times:
        rate = float(times) * rate_of(TASKS["classify"], method)
        data, changes = f"{data}/train.tsv", [f"data.hold_out={2 if args.quick else HELD}"]
    recipe = tune_recipe(
        args.model, data, task="classify", method=method, columns={"text": "0", "label": "1"},
        rate=rate or rates.get(method), epochs=args.epochs,
        overrides=(
            *UNSEEN, *changes, f"train.seed={seed}", *(QUICK if args.quick else ()), *args.set
        ),
    )  # fmt: skip
    result = trained(recipe, args.out / f"run-{args.one}", args)
    numbers = tune.trainable(result.run.model)
    return {
        "accuracy": result.rows[-1]["validation_accuracy"],
        "nll": result.rows[-1]["validation_nll"],
        "rate": recipe.optim.rate,
        "trained": numbers.trained,
        "share": numbers.share,
        "gib": max(row["memory_gib"] for row in result.rows if "memory_gib" in row),
        "seconds": result.seconds,
        "steps": result.steps,
    }


def few(data: str, out: Path) -> str:
    """The first lines of both files."""
    folder = out / "few"
    folder.mkdir(exist_ok=True)
    for name in ("train.tsv", "dev.tsv"):
        lines = (Path(data) / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:24]), encoding="utf-8")
    return str(folder)


def told(rows: dict[str, list[dict[str, Any]]]) -> str:
    """A line for each method; how far it is from all weights, where those were tuned too."""
    best = statistics.mean(x["accuracy"] for x in rows["full"]) if rows.get("full") else None
    lines = []
    for method, found in rows.items():
        if not found:
            lines.append([method, *["–"] * 7])
            continue
        right = [100 * x["accuracy"] for x in found]
        mean, one = statistics.mean(right), found[0]
        spread = f" ± {statistics.stdev(right):.2f}" if len(right) > 1 else ""
        lines.append([
            method, f"{one['rate']:.0e}", f"{mean:.2f}{spread}",
            "–" if best is None else f"{mean - 100 * best:+.2f}",
            f"{one['trained']:,}", f"{one['share']:.2%}",
            f"{max(x['gib'] for x in found):.2f}",
            f"{statistics.median(x['seconds'] for x in found):.1f}",
        ])  # fmt: skip
    head = ("method", "rate", "dev accuracy", "to full", "trained", "share", "GiB", "seconds")
    return table(head, lines)


def device(args: Any) -> str:
    """The machine, in words."""
    return torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device


if __name__ == "__main__":
    main()
