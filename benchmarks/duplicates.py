"""Reformer's duplicated sequences: trained with so many hashes, tested with fewer and more.

    python benchmarks/duplicates.py                                   # full, 1, 2 and 4 hashes
    python benchmarks/duplicates.py --length 127 --steps 2000         # rows of 256 instead of 1,024
    python benchmarks/duplicates.py --only full,2 --length 15 --steps 50 --device cpu

recipes/duplicated-sequences.yaml: one layer, 256 wide, 4 heads, w of 511 out of 127 symbols, as in
the paper (Kitaev et al. 2020, table 2), which has, after 150,000 steps, in % of the second half:

| trained with   | 8 hashes | 4    | 2    | 1    |
|----------------|----------|------|------|------|
| 4 hashes       | 100      | 99.9 | 99.4 | 91.9 |
| 2 hashes       | 100      | 99.9 | 98.1 | 86.8 |
| 1 hash         | 99.9     | 99.6 | 94.8 | 77.9 |

Full attention: 100. Each training is a process of its own, side by side.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from side_by_side import add_arguments, side_by_side, table, trained, write_result

import allformer as af
from allformer.config import LSH
from allformer.core.kernels import flex
from allformer.train.loop import open_objective
from allformer.train.precision import find_precision
from allformer.train.recipe import read_recipe
from allformer.train.validate import validate

RECIPE = Path(__file__).parents[1] / "recipes" / "duplicated-sequences.yaml"
TESTS = (8, 4, 2, 1)


def recipe_of(name: str, args: Any) -> Any:
    """The recipe with so many hashes."""
    hashed = f"{{is: LSH, chunk: {args.chunk}, hashes: {name}}}"
    return read_recipe(
        RECIPE,
        [
            f"model.mixer={'null' if name == 'full' else hashed}",
            f"data.length={args.length}",
            f"train.steps={args.steps}",
            f"train.save_every={args.steps}",
            f"train.validate_every={max(1, args.steps // 12)}",
            "log.tensorboard=false",
            *args.set,
        ],
    )


def one(name: str, args: Any) -> dict[str, Any]:
    """Train, then test with other numbers of hashes."""
    flex.SHAPES = 1  # training has a kernel of its own, all tests share one
    run = args.out / f"run-{name}"
    recipe = recipe_of(name, args)
    result = trained(recipe, run, args)
    curve = {r["step"]: r["validation_accuracy"] for r in result.rows if "validation_nll" in r}
    found = {"steps": result.steps, "seconds side by side": result.seconds, "curve": curve}
    objective = open_objective(recipe)
    objective.encode(result.run.tokenizer, lambda line: None)
    tests = TESTS if name != "full" else ("full",)
    tested = {str(n): tested_with(result.run.model, n, objective, args.device) for n in tests}
    return {**found, "accuracy": tested}


def tested_with(model: Any, hashes: int | str, objective: Any, device: str) -> float:
    """How much of the second halves is right, with so many hashes in every layer."""
    tree, weights = model.config, model.state_dict()
    if isinstance(hashes, int):
        blocks = tuple(_hashed(block, hashes) for block in tree.decoder.blocks)
        tree = replace(tree, decoder=replace(tree.decoder, blocks=blocks))
    model = af.build(tree, device=device)
    model.load_state_dict(weights)
    torch.manual_seed(0)
    settings = objective.recipe.train
    dtype = find_precision(settings.precision, torch.device(device)).dtype
    tokens = settings.batch_tokens // 4  # eight rounds at once need more room
    found = validate(
        objective, model.eval(), objective.validation, batch_tokens=tokens, dtype=dtype
    )
    return found["accuracy"]


def _hashed(block: Any, hashes: int) -> Any:
    mixer = block.attention.mixer
    assert isinstance(mixer, LSH)
    changed = replace(mixer, hashes=hashes)
    return replace(block, attention=replace(block.attention, mixer=changed))


def shown(results: dict[str, Any]) -> str:
    """As the paper's table; full attention by itself."""
    rows, said = [], []
    for name, result in results.items():
        if "error" in result:
            said.append(f"{name}: {result['error']}; so far {result['so far']}")
        elif name == "full":
            said.append(f"full attention: {100 * result['accuracy']['full']:.2f} %")
        else:
            cells = [f"{100 * result['accuracy'][str(n)]:.2f}" for n in TESTS]
            rows.append([f"{name} hash{'es' if name != '1' else ''}", *cells])
    head = ["trained with", *(f"{n} hash{'es' if n > 1 else ''}" for n in TESTS)]
    return "\n".join([table(head, rows), *said])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/duplicates-bench"))
    parser.add_argument("--only", default="full,4,2,1", help="hashes in training, and full")
    parser.add_argument("--length", type=int, default=511, help="of w")
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--minutes", type=float, default=60, help="then what runs is stopped")
    add_arguments(parser)
    args = parser.parse_args()
    args.out = args.out.absolute()
    if args.one:
        write_result(args.result, one(args.one, args))
        return
    own = ["--out", args.out, "--length", args.length, "--chunk", args.chunk]
    own += ["--steps", args.steps, "--device", args.device]
    own += (["--compile"] if args.compile else []) + [f"--set={change}" for change in args.set]
    commands = {
        name: [sys.executable, __file__, "--one", name, *map(str, own)]
        for name in args.only.split(",")
    }
    results = side_by_side(commands, args.out, args.minutes)
    print(f"w of {args.length} (rows of {2 * args.length + 2}), {args.steps} steps, in %")
    print(shown(results))
    write_result(args.result, {"length": args.length, "steps": args.steps, "trained": results})


if __name__ == "__main__":
    main()
