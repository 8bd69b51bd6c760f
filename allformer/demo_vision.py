"""The demo of models that see: on drawn shapes, without a download, several are trained, and one
page shows what they learned.

result = demo_vision("demo-vision")      # trains, then writes demo-vision/report.html

Each stage is a recipe like any other and leaves a run like any other: `STAGES` are its data.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from allformer.data.pictures.shapes import write_shapes
from allformer.data.shapes import KINDS
from allformer.demo_room import Demo, make_room
from allformer.explain.several import Part, write_several
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
_FOUR = ", ".join(KINDS[:4])
# One or two shapes of four kinds, so that a minute is enough.
_SCENES = {"side": 32, "most": 2, "kinds": 4}
_PLAIN = {"side": 24, "kinds": 4, "plain": True}


def _recipe(
    objective: Any, model: dict[str, Any], rate: float, steps: int, rows: int, **more: Any
) -> dict[str, Any]:
    """What the stages' recipes have in common."""
    return {
        "objective": objective,
        "model": model,
        "optim": {"name": "adamw", "rate": rate, "weight_decay": 0.02},
        "schedule": {"kind": "cosine", "warmup": 50},
        "train": {**_FAST, "steps": steps, "batch_rows": rows, "validate_every": steps // 4},
        "log": _LOG,
        **more,
    }


def _sizes(dim: int, **more: Any) -> dict[str, Any]:
    return {"dim": dim, "heads": 4, "layers": 3, "feed": 2 * dim, "dropout": 0.0, **more}


STAGES = (
    Stage(
        "classifier",
        ("Classify", "分类"),
        ("It tells eight shapes apart", "它能分辨八种形状"),
        (
            "A small ViT is shown one shape at a time, anywhere, of any colour, a little turned, "
            f"and says which it is: {', '.join(KINDS)}.",
            "一个小小的 ViT 每次看一个形状，位置、颜色任意，略有旋转，然后说出它是哪一种。",
        ),
        {"train": 6000, "val": 400, "side": 32},
        _recipe("image-classification", _sizes(96, patch=8), 2e-3, 900, 64),
        {"classify-image": "allformer classify-image {run} picture.png"},
    ),
    Stage(
        "detector",
        ("Detect", "检测"),
        ("It finds shapes and draws boxes around them", "它能找出形状并画框"),
        (
            "The same kind of encoder with four tokens more, each of which may find one thing "
            f"(YOLOS): what it is and where it lies. Kinds: {_FOUR}.",
            "同样的编码器，再加四个词元，每个可以找到一个物体（YOLOS）：是什么，在哪里。",
        ),
        {"train": 4000, "val": 150, **_SCENES},
        _recipe({"is": "detection", "queries": 4}, _sizes(96, patch=8), 1e-3, 1400, 48),
        {"detect": "allformer detect {run} picture.png --threshold 0.5 --out found"},
    ),
    Stage(
        "segmenter",
        ("Segment", "分割"),
        ("It says what each pixel belongs to", "它能说出每个像素属于什么"),
        (
            "Smaller patches, and a linear layer that gives each pixel of a patch a class. Kinds: "
            f"{_FOUR}, or background.",
            "图块更小，最后一个线性层给图块里的每个像素一个类别，或归为背景。",
        ),
        {"train": 2500, "val": 150, **_SCENES},
        _recipe("segmentation", _sizes(64, patch=4), 3e-3, 600, 32),
        {"segment": "allformer segment {run} picture.png --out seen"},
    ),
    Stage(
        "codec",
        ("Codec", "编解码"),
        ("A codec writes pictures as tokens", "一个编解码器把图片写成词元"),
        (
            "Before a Transformer can draw, a picture must be a sequence: 24 × 24 pixels become "
            "6 × 6 tokens out of 64, and a picture again (VQ-VAE).",
            "Transformer 要画图，图片先得变成序列：24 × 24 像素变成 6 × 6 个词元（共 64 种），"
            "再还原成图片（VQ-VAE）。",
        ),
        {"train": 2000, "val": 100, **_PLAIN},
        _recipe(
            {"is": "image-codec", "codes": "nearest"},
            {
                "is": "VQVAE",
                "codes": 64,
                "image": [24, 24],
                "hidden": 16,
                "groups": 3,
                "per_group": 1,
                "start": 32,
                "dim": 16,
            },
            4e-3,
            500,
            32,
        ),
        {},
    ),
    Stage(
        "painter",
        ("Draw", "画图"),
        ("It draws what a caption says", "它按文字画图"),
        (
            "A decoder reads a caption, in English or in Chinese, and goes on with the tokens of a "
            "picture, one by one; the codec paints them (DALL-E).",
            "解码器读一句英文或中文说明，接着逐个写出图片的词元，再由编解码器画出来（DALL-E）。",
        ),
        {"train": 2000, "val": 100, **_PLAIN},
        _recipe(
            {"is": "text-to-image", "codec": "{out}/codec"},
            _sizes(96),
            3e-3,
            500,
            32,
            data={"text": 16},
            tokenizer={"kind": "bpe", "vocab": 200},
        ),
        {"draw": 'allformer draw {run} "a red star" "一个蓝色的圆形"'},
    ),
)


def demo_vision(
    out: str | Path = "demo-vision",
    *,
    overrides: tuple[str, ...] = (),
    device: str = "cpu",
    say: Callable[[str], None] = print,
    stages: Sequence[Stage] = STAGES,
) -> Demo:
    """Train each stage, then write one page of all; `overrides` are for each stage's recipe."""
    out = Path(out)
    check_directory(out)
    with told(out, "give another --out"):
        make_room(out, MARK)
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
    return Demo(out, page, scores, time.monotonic() - begin)


def _trained(
    stage: Stage, number: int, out: Path, overrides: tuple[str, ...], device: str, say: Any
) -> Part:
    """One stage: its data said, its model trained, its own page written."""
    say(f"\n{number + 1}. {stage.title[0]}　{stage.title[1]}")
    raw = _placed(stage.recipe, out)
    file = write_shapes(out / f"{stage.name}-shapes.json", seed=number, **stage.data)
    raw["name"] = f"vision demo: {stage.name}"
    raw["data"] = {"path": str(file), **raw.get("data", {})}
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


def _placed(said: Any, out: Path) -> Any:
    """A recipe of one's own, `{out}` in its texts being the directory."""
    if isinstance(said, dict):
        return {key: _placed(value, out) for key, value in said.items()}
    if isinstance(said, list):
        return [_placed(value, out) for value in said]
    return said.replace("{out}", str(out)) if isinstance(said, str) else said


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
