"""ListOps of the Long Range Arena: every mechanism with the same layers, width, steps and data.

    python benchmarks/listops.py --data listops                       # all, 2,000 steps each
    python benchmarks/listops.py --data listops --minutes 4           # as many steps as that holds
    python benchmarks/listops.py --data listops --only full,window --steps 200 --device cpu

--data is a folder with train.tsv and val.tsv, as `allformer.data.listops.write_listops` makes it;
where there is none, --trees of them are drawn there. First each mechanism takes a few steps of
training alone on the device, all on the same batch: that is the table's time and memory (--alone:
that alone; --trained-only: not that). Then all are trained side by side by recipes/listops.yaml, a
process each, and the best validation accuracy (2,000 trees) is the table's. Who always says 0 has
17 %.

The Arena's own figures (6 layers of 512, 5,000 steps of 32, 96,000 trees, test): Transformer 36.4,
local attention 15.8, Longformer 35.6, BigBird 36.1, Reformer 37.3, Linformer 35.7, Performer 18.0,
linear attention 16.1 %.

Texts are read by the first token (BERT's pooler); Transformer-XL, which looks back alone, by the
last. Learned positions for all but it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from side_by_side import add_arguments, side_by_side, table, trained, write_result

import allformer as af
from allformer import config
from allformer.config import from_dict, to_dict
from allformer.core.kernels import flex
from allformer.data.listops import write_listops
from allformer.train.batch import moved
from allformer.train.loop import open_objective
from allformer.train.recipe import make_recipe, read_recipe
from allformer.train.sections.recipe import Recipe
from allformer.train.sections.vocabulary import Vocabulary
from allformer.train.step import Stepper, StepSettings
from allformer.train.stream import Place, micro_batches
from allformer.train.tokenizing import make_tokenizer

RECIPE = Path(__file__).parents[1] / "recipes" / "listops.yaml"
LENGTH = 2048
TREES = 24_000

# What stands in the slot of every layer; {layer} is its number.
MECHANISMS: dict[str, dict[str, Any]] = {
    "full": {"is": "Full"},
    "window": {"is": "Window", "left": 128, "right": 128},
    "longformer": {"is": "GlobalWindow", "left": 128, "right": 128},
    "bigbird": {"is": "BlockSparse", "block": 64, "random": 3, "seed": "{layer}", "always": True},
    "reformer": {"is": "LSH", "chunk": 64, "hashes": 4, "before": 1, "after": 1},
    "linformer": {"is": "LowRank", "rank": 256, "length": LENGTH},
    "performer": {"is": "Features", "kind": "favor", "count": 128},
    "linear": {"is": "Features", "kind": "elu"},
    "xl": {"is": "Full"},
}
SAID = {
    "full": "full attention",
    "window": "window ± 128",
    "longformer": "Longformer: ± 128, <s> global",
    "bigbird": "BigBird: blocks of 64, 3 random",
    "reformer": "Reformer: LSH, 4 hashes, chunks of 64",
    "linformer": "Linformer: rank 256",
    "performer": "Performer: 128 features",
    "linear": "linear attention (elu)",
    "xl": "Transformer-XL's relative positions, causal",
}


def tree(name: str, recipe: Recipe) -> Any:
    """The recipe's sizes with a mechanism in every layer."""
    whole = recipe.model.tree("encoder", LENGTH)
    stack = whole.encoder
    blocks = tuple(_mixed(block, name, layer) for layer, block in enumerate(stack.blocks))
    stack = replace(stack, blocks=blocks)
    if name != "xl":
        return replace(whole, encoder=stack)
    stack = replace(stack, position=None, causal=True, relative=config.XLRelative())
    labels = tuple(map(str, range(10)))
    return config.DecoderOnly(stack, config.ClassHead(labels, at="last"))


def _mixed(block: Any, name: str, layer: int) -> Any:
    raw = {k: layer if v == "{layer}" else v for k, v in MECHANISMS[name].items()}
    return replace(block, attention=replace(block.attention, mixer=from_dict(raw, name)))


def recipe_of(name: str, args: Any) -> Recipe:
    """recipes/listops.yaml with the mechanism, the data and the number of steps."""
    sets = [f"data.path={args.data}", f"data.cache={args.out / 'tables'}",
            f"train.steps={args.steps}", f"train.save_every={args.steps}",
            f"train.validate_every={max(1, args.steps // 4)}", "log.tensorboard=false",
            *args.set]  # fmt: skip
    base = read_recipe(RECIPE, sets)
    return make_recipe({**base.plain(), "model": to_dict(tree(name, base))})


def one(name: str, args: Any) -> dict[str, Any]:
    """Train it, and say how right it was."""
    flex.SHAPES = 0  # trees have all lengths: one kernel for all, instead of many that are compiled
    run = args.out / f"run-{name}"
    result = trained(recipe_of(name, args), run, args)
    found = [row for row in result.rows if "validation_accuracy" in row]
    return {
        "accuracy": max(row["validation_accuracy"] for row in found),
        "curve": {row["step"]: row["validation_accuracy"] for row in found},
        "nll": found[-1]["validation_nll"],
        "steps": result.steps,
        "seconds side by side": result.seconds,
        "parameters": sum(p.numel() for p in result.run.model.parameters()),
    }


def prepared(args: Any) -> tuple[Any, Any]:
    """The data drawn and tokenised, once for all trainings: an objective with its tokeniser."""
    if not (args.data / "train.tsv").exists():
        write_listops(args.data, args.trees)
    objective = open_objective(recipe_of("full", args))
    tokenizer = make_tokenizer(objective, _say)
    objective.encode(tokenizer, _say)
    return objective, tokenizer


def alone(names: list[str], args: Any) -> dict[str, dict[str, Any]]:
    """Milliseconds and peak memory of a step of training, in turn, on one batch for all."""
    objective, tokenizer = prepared(args)
    batch, _ = next(micro_batches(objective, objective.recipe.train, None, Place()))
    batch, found = moved(batch, args.device), {}
    for name in names:
        try:
            recipe = recipe_of(name, args)
            found[name] = _timed(recipe, objective, Vocabulary.of(tokenizer), batch, args)
        except Exception as error:  # another mechanism may do
            found[name] = {"error": f"{type(error).__name__}: {error}"}
            _say(f"{name}: {found[name]['error']}")
    return found


def _timed(recipe: Recipe, objective: Any, vocabulary: Any, batch: Any, args: Any) -> Any:
    cuda = args.device == "cuda"
    tree = type(objective)(recipe).config(vocabulary)
    model = af.build(tree, seed=0, device=args.device).train()
    stepper = Stepper(model, objective, StepSettings(recipe.optim, 0.0, precision="auto"))
    times = []
    for number in range(3 + args.timed):
        if cuda:
            torch.cuda.synchronize()
            if number == 3:
                torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        stepper([batch], 1e-4)
        if cuda:
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - begin))
    peak = torch.cuda.max_memory_allocated() / 2**20 if cuda else None
    return {"ms": statistics.median(times[3:]), "MiB": peak, "tokens": batch.tokens}


def held(times: dict[str, dict[str, Any]], minutes: float, most: int) -> int:
    """So many steps of all of them together as the minutes hold, validation included."""
    together = sum(row["ms"] for row in times.values() if "ms" in row) / 1000
    return max(20, min(most, int(0.8 * 60 * minutes / max(together, 1e-6)) // 20 * 20))


def shown(times: dict[str, Any], results: dict[str, Any]) -> str:
    """The table; what failed says why below it."""
    rows, failed = [], []
    for name, result in results.items():
        timed = times.get(name, {})
        peak = timed.get("MiB")
        rows.append([
            SAID[name],
            _accuracy(result),
            f"{timed['ms']:.1f}" if "ms" in timed else "–",
            f"{peak:,.0f}" if peak is not None else "–",
            f"{result['parameters']:,}" if "parameters" in result else "–",
        ])  # fmt: skip
        failed += [f"{name}: {x['error']}" for x in (timed, result) if "error" in x]
    head = ["mechanism", "accuracy", "ms a step", "MiB", "parameters"]
    return "\n".join([table(head, rows), *failed])


def _accuracy(result: dict[str, Any]) -> str:
    if "accuracy" in result:
        return f"{100 * result['accuracy']:.1f} %"
    row = result.get("so far", {})
    if "validation_accuracy" not in row:
        return "–"
    return f"{100 * row['validation_accuracy']:.1f} % (stopped, step {row['step']})"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--trees", type=int, default=TREES, help="to draw for training")
    parser.add_argument("--out", type=Path, default=Path("runs/listops-bench"))
    parser.add_argument("--only", default=",".join(MECHANISMS))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--minutes", type=float, help="fewer steps, so that all end in time")
    parser.add_argument("--alone", action="store_true", help="time and memory, no training")
    parser.add_argument("--trained-only", action="store_true", help="no time and memory")
    parser.add_argument("--timed", type=int, default=20, help="steps that are timed")
    parser.add_argument("--late", type=float, default=600, help="minutes: what runs is stopped")
    parser.add_argument("--side", type=int, default=16, help="trainings at a time")
    add_arguments(parser)
    args = parser.parse_args()
    args.data, args.out = args.data.absolute(), args.out.absolute()
    if args.one:
        write_result(args.result, one(args.one, args))
        return
    names, times = args.only.split(","), {}
    if args.trained_only:
        prepared(args)
    else:
        times = alone(names, args)
    if args.alone:
        print(shown(times, {name: {} for name in names}))
        write_result(args.result, times)
        return
    if args.minutes and times:
        args.steps = held(times, args.minutes, args.steps)
        _say(f"{args.steps} steps each")
    own = ["--data", args.data, "--out", args.out, "--steps", args.steps, "--device", args.device]
    own += (["--compile"] if args.compile else []) + [f"--set={change}" for change in args.set]
    commands = {
        name: [sys.executable, __file__, "--one", name, *map(str, own)]
        for name in names
        if "error" not in times.get(name, {})
    }
    found = side_by_side(commands, args.out, args.late, args.side)
    results = {name: found.get(name, {}) for name in names}
    print(f"{args.steps} steps, {args.device}")
    print(shown(times, results))
    write_result(args.result, {"steps": args.steps, "alone": times, "trained": results})


if __name__ == "__main__":
    main()
