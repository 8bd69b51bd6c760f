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
from allformer.train.pictures.augment import Augment, AugmentedPictures, Chance
from allformer.train.pictures.gallery import Gallery
from allformer.train.pictures.labels import numbers_of
from allformer.train.pictures.over_pictures import OverPictures
from allformer.train.pictures.shown import told_pictures
from allformer.train.predictions import Predictions, calibrated
from allformer.train.sections.section import Section
from allformer.train.supervised.supervised import confusion, judging


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

    Data, Options = AugmentedPictures, ImageClassOptions

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
        return numbers_of(pictures, self.labels, self.name)

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

    @property
    def augment(self) -> Augment:
        """What is done to training pictures by chance."""
        data = self.recipe.data
        assert isinstance(data, AugmentedPictures)
        return data.augment

    @property
    def fixed(self) -> bool:
        size = self.data.image
        return size is not None and self.augment.fixed((size[0], size[1]))

    def drawn(self, batch: ImageBatch) -> tuple[Any, ...]:
        """For those that are no filler."""
        if batch.key is None:
            return ()
        generator, (high, wide) = torch.Generator().manual_seed(batch.key), batch.pixels.shape[2:]
        return self.augment.draw(batch.tokens, (high, wide), len(self.labels), generator)

    def prepared(self, batch: ImageBatch, drawn: tuple[Any, ...]) -> ImageBatch:
        """Images as the model reads them, augmented in training, and their labels as shares."""
        names = torch.arange(len(self.labels), device=batch.labels.device)
        pixels, shares, real = batch.pixels, (batch.labels[:, None] == names).float(), batch.tokens
        if drawn:
            images = pixels[:real].float() / 255
            images, mixed = self.augment.apply(images, shares[:real], Chance(*drawn))
            if real < len(pixels):
                black = images.new_zeros(len(pixels) - real, *images.shape[1:])
                images, mixed = torch.cat([images, black]), torch.cat([mixed, shares[real:]])
            pixels, shares = images, mixed
        return batch._replace(pixels=self.normalised(pixels), labels=shares)

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

    def measured(self, model: Any) -> tuple[str, ...]:
        """How many are right."""
        return ("accuracy",)

    def appraise(
        self, model: Any, batch: ImageBatch, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The NLL, and how many are right."""
        logits = self.scores(model, batch, dtype)
        nll = -(batch.labels * F.log_softmax(logits, -1)).sum()
        right = batch.labels.gather(1, logits.argmax(-1, keepdim=True)).sum()
        return nll, {"accuracy": right}

    # --- figures ----------------------------------------------------------------------------------

    def chances(self, model: Any, examples: Gallery) -> Array:
        """What the model takes each picture for, in their order: n L, rows that sum to 1."""
        found = []
        with judging(model):
            for index in np.array_split(np.arange(len(examples)), -(-len(examples) // self.rows)):
                batch = self.onto(self.collate(examples, index), model.device)
                found.append(self.scores(model, batch).softmax(-1).cpu().numpy())
        return np.concatenate(found)

    def predictions(self, model: Any, examples: Gallery, count: int = 48) -> Predictions:
        """Some pictures and what it takes them for, half of them mistakes; how the classes are
        confused, and how sure it is."""
        assert isinstance(examples, LabelledGallery)
        chances, wanted, names = self.chances(model, examples), examples.numbers, self.labels
        given, sure = chances.argmax(1), chances.max(1)
        right = given == wanted
        shown = told_pictures(
            examples, lambda i: names[wanted[i]], lambda i: names[given[i]], right, sure, count
        )
        return Predictions(
            labels=names,
            confusion=confusion(wanted.tolist(), given.tolist(), len(names)),
            calibration=calibrated(sure.tolist(), right.tolist()),
            figures={"accuracy": float(right.mean())},
            pictures=shown,
        )


class LabelledGallery(Gallery):
    """Pictures with the number of a label each."""

    def __init__(self, numbers: Array, pictures: Pictures, *more: Any) -> None:
        super().__init__(pictures, *more)
        self.numbers = numbers
