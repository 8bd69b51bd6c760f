"""`image_similarity`: how near images and texts are, by a model of both (CLIP)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from allformer.errors import LengthError
from allformer.images.processor import WORKERS
from allformer.images.read import Image
from allformer.tasks.batching import excerpt
from allformer.tasks.call import check_texts
from allformer.tasks.embed_image import embed_image
from allformer.tasks.image_pipeline import (
    BATCH,
    ImagePipeline,
    ImageSource,
    as_image_pipeline,
    as_images,
)


def image_similarity(
    pipeline: ImageSource,
    images: Image | Sequence[Image],
    texts: str | Sequence[str],
    *,
    batch: int = BATCH,
    workers: int = WORKERS,
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """Cosines of the images' vectors with the texts', images × texts, fp32 on the CPU.

    >>> image_similarity("openai/clip-vit-base-patch32", "cat.jpg", ["a cat", "a dog"])
    tensor([0.2895, 0.2110])

    One image or one text takes its dimension away. A cosine of CLIP's is small: what counts is
    which of several is larger.
    """
    pipeline = as_image_pipeline(pipeline)
    pipeline.need("similarity --image", "a model of texts and images (CLIP)")
    many, one = as_images(images)
    words = [texts] if isinstance(texts, str) else list(texts)
    there = text_vectors(pipeline, words).float().cpu()
    here = embed_image(pipeline, many, batch=batch, workers=workers, progress=progress)
    out = here @ there.T
    out = out[:, 0] if isinstance(texts, str) else out
    return out[0] if one else out


def text_vectors(pipeline: ImagePipeline, texts: Sequence[str]) -> Tensor:
    """Unit vectors of texts, B W, on the model's device; one that is too long is refused."""
    check_texts(texts)
    assert pipeline.tokenizer is not None  # `need` was asked
    found = pipeline.tokenizer(texts, padding_side="right")
    limit = pipeline.model.config.reader.longest
    if limit is not None and found.width > limit:
        longest = found["attention_mask"].sum(1).argmax().item()
        raise LengthError(
            f"{excerpt(texts[int(longest)])} has {found.width} tokens, but {pipeline.architecture} "
            f"takes {limit}; say it in fewer words"
        )
    given: dict[str, Any] = {
        name: found[name].to(pipeline.model.device) for name in ("input_ids", "attention_mask")
    }
    head = pipeline.model.config.head.text  # type: ignore[union-attr]
    if head.at == "last" and limit is not None:  # SigLIP was taught with rows filled up, unmasked
        pad, missing = pipeline.tokenizer.special_ids["pad"], limit - found.width
        given = {"input_ids": F.pad(given["input_ids"], (0, missing), value=pad)}
    name = head.output
    with torch.inference_mode():
        vectors: Tensor = pipeline.model(**given)[name]
    return vectors
