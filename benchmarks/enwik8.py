"""enwik8: Transformer-XL against the same model without memory, and longer memories in evaluation.

    python benchmarks/enwik8.py --data enwik8                    # a folder with enwik8 or enwik8.gz
    python benchmarks/enwik8.py --data part --steps 3000         # or with train.txt and valid.txt

recipes/enwik8-xl.yaml and recipes/enwik8-plain.yaml: the same parameters, steps and bytes, trained
side by side, a process each. Then the first --bytes of the validation part are said by each: with
memories of 0 … 2,048 bytes by the one; by the other in segments side by side, and with windows that
overlap by half, so that a byte has at least half a segment before it. Bits for each byte.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from side_by_side import add_arguments, side_by_side, table, trained, write_result

from allformer.evaluate.windows import text_nll
from allformer.train.loop import open_objective
from allformer.train.precision import find_precision
from allformer.train.recipe import read_recipe
from allformer.train.validate import validate

RECIPES = Path(__file__).parents[1] / "recipes"
NAMES = ("xl", "plain")
MEMORIES = (0, 256, 512, 1024, 2048)


def recipe_of(name: str, args: Any) -> Any:
    """With the data, and perhaps fewer steps."""
    sets = [f"data.path={args.data}", "log.tensorboard=false", *args.set]
    if args.steps:
        sets += [f"train.steps={args.steps}", f"train.save_every={args.steps}"]
        sets += [f"train.validate_every={args.steps}"]
    return read_recipe(RECIPES / f"enwik8-{name}.yaml", sets)


def shortened(args: Any) -> Path:
    """A folder with train.txt and no more than --bytes to validate on, whatever --data holds."""
    from allformer.data.public_text import open_public

    splits = open_public("enwik8", args.data, cache=args.out / "cache")
    folder: Path = args.out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in (("train", splits.train), ("valid", splits.validation)):
        assert records is not None
        content = "".join(record["text"] for record in records).encode()
        if name == "valid":
            content = content[: args.bytes]
        (folder / f"{name}.txt").write_bytes(content.decode("utf-8", "ignore").encode())
    return folder


def one(name: str, args: Any) -> dict[str, Any]:
    """Train, then say the validation bytes with each memory."""
    run = args.out / f"run-{name}"
    recipe = recipe_of(name, args)
    result = trained(recipe, run, args)
    model = result.run.model.eval()
    last = next(row for row in reversed(result.rows) if "validation_nll" in row)
    found: dict[str, Any] = {
        "steps": result.steps,
        "seconds side by side": result.seconds,
        "parameters": sum(p.numel() for p in model.parameters()),
        "as trained": last["validation_bits_per_byte"],
        "curve": {r["step"]: r["nll"] / math.log(2) for r in result.rows if "nll" in r},
    }
    if name == "xl":
        found["by memory"] = {m: with_memory(model, m, recipe, result, args) for m in MEMORIES}
    else:
        found["overlapping"] = overlapping(model, recipe, result)
    return found


def with_memory(model: Any, memory: int, recipe: Any, result: Any, args: Any) -> float:
    """Bits per byte, so many bytes remembered."""
    recipe = replace(recipe, options=replace(recipe.options, memory=memory))
    objective = open_objective(recipe)
    objective.encode(result.run.tokenizer, lambda line: None)
    dtype = find_precision(recipe.train.precision, torch.device(args.device)).dtype
    tokens = recipe.train.batch_tokens
    found = validate(objective, model, objective.validation, batch_tokens=tokens, dtype=dtype)
    return found["bits_per_byte"]


def overlapping(model: Any, recipe: Any, result: Any) -> float:
    """Bits per byte, each with at least half a segment before it."""
    text = (Path(recipe.data.path) / "valid.txt").read_text(encoding="utf-8")
    objective = open_objective(recipe)
    objective.encode(result.run.tokenizer, lambda line: None)
    ids = objective.encoded.validation["ids"][0].tolist()
    length = recipe.data.max_length
    nll = text_nll(
        model, ids, length=length, stride=length // 2, batch_tokens=recipe.train.batch_tokens
    )
    return float(nll.sum()) / math.log(2) / len(text.encode())


def shown(results: dict[str, Any]) -> str:
    """One line each; what failed says why below."""
    xl, plain = (results[name] for name in NAMES)
    rows = []
    if "error" not in plain:
        rows.append(["without memory, segments side by side", f"{plain['as trained']:.4f}"])
        rows.append(["without memory, overlapping by half", f"{plain['overlapping']:.4f}"])
    if "error" not in xl:
        rows += [[f"memory of {m}", f"{bits:.4f}"] for m, bits in xl["by memory"].items()]
    failed = [f"{name}: {results[name]['error']}" for name in NAMES if "error" in results[name]]
    return "\n".join([table(["evaluated", "bits per byte"], rows), *failed])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/enwik8-bench"))
    parser.add_argument("--steps", type=int, help="instead of the recipes' own")
    parser.add_argument("--bytes", type=int, default=1_000_000, help="to validate on")
    parser.add_argument("--minutes", type=float, default=600, help="then what runs is stopped")
    add_arguments(parser, "both recipes")
    args = parser.parse_args()
    args.data, args.out = args.data.absolute(), args.out.absolute()
    if args.one:
        write_result(args.result, one(args.one, args))
        return
    own = ["--data", shortened(args), "--out", args.out, "--device", args.device]
    own += (["--compile"] if args.compile else []) + [f"--set={change}" for change in args.set]
    own += ["--steps", args.steps] if args.steps else []
    commands = {name: [sys.executable, __file__, "--one", name, *map(str, own)] for name in NAMES}
    results = side_by_side(commands, args.out, args.minutes)
    print(shown(results))
    write_result(args.result, {"bytes": args.bytes, "trained": results})


if __name__ == "__main__":
    main()
