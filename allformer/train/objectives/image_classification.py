"""Classification of an image: one of the labels.

    objective: image-classification
    data: {path: fashion-mnist, augment: {crop: 2, flip: 0.5}}
    model: {patch: 4, dim: 192, heads: 3, layers: 6}

Legend: B images, C channels, H height, W width, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.config import ClassHead
from allformer.core.layout import Grid
from allformer.core.precision import widen
from allformer.data.pictures import Pictures
from allformer.errors import ConfigError, DataError
from allformer.train.batch import Array, Frame
from allformer.train.objectives.objective import register
from allformer.train.pictures.gallery import Gallery
from allformer.train.pictures.over_pictures import OverPictures
from allformer.train.sections.section import Section


@dataclass(frozen=True)
class ImageClassOptions(Section, section="objective"):
    """`labels` left out are those of the model's head, else the data's."""

    labels: tuple[str, ...] = ()


class ImageBatch(NamedTuple):
    """Images and what they show: as collated bytes and numbers (−1: filler), once ready what the
    model reads and shares of each label (of filler none)."""

    pixels: Tensor  # B C H W
    labels: Tensor  # B, then B L
    layout: Grid
    tokens: int  # images that are no filler
    key: int | None = None


@register("image-classification")
class ImageClassification(OverPictures[ImageBatch]):
    """`make_recipe({"objective": "image-classification", "data": {"path": "flowers"}, …})`"""

    Options = ImageClassOptions

    # --- labels ---------------------------------------------------------------------------------

    def open(self, corpus: Any = None) -> None:
        """The pictures; labels that nobody has named are found, and kept in the recipe."""
        super().open(corpus)
        if not self.recipe.options.labels:
            assert self.pictures is not None
            names = self._own_labels() or self.pictures[0].labels
            if len(names) < 2:
                raise DataError(
                    f"the pictures are of {len(names)} class(es): {', '.join(names) or 'none'}; "
                    f"there must be two at least, a folder each"
                )
            self.recipe = replace(self.recipe, options=replace(self.recipe.options, labels=names))

    def _own_labels(self) -> tuple[str, ...]:
        """Of a head that the model comes with and keeps."""
        head = self.recipe.model.tree(self.shape).head
        given = getattr(self.recipe.model, "head", None) is not None
        return head.labels if isinstance(head, ClassHead) and not given else ()

    @property
    def labels(self) -> tuple[str, ...]:
        """By number."""
        names: tuple[str, ...] = self.recipe.options.labels
        return names

    def numbers(self, pictures: Pictures) -> Array:
        """Of each picture the number of its label among ours: found by name."""
        ours = {name: i for i, name in enumerate(self.labels)}
        names = pictures.labels
        if set(names) <= set(ours):
            table = [ours[name] for name in names]
        elif len(names) <= len(ours) and all(name.isdigit() for name in names):
            table = list(range(len(names)))  # numbers, where the model has words
        else:
            odd = sorted(set(names) - set(ours))
            raise DataError(
                f"the pictures have labels that the model has not: {', '.join(odd[:5])}; it has "
                f"{', '.join(self.labels[:20])}"
            )
        found = [pictures[i].label for i in range(len(pictures))]
        if None in found:
            raise DataError(
                f"{pictures[found.index(None)].name or 'a picture'} has no label; objective="
                f"{self.name!r} needs one for each"
            )
        return np.asarray(table, dtype=np.int64)[np.asarray(found, dtype=np.int64)]

    def gallery(self, pictures: Pictures, say: Any) -> LabelledGallery:
        """One split, with its labels."""
        return LabelledGallery(self.numbers(pictures), pictures, self.settings, say)

    # --- model ----------------------------------------------------------------------------------

    def config(self, vocabulary: Any) -> Any:
        """The tree under a head with the labels, so that the tasks know them."""
        tree = super().config(vocabulary)
        head = tree.head
        if not isinstance(head, ClassHead):
            if head is not None:
                raise ConfigError(
                    f"the model has a {type(head).__name__}, but objective={self.name!r} learns "
                    f"classes; leave the head out, or give model.head={{kind: classes}}"
                )
            source = tree.reader.source
            head = ClassHead(self.labels or ("?",), at="first" if source.cls else "patches")
        tree = replace(tree, head=replace(head, labels=self.labels or head.labels))
        return replace(tree, pool=None) if head.at != "pool" else tree

    # --- batches and losses -----------------------------------------------------------------------

    def collate(self, examples: Gallery, index: Array, frame: Frame | None = None) -> ImageBatch:
        """Bytes; filler is black."""
        assert isinstance(examples, LabelledGallery)
        pixels, labels = examples.pixels(index), examples.numbers[index]
        missing = 0 if frame is None else frame.sentences - len(index)
        if missing:
            pixels = np.concatenate([pixels, np.zeros((missing, *examples.shape), np.uint8)])
            labels = np.concatenate([labels, np.full(missing, -1, np.int64)])
        layout = Grid(len(labels), self.longest)
        return ImageBatch(torch.from_numpy(pixels), torch.from_numpy(labels), layout, len(index))

    def ready(self, batch: ImageBatch) -> ImageBatch:
        """Normalised images, and their labels as shares."""
        labels = batch.labels[:, None] == torch.arange(len(self.labels), device=batch.labels.device)
        return batch._replace(pixels=self.normalised(batch.pixels), labels=labels.float())

    def scores(self, model: Any, batch: ImageBatch, dtype: torch.dtype | None = None) -> Tensor:
        """What the head says of each image, B L, in at least fp32."""
        out = model.call({"pixel_values": batch.pixels}, dtype=dtype, states=False)
        logits: Tensor = widen(out["logits"])
        return logits

    def loss(
        self,
        model: Any,
        batch: ImageBatch,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy with the shares; smoothing moves ε of them to all labels alike."""
        logs = F.log_softmax(self.scores(model, batch, dtype), -1)
        nll = -(batch.labels * logs).sum()
        if not smoothing:
            return nll, nll.detach()
        real = batch.labels.sum(-1)
        loss = (1 - smoothing) * nll - smoothing * (real * logs.mean(-1)).sum()
        return loss, nll.detach()

    def appraise(
        self, model: Any, batch: ImageBatch, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The NLL, and how many are right."""
        logits = self.scores(model, batch, dtype)
        nll = -(batch.labels * F.log_softmax(logits, -1)).sum()
        right = batch.labels.gather(1, logits.argmax(-1, keepdim=True)).sum()
        return nll, {"accuracy": right}


class LabelledGallery(Gallery):
    """Pictures with the number of a label each."""

    def __init__(self, numbers: Array, pictures: Pictures, *more: Any) -> None:
        super().__init__(pictures, *more)
        self.numbers = numbers
