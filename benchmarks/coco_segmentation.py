"""Semantic segmentation on a handful of COCO images: what a ViT from scratch learns of a hundred.

    python benchmarks/coco_segmentation.py --data semantic_segmentation           # needs a GPU
    python benchmarks/coco_segmentation.py --data DIR --only linear --steps 20 --device cpu

--data is a folder with images, maps of classes as PNG and a YAML file that names them, with a train
and a val split (docs/vision.md, "Segmentation"). Each decoder is trained on the train split for
--steps, with the same encoder, and scored on the val split: mean IoU over the classes that are
there, by one confusion matrix over all pixels of all images at their own size, and the share of
pixels that are right. Who always says the commonest class of the training maps is the last row.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import allformer as af
from allformer.data.pictures import open_pictures
from allformer.data.pictures.areas import areas_of
from allformer.metrics.mean_iou import Agreement, confusion, iou
from allformer.train.loop import train
from allformer.train.recipe import make_recipe

DECODERS: dict[str, dict[str, Any]] = {
    "linear": {"decoder": "linear", "cells": 4},
    "mask": {"decoder": "mask", "layers": 2},
    "queries": {"decoder": "queries", "layers": 2, "queries": 50, "points": 1024},
}


def recipe(name: str, data: str, steps: int, side: int) -> Any:
    """The same encoder, another decoder."""
    return make_recipe(
        {
            "name": f"coco-{name}",
            "objective": {"is": "segmentation", **DECODERS[name]},
            "data": {
                "path": data,
                "image": [side, side],
                "augment": {"flip": 0.5, "zoom": [0.5, 2.0]},
            },
            "model": {
                "patch": 16,
                "dim": 192,
                "heads": 3,
                "feed": 768,
                "layers": 8,
                "dropout": 0.1,
            },
            "optim": {"name": "adamw", "rate": 5e-4, "weight_decay": 0.05, "clip": 1.0},
            "schedule": {"kind": "cosine", "warmup": max(1, steps // 20), "floor": 0.01},
            "train": {
                "steps": steps,
                "batch_rows": 32,
                "validate_every": steps,
                "save_every": steps,
                "average": 1,
            },
            "log": {"every": max(1, steps // 5), "tensorboard": False},
        }
    )


def score(run: Path, data: str, device: str | None) -> Agreement:
    """On the val split, at the images' own sizes."""
    pictures = open_pictures(data, "maps")["val"]
    pipeline = af.open_image_pipeline(run, device=device)
    labels = pipeline.model.config.head.labels  # type: ignore[union-attr]
    number = [labels.index(name) for name in pictures.labels]
    paths = [pictures[i].image for i in range(len(pictures))]
    total = torch.zeros(len(labels), len(labels), dtype=torch.long)
    for i, found in enumerate(af.segment(pipeline, paths, task="semantic")):
        areas = areas_of(pictures[i])
        wanted = np.array([*number, -1])[areas.labelled()]
        total += confusion(torch.from_numpy(found.ids), torch.from_numpy(wanted), len(labels))
    return iou(total)


def commonest(data: str) -> Agreement:
    """Of one who always says the class that most training pixels have."""
    splits = open_pictures(data, "maps")
    count = len(splits["train"].labels)
    seen = torch.zeros(count, dtype=torch.long)
    for i in range(len(splits["train"])):
        maps = torch.from_numpy(areas_of(splits["train"][i]).labelled().astype(np.int64))
        seen += torch.bincount(maps[maps >= 0], minlength=count)
    total = torch.zeros(count, count, dtype=torch.long)
    for i in range(len(splits["val"])):
        maps = torch.from_numpy(areas_of(splits["val"][i]).labelled().astype(np.int64))
        total += confusion(torch.full_like(maps, int(seen.argmax())), maps, count)
    return iou(total)


def main() -> None:
    """Train, score, print a table and perhaps a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--only", default=",".join(DECODERS), help="decoders, commas between")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--side", type=int, default=256, help="pixels that images are resized to")
    parser.add_argument("--device", default=None)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in asked.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            made = recipe(name, asked.data, asked.steps, asked.side)
            train(made, Path(folder) / "run", device=asked.device)
            seconds = time.perf_counter() - begun
            found = score(Path(folder) / "run", asked.data, asked.device)
        rows.append({"decoder": name, "mean_iou": found.mean, "pixels": found.accuracy,
                     "seconds": seconds})  # fmt: skip
    least = commonest(asked.data)
    rows.append({"decoder": "commonest class", "mean_iou": least.mean, "pixels": least.accuracy})
    print(f"{'decoder':<16} {'mean IoU':>9} {'pixels':>8} {'seconds':>8}")
    for row in rows:
        spent = f"{row['seconds']:8.0f}" if "seconds" in row else " " * 8
        print(f"{row['decoder']:<16} {row['mean_iou']:9.4f} {row['pixels']:8.4f} {spent}")
    if asked.json:
        where = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        print(json.dumps({"steps": asked.steps, "side": asked.side, "device": where, "rows": rows}))


if __name__ == "__main__":
    main()
