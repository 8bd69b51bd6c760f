"""CLIP encodes images from files: how fast they are read, how fast the model is, who waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import allformer as af
from allformer import config
from allformer.core.graph import Captured, on_side_stream
from allformer.images import Processor
from allformer.images.in_order import in_order, usable_cores
from allformer.images.processor import WORKERS
from allformer.images.settings import make_settings
from allformer.tasks.image_pipeline import ImagePipeline

SIZES = ((224, 224), (320, 240), (375, 500), (500, 333), (500, 375))  # as small photographs have
DIFFERENT = 160  # files; more are read again, from memory


def make_pictures(folder: Path, count: int) -> list[str]:
    """JPEGs of the sizes above: smooth colours and noise, at quality 90 (16 to 60 kB)."""
    from PIL import Image

    folder.mkdir(parents=True)

    def make(i: int) -> str:
        random = np.random.default_rng(i)
        width, height = SIZES[i % len(SIZES)]
        coarse = random.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((width, height), 3), dtype=np.float32)
        noisy = smooth + random.normal(0, 6, smooth.shape)
        path = folder / f"{i}.jpg"
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)
        return str(path)

    made = list(in_order(make, range(min(count, DIFFERENT)), usable_cores()))
    return [made[i % len(made)] for i in range(count)]


def pipeline_of(args: Any) -> ImagePipeline:
    """CLIP ViT-B/32 with fresh weights, as `open_image_pipeline` would give it."""
    tree: Any = af.preset("clip-vit-base-patch32")
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    if args.tiny:
        from dataclasses import replace

        towers = {n: replace(x, blocks=x.blocks[:1]) for n, x in tree.stacks.items()}
        tree = replace(tree, **towers)
    assert isinstance(tree, config.TwoTowers)
    model = af.build(tree, seed=0, device=args.device).to(dtype).eval()
    processor = Processor(make_settings({"image_processor_type": "CLIPImageProcessor"}))
    return ImagePipeline(model, processor, Path("clip-vit-base-patch32"))


def encode_speeds(paths: list[str], args: Any) -> dict[str, Any]:
    """Of each size of a batch: images a second read and prepared on the device, through the model
    (a batch that is there), and from file to vector; the share in which the GPU waits."""
    pipeline = pipeline_of(args)
    workers = args.workers or WORKERS
    rows = []
    for batch in (min(n, len(paths)) for n in (32, 256)):
        af.embed_image(pipeline, paths[:batch], batch=batch)  # libraries, threads
        encode = _encoder(pipeline, next(pipeline.batches(paths[:batch], batch, workers)))
        whole = paths[: len(paths) // batch * batch]
        works: dict[str, Callable[[], Any]] = {
            "read": partial(_read, pipeline, whole, batch, workers),
            "model": lambda: [encode() for _ in range(len(whole) // batch)],  # noqa: B023
            "files to vectors": partial(
                af.embed_image, pipeline, whole, batch=batch, workers=workers
            ),
        }
        row = {
            name: len(whole) / min(_seconds(work) for _ in range(2)) for name, work in works.items()
        }
        rows.append({"batch": batch, **row})
        rows[-1]["GPU waits"] = 1 - row["files to vectors"] / row["model"]
        rows[-1]["of reading alone"] = row["files to vectors"] / row["read"]
    return {"rows": rows, "threads": workers, "cores": usable_cores(), "files": len(paths)}


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _read(pipeline: ImagePipeline, paths: list[str], batch: int, workers: int) -> None:
    for _ in pipeline.batches(paths, batch, workers):
        pass


def _encoder(pipeline: ImagePipeline, pixels: Tensor) -> Callable[[], Any]:
    """The model on one batch; on a GPU captured: the GPU's time, not the host's."""
    model: Any = pipeline.model

    def run() -> Any:
        with torch.inference_mode():
            return model(pixel_values=pixels)

    if not pixels.is_cuda:
        return run
    on_side_stream(run)
    return Captured(run).replay
