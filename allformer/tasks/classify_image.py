"""`classify_image`: which class an image belongs to, of those taught or of any in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from allformer import config
from allformer.core.precision import widen
from allformer.core.two_towers import TwoTowersModel
from allformer.errors import ConfigError
from allformer.images.processor import WORKERS
from allformer.images.read import Image
from allformer.tasks.classify import class_scores
from allformer.tasks.image_pipeline import (
    BATCH,
    ImagePipeline,
    ImageSource,
    as_image_pipeline,
    as_images,
)
from allformer.tasks.image_text import text_vectors
from allformer.tasks.result import Label

TEMPLATE = "This is a photo of {}."  # transformers' pipeline puts a label so


def classify_image(
    pipeline: ImageSource,
    images: Image | Sequence[Image],
    *,
    labels: Sequence[str] | None = None,
    template: str = TEMPLATE,
    top: int | None = None,
    batch: int = BATCH,
    workers: int = WORKERS,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """The likeliest label of each image; with `top`, so many, likeliest first.

    >>> classify_image("google/vit-base-patch16-224", "cat.jpg")
    Label(label='Egyptian cat', score=0.94)
    >>> classify_image("openai/clip-vit-base-patch32", "cat.jpg", labels=["a cat", "a dog"], top=2)
    [Label(label='a cat', score=0.99), Label(label='a dog', score=0.01)]

    An image is a path, bytes, an array or a Pillow image. `labels` are for a CLIP, which was taught
    none: each is put into the `template`, and the scores are a softmax over them. One image gives
    one result, a list a list. `workers` threads read ahead; `progress` hears how many are done.
    """
    if top is not None and top < 1:
        raise ConfigError(f"top={top} must be at least 1: so many labels are given")
    pipeline = as_image_pipeline(pipeline)
    many, one = as_images(images)
    names, score = _taught(pipeline) if labels is None else _asked(pipeline, labels, template)
    found: list[Any] = []
    for pixels in pipeline.batches(many, batch, workers, progress):
        with torch.inference_mode():
            rows = score(pixels).tolist()
        for row in rows:
            ranked = sorted(zip(row, names, strict=True), key=lambda pair: -pair[0])
            best = [Label(name, value) for value, name in ranked[: top or 1]]
            found.append(best[0] if top is None else best)
    return found[0] if one else found


def _taught(pipeline: ImagePipeline) -> tuple[Sequence[str], Callable[[Tensor], Tensor]]:
    """The head's labels, and how they score."""
    pipeline.need("classify-image", "a classification head (or a CLIP, and labels)")
    head = pipeline.model.config.head
    assert isinstance(head, config.ClassHead | config.TeacherHead)
    model, inputs = pipeline.model, pipeline.inputs

    # An encoder need not give its states; ImageGPT is none.
    less = {"states": False} if isinstance(model.config, config.EncoderOnly) else {}

    def score(prepared: Tensor) -> Tensor:
        return class_scores(widen(model(**inputs(prepared), **less).logits), head)

    return head.labels, score


def _asked(
    pipeline: ImagePipeline, labels: Sequence[str], template: str
) -> tuple[Sequence[str], Callable[[Tensor], Tensor]]:
    """The caller's labels; their texts are read once."""
    pipeline.need("classify-image --labels", "a model of texts and images (CLIP)")
    names = [labels] if isinstance(labels, str) else list(labels)
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ConfigError(f"labels={names!r} must be one or more texts; try ['a cat', 'a dog']")
    if "{}" not in template:
        raise ConfigError(
            f"template={template!r} has no {{}}, where a label goes; try {TEMPLATE!r}"
        )
    texts = text_vectors(pipeline, [template.replace("{}", name) for name in names])
    model = pipeline.model
    assert isinstance(model, TwoTowersModel)

    def score(pixels: Tensor) -> Tensor:
        images = model(pixel_values=pixels)[model.config.head.image.output]
        logits = widen(model.head.compare(texts, images)["logits_per_image"])
        return logits.softmax(-1) if model.head.bias is None else logits.sigmoid()  # SigLIP's

    return names, score
