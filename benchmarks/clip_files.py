"""CLIP encodes images from files: how fast they are read, how fast the model is, who waits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import allformer as af
from allformer import config
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
    (batches that are there), and from file to vector; the share in which the GPU waits."""
    pipeline = pipeline_of(args)
    workers = args.workers or WORKERS
    rows = []
    for batch in (32, 256):
        batch = min(batch, len(paths))
        af.embed_image(pipeline, paths[:batch], batch=batch)  # libraries, threads
        reading, model, both = (
            max(_speeds(kind, pipeline, paths, batch, workers))
            for kind in ("reading", "model", "both")
        )
        rows.append({"batch": batch, "read": reading, "model": model, "files to vectors": both})
        rows[-1] |= {"GPU waits": 1 - both / model, "of reading": both / reading}
    return {"rows": rows, "threads": workers, "cores": usable_cores(), "files": len(paths)}


def _speeds(
    kind: str, pipeline: ImagePipeline, paths: list[str], batch: int, workers: int
) -> list[float]:
    """Images a second, twice."""
    found = []
    pixels = next(pipeline.batches(paths[:batch], batch, workers))
    for _ in range(2):
        begin = time.perf_counter()
        if kind == "both":
            af.embed_image(pipeline, paths, batch=batch, workers=workers)
        elif kind == "reading":
            for _ in pipeline.batches(paths, batch, workers):
                pass
        else:
            _encode(pipeline, pixels, len(paths) // batch)
        if pixels.is_cuda:
            torch.cuda.synchronize()
        count = len(paths) // batch * batch if kind == "model" else len(paths)
        found.append(count / (time.perf_counter() - begin))
    return found


def _encode(pipeline: ImagePipeline, pixels: Tensor, times: int) -> None:
    """Launched once, the rest replayed where that is possible: the GPU alone, not the host."""
    model: Any = pipeline.model
    with torch.inference_mode():
        if not pixels.is_cuda:
            for _ in range(times):
                model(pixel_values=pixels)
            return
        from allformer.core.graph import Captured, on_side_stream

        on_side_stream(lambda: model(pixel_values=pixels))
        graph = Captured(lambda: model(pixel_values=pixels))
        torch.cuda.synchronize()
        for _ in range(times):
            graph.replay()
