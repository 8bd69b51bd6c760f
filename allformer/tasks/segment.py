"""`segment`: what each pixel of an image shows, or to which thing it belongs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from allformer import config
from allformer.core.precision import widen
from allformer.errors import ConfigError, DataError
from allformer.images.in_order import in_order
from allformer.images.pieces import Pieces
from allformer.images.processor import WORKERS
from allformer.images.read import Image
from allformer.images.segments import (
    Found,
    instances,
    joined,
    panoptic,
    query_scores,
    scaled,
    unfilled,
)
from allformer.tasks.image_pipeline import ImagePipeline, ImageSource, as_image_pipeline, as_images
from allformer.tasks.result import Segment, Segmentation

TASKS = ("semantic", "instance", "panoptic")
BATCH = 8  # images that go together: each has a mask of every query
THRESHOLD = 0.8  # transformers' own


def segment(
    pipeline: ImageSource,
    images: Image | Sequence[Image],
    *,
    task: str | None = None,
    threshold: float = THRESHOLD,
    stuff: Collection[str] = (),
    batch: int = BATCH,
    workers: int = WORKERS,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """A map of each image, and what is on it.

    >>> found = segment("tue-mps/coco_panoptic_eomt_large_640", "cats.jpg", task="panoptic")
    >>> found.ids.shape, found.segments[0]
    ((480, 640), Segment(id=0, label='cat', score=0.99, area=59210, box=(8, 25, 330, 470)))

    `task`: `"semantic"`: of each pixel its class; `"instance"`: things, of a score of at least
    `threshold`; `"panoptic"`: things and the rest, where all of a class of `stuff` is one segment.
    By default what the model was made for: panoptic, unless it scores pixels or cuts images into
    pieces. One image gives one result, a list a list.
    """
    pipeline = as_image_pipeline(pipeline)
    pipeline.need("segment", "a head that gives masks (EoMT, Segmenter)")
    task = _task(pipeline, task)
    numbers = _numbers(pipeline, stuff, task)
    if not 0 <= threshold <= 1:
        raise ConfigError(f"threshold={threshold} must be from 0 to 1; transformers has 0.8")
    many, one = as_images(images)
    found: list[Segmentation] = []
    for some in _groups(pipeline, many, batch, workers):
        for prepared, scores in zip(some, _scores(pipeline, some), strict=True):
            seen = _seen(pipeline, prepared, scores, task, threshold, numbers)
            found.append(_told(seen, task, pipeline.model.config.head.labels))  # type: ignore[union-attr]
        if progress is not None:
            progress(len(found))
    return found[0] if one else found


def _task(pipeline: ImagePipeline, asked: str | None) -> str:
    """The task that was asked for, if this model can; else the model's own."""
    queries = isinstance(pipeline.model.config.head, config.QueryMasks)
    whole = queries and not pipeline.processor.settings.do_split_image
    if asked is None:
        return "panoptic" if whole else "semantic"
    if asked not in TASKS:
        raise ConfigError(f"task={asked!r} is not known; try {', '.join(TASKS)}")
    if asked != "semantic" and not whole:
        why = "cuts images into pieces" if queries else "gives a class for each pixel alone"
        raise ConfigError(f"task={asked!r}, but this model {why}; try task='semantic'")
    return asked


def _numbers(pipeline: ImagePipeline, stuff: Collection[str], task: str) -> set[int]:
    """The numbers of the classes that are stuff."""
    labels = pipeline.model.config.head.labels  # type: ignore[union-attr]
    odd = [name for name in stuff if name not in labels]
    if odd or (stuff and task != "panoptic"):
        way = f"{odd[0]!r} is none of the labels" if odd else f"task={task!r} knows no stuff"
        raise ConfigError(f"stuff={list(stuff)}: {way}; it is for task='panoptic'")
    return {labels.index(name) for name in stuff}


def _groups(
    pipeline: ImagePipeline, images: Sequence[Image], batch: int, workers: int
) -> Iterator[list[Pieces]]:
    """Prepared images, so many together, in order; the next ones are read meanwhile."""
    if batch < 1:
        raise ConfigError(f"batch={batch} must be at least 1: so many images go together")
    named = ((image, f"image {i}") for i, image in enumerate(images, 1))
    stream = in_order(lambda pair: pipeline.processor.pieces(*pair), named, workers)
    while some := list(islice(stream, batch)):
        yield some


def _scores(pipeline: ImagePipeline, some: Sequence[Pieces]) -> Iterator[dict[str, Tensor]]:
    """What the model says of each image: of each of its pieces a row."""
    shapes = {tuple(each.pixels.shape[1:]) for each in some}
    if len(shapes) > 1:
        raise DataError(
            f"images are prepared to {sorted(shapes)}: they do not go together; give batch=1, or "
            f"set do_pad in preprocessor_config.json"
        )
    pixels = torch.cat([each.pixels for each in some]).to(pipeline.model.device)
    with torch.inference_mode():
        out = pipeline.model(pixel_values=pixels)
    names = ("logits", "masks_queries_logits", "class_queries_logits")
    rows = {name: widen(out[name]) for name in names if name in out}
    counts = [len(each.pixels) for each in some]
    parts = {name: torch.split(x, counts) for name, x in rows.items()}
    for i in range(len(some)):
        yield {name: x[i] for name, x in parts.items()}


@torch.inference_mode()
def _seen(
    pipeline: ImagePipeline,
    image: Pieces,
    scores: dict[str, Tensor],
    task: str,
    threshold: float,
    stuff: set[int],
) -> Found:
    """The map of one image."""
    size = pipeline.processor.settings.size
    if "logits" in scores:
        planes = scaled(scaled(scores["logits"][0], image.pixels.shape[2:]), image.size)
        return Found(planes.argmax(0), [], [])
    masks, classes = scores["masks_queries_logits"], scores["class_queries_logits"]
    if task == "semantic":
        each = [query_scores(m, c, size) for m, c in zip(masks, classes, strict=True)]
        whole = joined(each, image.ends, image.size, size) if image.ends else None
        planes = scaled(each[0], image.size) if whole is None else whole
        return Found(planes.argmax(0), [], [])
    own = unfilled(masks[0], image.size, size)
    if task == "instance":
        return instances(own, classes[0], threshold)
    return panoptic(own, classes[0], threshold, stuff=stuff)


def _told(seen: Found, task: str, labels: Sequence[str]) -> Segmentation:
    """With names and areas."""
    ids = seen.ids.cpu().numpy().astype(np.int32)
    if task == "semantic":
        there = [int(i) for i in np.unique(ids)]
        segments = [Segment(i, labels[i], None, *_place(ids == i)) for i in there]
        return Segmentation(task, ids, sorted(segments, key=lambda one: -one.area))
    told = zip(seen.labels, seen.scores, strict=True)
    return Segmentation(
        task,
        ids,
        [Segment(i, labels[n], score, *_place(ids == i)) for i, (n, score) in enumerate(told)],
    )


def _place(mask: Any) -> tuple[int, tuple[int, int, int, int]]:
    """How many pixels, and the box around them; of a covered segment nothing."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return 0, (0, 0, 0, 0)
    box = int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
    return int(mask.sum()), box
