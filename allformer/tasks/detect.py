"""`detect`: which objects are on an image, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from allformer import config
from allformer.core.boxes import found
from allformer.errors import ConfigError
from allformer.images.in_order import in_order
from allformer.images.processor import WORKERS
from allformer.images.read import Image, read_image
from allformer.tasks.image_pipeline import ImagePipeline, ImageSource, as_image_pipeline, as_images
from allformer.tasks.result import Detected

BATCH = 8  # images that go together, if they are prepared to one size
THRESHOLD = 0.9  # as transformers' examples have it


def detect(
    pipeline: ImageSource,
    images: Image | Sequence[Image],
    *,
    threshold: float = THRESHOLD,
    batch: int = BATCH,
    workers: int = WORKERS,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """The objects of each image whose score is above the `threshold`, the surest first.

    >>> detect("hustvl/yolos-tiny", "cats.jpg")
    [Detected(label='cat', score=0.98, box=(13.2, 52.0, 317.6, 470.3)), …]

    A box is left, top, right and below, in pixels of the image. One image gives one list, a list of
    images a list of lists. Images that are prepared to one size go together, so that no image's
    answer depends on the others.
    """
    if not 0 <= threshold < 1:
        raise ConfigError(f"threshold={threshold} must be from 0 to 1, without 1; try 0.5")
    if batch < 1:
        raise ConfigError(f"batch={batch} must be at least 1: so many images go together")
    pipeline = as_image_pipeline(pipeline)
    pipeline.need("detect", "a head that finds objects (YOLOS, DETR)")
    many, one = as_images(images)
    answers: list[list[Detected]] = []
    for rows in _read(pipeline, many, batch, workers):
        answers += _answer(pipeline, rows, threshold)
        if progress is not None:
            progress(len(answers))
    return answers[0] if one else answers


Prepared = tuple[Tensor, tuple[int, int]]  # pixels C H W, and the image's own height and width


def _read(
    pipeline: ImagePipeline, images: Sequence[Image], batch: int, workers: int
) -> Iterator[list[Prepared]]:
    """Prepared images in order, read ahead."""

    def one(pair: tuple[int, Image]) -> Prepared:
        number, image = pair
        name = str(image) if isinstance(image, str) else f"image {number}"
        picture = read_image(image, mode=pipeline.processor.settings.mode, name=name)
        return pipeline.processor.one(picture, name), (picture.height, picture.width)

    stream = in_order(one, enumerate(images, 1), workers)
    while rows := list(islice(stream, batch)):
        yield rows


def _answer(
    pipeline: ImagePipeline, rows: list[Prepared], threshold: float
) -> list[list[Detected]]:
    """What is found on each; those of one size at once."""
    head = pipeline.model.config.head
    assert isinstance(head, config.BoxHead)
    groups: dict[torch.Size, list[int]] = {}
    for i, (pixels, _) in enumerate(rows):
        groups.setdefault(pixels.shape, []).append(i)
    answers: list[list[Detected]] = [[] for _ in rows]
    for numbers in groups.values():
        pixels = torch.stack([rows[i][0] for i in numbers]).to(pipeline.model.device)
        with torch.inference_mode():
            out = pipeline.model(pixel_values=pixels)
            said = [x.cpu() for x in found(out.logits, out.pred_boxes)]
        for i, scores, classes, boxes in zip(numbers, *said, strict=True):
            answers[i] = _sure(scores, classes, boxes, rows[i][1], head.labels, threshold)
    return answers


def _sure(
    scores: Tensor,
    classes: Tensor,
    boxes: Tensor,
    size: tuple[int, int],
    labels: Sequence[str],
    threshold: float,
) -> list[Detected]:
    """Those above the threshold, in pixels."""
    scale = torch.tensor([size[1], size[0]] * 2)
    keep = torch.nonzero(scores > threshold)[:, 0]
    order = keep[scores[keep].argsort(descending=True, stable=True)]
    return [
        Detected(labels[int(classes[q])], float(scores[q]), tuple((boxes[q] * scale).tolist()))
        for q in order.tolist()
    ]


def drawn(image: Image, objects: Sequence[Detected], labels: Sequence[str] = ()) -> Any:
    """The image with the boxes on it, each with its label and score: a Pillow image.

    `drawn("cats.jpg", detect(kit, "cats.jpg")).save("found.png")`. A small image is enlarged. One
    colour for each class: of the model's `labels`, or of those that were found.
    """
    from allformer.images.draw import draw_boxes, enlarged

    picture, times = enlarged(image)
    names = list(labels) or sorted({one.label for one in objects})
    told = [f"{one.label} {one.score:.0%}" for one in objects]
    numbers = [names.index(one.label) for one in objects]
    return draw_boxes(picture, [one.box for one in objects], told, numbers, times)
