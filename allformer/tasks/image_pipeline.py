"""What every task on images takes: a model and how its images are prepared, opened once.

pipeline = open_image_pipeline("path/or/id")
pipeline.model, pipeline.processor
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allformer import config
from allformer.checkpoint.adapter.files import source_of
from allformer.checkpoint.hub import find_checkpoint
from allformer.checkpoint.leftovers import TOKENISER
from allformer.checkpoint.load import load
from allformer.core.model import AnyModel
from allformer.core.precision import pick_device
from allformer.errors import TaskError
from allformer.images.processor import (
    FILES,
    WORKERS,
    Processor,
    has_processor,
    load_processor,
)
from allformer.images.read import Image
from allformer.tasks.pipeline import is_half, refuse_sound_codec
from allformer.text.load import load_tokenizer
from allformer.text.tokenizer import Tokenizer

BATCH = 32  # images that go together


@dataclass(frozen=True, eq=False)
class ImagePipeline:
    """A model that sees, and its processor; of two towers the tokeniser too."""

    model: AnyModel = field(repr=False)
    processor: Processor = field(repr=False)
    directory: Path
    tokenizer: Tokenizer | None = field(default=None, repr=False)

    @property
    def architecture(self) -> str:
        """`ViTForImageClassification`; of a config tree of our own, what it is made of."""
        tree = self.model.config
        own = type(tree).__name__ + (
            "" if tree.head is None else f" with {type(tree.head).__name__}"
        )
        return self.model.provenance.architecture or own

    @property
    def can(self) -> tuple[str, ...]:
        """The verbs that it is made for: `("classify-image", "embed-image")`."""
        tree = self.model.config
        if isinstance(tree, config.TwoTowers):
            return ("classify-image --labels", "similarity --image", "embed-image")
        if isinstance(tree.head, config.BoxHead):
            return (
                ("detect", "embed-image") if isinstance(tree, config.EncoderOnly) else ("detect",)
            )
        if isinstance(tree.head, config.MaskHead):
            return ("segment", "embed-image")
        classes = isinstance(tree.head, config.ClassHead | config.TeacherHead)
        return ("classify-image", "embed-image") if classes else ("embed-image",)

    def need(self, verb: str, what: str) -> None:
        """Refuse a checkpoint that cannot, and say what it can."""
        if verb not in self.can:
            raise TaskError(
                f"{verb} needs {what}, but {self.directory} is a {self.architecture}: it can "
                f"{', '.join(self.can)}; give another checkpoint"
            )

    def batches(
        self,
        images: Sequence[Image],
        batch: int = BATCH,
        workers: int = WORKERS,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[Tensor]:
        """Prepared images on the model's device, in order; the next ones are read meanwhile."""
        return self.processor.batches(
            images, batch, workers=workers, progress=progress, device=self.model.device
        )

    def inputs(self, prepared: Tensor) -> dict[str, Any]:
        """What of `batches` the model is called with: `model(**pipeline.inputs(pixels))`."""
        return {self.processor.gives: prepared}


ImageSource = ImagePipeline | str | Path


def open_image_pipeline(
    path: str | Path,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    architecture: str | None = None,
) -> ImagePipeline:
    """Open a checkpoint for many tasks: `open_image_pipeline("google/vit-base-patch16-224")`.

    `device` is a GPU if there is one. Weights keep the dtype of their file; on a CPU, where half
    precision is slow, they are widened to fp32 unless `dtype` says otherwise.
    """
    directory = find_checkpoint(path)
    where = device if isinstance(device, torch.device) else pick_device(device)
    if dtype is None and where.type == "cpu" and is_half(directory):
        dtype = torch.float32
    model = load(directory, device=where, dtype=dtype, architecture=architecture)
    if isinstance(model.config, config.Codec):
        raise TaskError(
            f"{directory} is a codec, which makes codes of images and images of codes "
            f"(af.load_codec); give a checkpoint of a model that says something of them"
        )
    refuse_sound_codec(model, directory)
    seeing = config.Patches | config.ResNet
    sees = any(isinstance(stack.source, seeing) for stack in model.config.stacks.values())
    told = source_of(directory, *FILES)
    processor = load_processor(told) if sees or has_processor(told) else None
    if processor is None or not (sees or processor.gives == "input_ids"):
        raise TaskError(
            f"{directory} reads text, not images; give a checkpoint of a model that sees (ViT, "
            f"DINOv2, CLIP, …)"
        )
    both = isinstance(model.config, config.TwoTowers)
    tokenizer = load_tokenizer(source_of(directory, *TOKENISER)) if both else None
    return ImagePipeline(model, processor, directory, tokenizer)


def as_image_pipeline(source: ImageSource) -> ImagePipeline:
    """A pipeline as it is; a path or a hub id opened."""
    return source if isinstance(source, ImagePipeline) else open_image_pipeline(source)


def as_images(images: Any) -> tuple[list[Image], bool]:
    """A list, and whether it was but one image that was given."""
    if isinstance(images, list | tuple):
        return list(images), False
    return [images], True
