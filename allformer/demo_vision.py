"""The demo of models that see: on drawn shapes, without a download, several are trained, and one
page shows what they learned.

result = demo_vision("demo-vision")      # trains, then writes demo-vision/report.html

Each stage is a recipe like any other and leaves a run like any other: `STAGES` are its data.
"""

from __future__ import annotations

import copy
import json
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from allformer.data.pictures.shapes import write_shapes
from allformer.data.shapes import KINDS
from allformer.errors import CheckpointError
from allformer.explain.vision.several import Part, write_several
from allformer.explain.words import Pair
from allformer.images.processor import FILES, load_processor
from allformer.run_report import last_figures, report_run
from allformer.train.loop import train
from allformer.train.metrics import read_metrics
from allformer.train.outputs import check_directory, told
from allformer.train.predictions import Predictions
from allformer.train.recipe import make_recipe
from allformer.version import __version__

MARK = "vision-demo.json"  # what a directory of ours is known by


@dataclass(frozen=True)
class Stage:
    """One thing to learn: its words, its data (of `write_shapes`) and its recipe."""

    name: str
    nav: Pair
    title: Pair
    lead: Pair
    data: dict[str, Any]
    recipe: dict[str, Any]
    use: dict[str, str]  # commands by their names; {run} is its directory


_FAST = {"precision": "fp32", "save_every": 100_000, "average": 1}
_LOG = {"every": 20, "tensorboard": False}

STAGES = (
    Stage(
        "classifier",
        ("Classify", "分类"),
        ("It tells eight shapes apart", "它能分辨八种形状"),
        (
            f"A small ViT is shown one shape at a time, anywhere, of any colour, a little turned, "
            f"and says which it is: {', '.join(KINDS)}.",
            "一个小小的 ViT 每次看一个形状，位置、颜色任意，略有旋转，然后说出它是哪一种。",
        ),
        {"train": 6000, "val": 400, "side": 32},
        {
            "objective": "image-classification",
            "model": {"patch": 8, "dim": 96, "heads": 4, "layers": 3, "feed": 192, "dropout": 0.0},
            "optim": {"name": "adamw", "rate": 2e-3, "weight_decay": 0.02},
            "schedule": {"kind": "cosine", "warmup": 50},
            "train": {"steps": 900, "batch_rows": 64, "validate_every": 200},
        },
        {"classify-image": "allformer classify-image {run} picture.png"},
    ),
)


@dataclass(frozen=True)
class VisionDemo:
    """Where the page is, and the figures of each stage on held-out pictures."""

    run: Path
    report: Path
    scores: dict[str, dict[str, float]]
    seconds: float


def demo_vision(
    out: str | Path = "demo-vision",
    *,
    overrides: tuple[str, ...] = (),
    device: str = "cpu",
    say: Callable[[str], None] = print,
    stages: Sequence[Stage] = STAGES,
) -> VisionDemo:
    """Train each stage, then write one page of all; `overrides` are for each stage's recipe."""
    out = Path(out)
    check_directory(out)
    with told(out, "give another --out"):
        _make_room(out)
        begin = time.monotonic()
        parts = [_trained(stage, i, out, overrides, device, say) for i, stage in enumerate(stages)]
        seconds = time.monotonic() - begin
        page = write_several(
            out / "report.html",
            title=(
                "Transformers learned to see, on drawn shapes",
                "Transformer 学会了看图（程序绘制的形状）",
            ),
            lead=(
                "No picture was downloaded: a few lines of code draw coloured shapes and know what "
                "they drew. All figures and examples are of pictures that were held out.",
                "没有下载任何图片：几行代码画出彩色形状，也就知道画的是什么。"
                "所有指标和示例都来自训练中没有用过的图片。",
            ),
            parts=parts,
            facts=_facts(stages, parts, out, seconds, device),
        )
    scores = {part.name: dict(part.scores) for part in parts}
    return VisionDemo(out, page, scores, time.monotonic() - begin)


def _trained(
    stage: Stage, number: int, out: Path, overrides: tuple[str, ...], device: str, say: Any
) -> Part:
    """One stage: its data said, its model trained, its own page written."""
    say(f"\n{number + 1}. {stage.title[0]}　{stage.title[1]}")
    raw = copy.deepcopy(stage.recipe)
    file = write_shapes(out / f"{stage.name}-shapes.json", seed=number, **stage.data)
    raw["name"] = f"vision demo: {stage.name}"
    raw["data"] = {"path": str(file), **raw.get("data", {})}
    raw["train"] = {**_FAST, **raw["train"]}
    raw["log"] = _LOG
    run = out / stage.name
    begin = time.monotonic()
    result = train(make_recipe(raw, overrides), run, device=device)
    seconds = time.monotonic() - begin
    report_run(run, device=device, say=lambda line: None)
    processor = load_processor(run) if any((run / name).is_file() for name in FILES) else None
    return Part(
        stage.name,
        stage.nav,
        stage.title,
        stage.lead,
        result.run.model,
        read_metrics(run),
        last_figures(read_metrics(run)),
        Predictions.load(run) or Predictions(),
        {"seconds": seconds, "steps": result.steps},
        processor,
        f"{stage.name}/report.html",
    )


def _make_room(out: Path) -> None:
    """Remove an earlier demo, and only that."""
    if out.exists() and any(out.iterdir()):
        if not (out / MARK).is_file():
            raise CheckpointError(f"{out} holds something else than this demo; give another --out")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).write_text(json.dumps({"allformer": __version__}) + "\n", encoding="utf-8")


def _facts(
    stages: Sequence[Stage], parts: Sequence[Part], out: Path, seconds: float, device: str
) -> dict[str, Any]:
    uses: dict[str, str] = {}
    for stage in stages:
        uses |= {name: line.format(run=out / stage.name) for name, line in stage.use.items()}
    return {
        "data": {
            "en": "drawn shapes, by seed and number (allformer/data/shapes.py)",
            "zh": "由种子和编号画出的形状（allformer/data/shapes.py）",
        },
        "seconds": seconds,
        "device": f"{device}, {torch.get_num_threads()} threads, {platform.machine()}",
        "command": f"allformer demo --vision --out {out}",
        "torch": torch.__version__,
        "allformer": __version__,
        "commands": uses
        | {"again": f"allformer train {out / parts[0].name / 'recipe.yaml'} --out runs/again"},
    }
