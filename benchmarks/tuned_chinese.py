"""A small chat model learns Chinese answers: instructions by LoRA, then preferences by DPO.

    python benchmarks/tuned_chinese.py --model SmolLM2-135M-Instruct.Q4_1.gguf \\
        --instructions alpaca_zh_demo.json.gz --pairs dpo_zh_demo.json.gz --out runs/chinese
    python benchmarks/tuned_chinese.py … --rank 32 --set train.epochs=5 --set-dpo optim.rate=1e-4
    python benchmarks/tuned_chinese.py … --only dpo          # preferences on the model as it is
    python benchmarks/tuned_chinese.py … --quick            # a few steps of each: whether it runs

`--model` is a directory, a hub id, or a GGUF file, whose numbers are widened. Both steps are what
`allformer tune` does: LoRA on the instructions, `allformer convert --merge`, LoRA by DPO on the
pairs. 100 instructions and 50 pairs, drawn once, are held out; nothing is chosen by them, the last
weights are scored. Printed are the loss on the held-out answers before and after; how often the
better of two held-out answers is the likelier one for each token (nobody is compared with), and how
often it has the higher reward, which is one half before DPO by definition; and what is answered to
some of the held-out questions.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from side_by_side import add_arguments, table, trained, write_result

from allformer import tune
from allformer.checkpoint.convert import convert
from allformer.train.tune_recipe import tune_recipe

HELD = {"sft": 100, "dpo": 50}
NAMES = {"sft": "instructions", "dpo": "preferences"}
# All steps are taken, and what comes of the last one is the result.
UNSEEN = (
    "train.best=null", "train.patience=null", "train.validate_every=0.5", "train.save_every=0.5",
)  # fmt: skip
QUICK = ("train.epochs=null", "train.steps=2", "train.batch_tokens=512")
FEW = {"sft": 4, "dpo": 2}  # records of --quick, and as many held out
FIGURES = ("nll", "perplexity", "accuracy", "likelier", "margin", "kl")


def main() -> None:
    """Both steps, the table, and the answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--instructions", type=Path, required=True, help="JSON or JSONL, or packed")
    parser.add_argument("--pairs", type=Path, required=True, help="JSON or JSONL, or packed")
    parser.add_argument("--out", type=Path, default=Path("runs/chinese"))
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--set-dpo", action="append", default=[], help="change the second recipe")
    parser.add_argument("--only", choices=tuple(HELD), help="one of the two steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    add_arguments(parser, "the first recipe")
    args = parser.parse_args()
    model = str(Path(args.model).resolve()) if Path(args.model).exists() else args.model
    steps: dict[str, Any] = {}
    if args.only != "dpo":
        steps["sft"] = tuned("sft", model, args.instructions, args.set, args)
    if args.only is None:
        merged = args.out / "merged"
        shutil.rmtree(merged, ignore_errors=True)
        convert(steps["sft"]["run"], merged, merge=True, run=False)
        model = str(merged.resolve())
    if args.only != "sft":
        changes = ("data.truncate=true", *args.set_dpo)
        steps["dpo"] = tuned("dpo", model, args.pairs, changes, args)
    show({NAMES[name]: step for name, step in steps.items()})
    print(f"LoRA of rank {args.rank}, {device(args)}")
    write_result(args.result, steps)


def tuned(task: str, model: str, data: Path, changes: Any, args: Any) -> dict[str, Any]:
    """One step: figures of the held-out records before and after, and answers to some of them."""
    train, held = split(task, data, args)
    recipe = tune_recipe(
        model, str(train), validation=str(held), task=task, settings={"rank": args.rank},
        overrides=(
            *UNSEEN, f"train.seed={args.seed}", *(QUICK if args.quick else ()), *changes,
        ),
    )  # fmt: skip
    run = args.out / task
    result = trained(recipe, run, args)
    looks = [row for row in result.rows if "validation_nll" in row]
    numbers = tune.trainable(result.run.model)
    said = json.loads((run / "predictions.json").read_text(encoding="utf-8"))["rows"]
    return {
        "run": str(run), "rate": recipe.optim.rate, "steps": result.steps,
        "seconds": result.seconds, "trained": numbers.trained, "share": numbers.share,
        "before": figures(looks[0]), "after": figures(looks[-1]), "answers": said,
    }  # fmt: skip


def figures(row: dict[str, Any]) -> dict[str, float]:
    """Those of a validation that are told."""
    found = {name: row.get(f"validation_{name}") for name in FIGURES}
    return {name: value for name, value in found.items() if value is not None}


def split(task: str, data: Path, args: Any) -> tuple[Path, Path]:
    """Training and held-out records as JSONL, drawn by a seed that is always the same."""
    args.out.mkdir(parents=True, exist_ok=True)
    raw = gzip.decompress(data.read_bytes()) if data.suffix == ".gz" else data.read_bytes()
    text = raw.decode("utf-8")
    records = (
        json.loads(text)
        if text.lstrip().startswith("[")
        else list(map(json.loads, text.splitlines()))
    )
    random.Random(0).shuffle(records)
    count = HELD[task]
    if args.quick:
        count = FEW[task]
        records = sorted(records, key=lambda record: len(str(record)))[: 2 * count]
    files = args.out / f"{task}-train.jsonl", args.out / f"{task}-held-out.jsonl"
    for file, some in zip(files, (records[count:], records[:count]), strict=True):
        lines = [json.dumps(record, ensure_ascii=False) for record in some]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return files


def show(steps: dict[str, dict[str, Any]]) -> None:
    """Questions with what was said of old, then after each step; and the figures."""
    for name, step in steps.items():
        for row in step["answers"]:
            print(f"\n[{name}] {row['input'].strip()}")
            print(f"  before: {(row['before'] or '').strip()}")
            print(f"  after:  {row['given'].strip()}")
    lines = []
    for name, step in steps.items():
        for figure, after in step["after"].items():
            before = step["before"].get(figure, math.nan)
            lines.append([name, figure, f"{before:.4f}", f"{after:.4f}", f"{after - before:+.4f}"])
    print("\n" + table(("step", "held out", "before", "after", "change"), lines))
    for name, step in steps.items():
        print(
            f"{name}: {step['trained']:,} numbers trained ({step['share']:.2%}), {step['steps']} "
            f"steps in {step['seconds']:.1f} s at a rate of {step['rate']:.0e}"
        )


def device(args: Any) -> str:
    """The machine, in words."""
    return torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device


if __name__ == "__main__":
    main()
