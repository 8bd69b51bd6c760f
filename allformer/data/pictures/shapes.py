"""Drawn shapes as a set of pictures: a file says how many and which.

shapes.json: {"train": 2000, "val": 200, "side": 32, "most": 1, "kinds": 8, "seed": 0,
              "plain": false}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from allformer.data.pictures.open import SPLITS, reads
from allformer.data.pictures.picture import Array, Picture, Pictures
from allformer.data.shapes import KINDS, Shapes
from allformer.errors import DataError
from allformer.json_file import read_object

FILE = "shapes.json"
USUAL: dict[str, Any] = {"side": 32, "most": 1, "kinds": len(KINDS), "seed": 0, "plain": False}


class DrawnShapes:
    """`DrawnShapes(Shapes(500))`: pictures with label, boxes, masks and captions."""

    def __init__(self, shapes: Shapes) -> None:
        self.labels = KINDS[: shapes.kinds]
        self.drawings = list(shapes)
        self.pixels: Array | None = np.stack([one.pixels for one in self.drawings])

    def __len__(self) -> int:
        return len(self.drawings)

    def __getitem__(self, index: int) -> Picture:
        one = self.drawings[index]
        return Picture(
            one.pixels,
            int(one.labels[0]) if len(one.labels) == 1 else None,
            one.boxes.astype(np.float32),
            one.labels,
            one.masks,
            (one.caption(), one.caption("zh")),
            f"shape {index}",
        )


def write_shapes(path: str | Path, *, train: int, val: int, **said: Any) -> Path:
    """`write_shapes("shapes.json", train=2000, val=200, side=32)`: data that a recipe can name."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"train": train, "val": val, **USUAL, **said}, indent=1) + "\n")
    return file


@reads("shapes", knows=lambda path: path.is_file() and path.name.endswith(FILE))
def read_shapes(path: Path) -> dict[str, Pictures]:
    """Its splits, drawn; no two of them have a picture in common."""
    said = read_object(path, DataError)
    counts = {name: said.pop(name) for name in SPLITS if name in said}
    odd = [name for name in said if name not in USUAL]
    wrong = [n for n, x in counts.items() if type(x) is not int]
    wrong += [n for n in said if n in USUAL and type(said[n]) is not type(USUAL[n])]
    if odd or wrong or not counts:
        told = f"{(odd + wrong)[0]!r} is not understood" if odd or wrong else "it has no split"
        raise DataError(f"{path}: {told}; it has {', '.join((*SPLITS, *USUAL))}, as in {EXAMPLE}")
    options = {**USUAL, **said}
    seed = options.pop("seed")
    return {
        name: DrawnShapes(Shapes(count, seed=seed * len(SPLITS) + SPLITS.index(name), **options))
        for name, count in counts.items()
    }


EXAMPLE = '{"train": 2000, "val": 200, "side": 32}'
