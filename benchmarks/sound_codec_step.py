"""How long a training step of the sound codec takes, and what of it are its judges, LSTM and books.

    python benchmarks/sound_codec_step.py                      # a GPU if there is one
    python benchmarks/sound_codec_step.py --only recipe,former --steps 40

Each row changes one thing of the recipe; the sounds are noise, so no data is needed. Steps are
captured as graphs where the training loop would capture them. Milliseconds are medians of blocks;
a row whose judges sit in every second step has its two kinds of step side by side.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

import allformer as af
from allformer.core.precision import pick_device
from allformer.sound import write
from allformer.train.batch import keyed
from allformer.train.objectives.sound_codec import SoundCodec
from allformer.train.recipe import read_recipe
from allformer.train.step import Stepper, StepSettings

RECIPE = Path(__file__).parents[1] / "recipes" / "spoken-digits-codec.yaml"
FEW = ["model.change.bandwidths=[0.45, 2.7]", "objective.books=[1, 6]"]


class Row(NamedTuple):
    """What is not the recipe's; of judges, windows and width."""

    changes: list[str]
    windows: tuple[int, ...] = (512, 256, 128)
    width: int = 16


ROWS = {
    "recipe": Row([]),
    "eager": Row([]),
    "no LSTM": Row(["model.change.trunk.lstm=0"]),
    "6 books": Row(FEW),
    "judges of 32": Row([], width=32),
    "former": Row(["model.change.trunk.lstm=2", *FEW], (1024, 512, 256, 128), 32),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", help="rows, with commas between")
    parser.add_argument("--steps", type=int, default=20, help="of a block")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--rows", type=int, default=64, help="crops of a batch")
    parser.add_argument("--device")
    args = parser.parse_args()
    device = pick_device(args.device)
    chosen = list(ROWS) if args.only is None else args.only.split(",")
    print(f"{'':<14} {'without judges':>15} {'with judges':>12}   ms a step, {device.type}")
    with TemporaryDirectory() as folder:
        chance = np.random.default_rng(0)
        for i in range(args.rows):
            sound = torch.from_numpy(0.1 * chance.normal(size=4000)).float()
            write(Path(folder) / f"{i}.wav", sound, 8000)
        for name in chosen:
            told = [measured(name, folder, device, sits, args) for sits in (False, True)]
            print(f"{name:<14} {told[0]:>15.2f} {told[1]:>12.2f}", flush=True)


def measured(
    name: str, folder: str, device: torch.device, sits: bool, args: argparse.Namespace
) -> float:
    """Milliseconds of a step, with or without the judges."""
    row = ROWS[name]
    judges = {"windows": list(row.windows), "width": row.width, "after": 0 if sits else 1_000_000}
    given = [f"data.path={folder}", "data.hold_out=1", f"objective.judges={judges}",
             f"train.batch_rows={args.rows}"]  # fmt: skip
    objective = SoundCodec(read_recipe(RECIPE, [*row.changes, *given]))
    objective.open()
    objective.encode(None, lambda line: None)
    model: Any = af.build(objective.config(None), seed=0).to(device).train()
    graphs = device.type == "cuda" and name != "eager"
    precision = "bf16" if device.type == "cuda" else "fp32"
    settings = StepSettings(objective.recipe.optim, 0.0, precision=precision, compile=graphs)
    stepper, frame = Stepper(model, objective, settings), objective.frame()
    crops = objective.examples(0)
    batch = keyed(objective.collate(crops, np.arange(len(crops))[: args.rows], frame), 0, 0)
    step, each = 0, []
    for block in range(args.blocks + 1):
        begin = time.perf_counter()
        for _ in range(args.steps):
            step += 1
            objective.at(step)
            stepper([objective.onto(batch, device)], 1e-5)
        if device.type == "cuda":
            torch.cuda.synchronize()
        if block:  # the first one compiles nothing, but captures
            each.append((time.perf_counter() - begin) / args.steps)
    return 1000 * statistics.median(each)


if __name__ == "__main__":
    main()
