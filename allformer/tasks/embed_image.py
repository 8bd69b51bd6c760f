"""`embed_image`: images as vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer import config
from allformer.errors import ConfigError
from allformer.images.processor import WORKERS
from allformer.images.read import Image
from allformer.tasks.image_pipeline import (
    BATCH,
    ImagePipeline,
    ImageSource,
    as_image_pipeline,
    as_images,
)

POOLINGS = ("cls", "mean")


def embed_image(
    pipeline: ImageSource,
    images: Image | Sequence[Image],
    *,
    pooling: str | None = None,
    normalise: bool = False,
    batch: int = BATCH,
    workers: int = WORKERS,
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """The vectors of images, images × dim (of one image: dim), fp32 on the CPU.

    >>> embed_image("facebook/dinov2-small", ["cat.jpg", "dog.png"]).shape
    torch.Size([2, 384])

    A CLIP gives the vectors that its texts are compared with, of length 1. Any other model gives
    the last state of `[CLS]`, or the mean of its patches where it has none; `pooling` ("cls",
    "mean") chooses. `normalise`: to length 1.
    """
    if pooling is not None and pooling not in POOLINGS:
        raise ConfigError(f"pooling={pooling!r} is not known; try {', '.join(POOLINGS)}")
    pipeline = as_image_pipeline(pipeline)
    vectors = _how(pipeline, pooling)
    many, one = as_images(images)
    found = []
    for pixels in pipeline.batches(many, batch, workers, progress):
        with torch.inference_mode():
            x = vectors(pixels).float()
            found.append((F.normalize(x, dim=-1) if normalise else x).cpu().clone())
    if not found:
        return torch.empty(0, 0)
    out = torch.cat(found)
    return out[0] if one else out


def _how(pipeline: ImagePipeline, pooling: str | None) -> Callable[[Tensor], Tensor]:
    """pixel_values → B dim."""
    model, tree = pipeline.model, pipeline.model.config
    head: Any = tree.head.image if isinstance(tree, config.TwoTowers) else tree.head
    if pooling is None and isinstance(head, config.VectorHead):
        alone = head.width is None and not isinstance(tree, config.TwoTowers)
        name = "pooler_output" if alone else head.output
        return lambda pixels: model(pixel_values=pixels)[name]
    source = tree.writer.source
    first, patches = False, slice(None)  # of pixels none stands for all
    if isinstance(source, config.Patches):
        first, patches = source.cls, source.patches
    if pooling == "cls" and not first:
        raise ConfigError(f"pooling='cls', but {pipeline.architecture} has no [CLS]; try 'mean'")
    first = first and pooling != "mean"

    def pooled(pixels: Tensor) -> Tensor:
        states = model.states(**pipeline.inputs(pixels))
        x = list(states.values())[-1]  # B F+N dim
        return x[:, 0] if first else x[:, patches].mean(1)

    return pooled
