"""Detection: which objects are on an image, and where, each found by one query (DETR, YOLOS).

    objective: {is: detection, queries: 12}
    data: {path: fashion-mnist, format: scenes, augment: {flip: 0.5}}
    model: {patch: 8, dim: 192, heads: 3, layers: 6}        # or a YOLOS, or a DETR

Legend: B images, C channels, H height, W width, M objects of an image at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.config import (
    BoxHead,
    EncoderOnly,
    LearnedPlane,
    Patches,
    ResNet,
    SetDecoder,
    SetLoss,
)
from allformer.core.boxes import found as found_by
from allformer.core.heads.boxes import BoxHead as BoxModule
from allformer.core.heads.head import Hidden
from allformer.core.layout import Grid
from allformer.core.set_loss import Guesses, Wanted, fits_device
from allformer.data.pictures import Pictures
from allformer.errors import ConfigError, DataError
from allformer.images.thumbnail import thumbnail
from allformer.metrics.mean_precision import Found, There, can_judge, mean_precision
from allformer.train.batch import Array, Frame
from allformer.train.objectives.objective import Say, register
from allformer.train.pictures.anew import Anew
from allformer.train.pictures.boxes import BoxedPictures, BoxGallery, size_of
from allformer.train.pictures.gallery import Gallery
from allformer.train.pictures.over_pictures import OverPictures
from allformer.train.predictions import Box, Predictions, Seen
from allformer.train.sections.model import CheckpointModel
from allformer.train.sections.recipe import Recipe
from allformer.train.sections.section import Count, Section, positive
from allformer.train.supervised.supervised import judging

PRECISIONS = ("map50", "map", "map75")  # mean average precision at IoU 0.5, 0.5 to 0.95, 0.75


@dataclass(frozen=True)
class DetectionOptions(Section, section="objective"):
    """`labels` left out are those of the model's head, else the data's; `queries` are for a model
    that is given as sizes. `nothing` is how much a query without an object counts; with `auxiliary`
    each layer's states are scored, or those of so many of the last `layers`."""

    labels: tuple[str, ...] = ()
    queries: Count = 20
    nothing: Annotated[float, positive("0.1")] = 0.1
    auxiliary: bool = True
    layers: Count | None = None


class BoxBatch(NamedTuple):
    """Images and what is on them; once ready, as the model reads them. At the end of an epoch rows
    stand there twice, so that all batches are of one size."""

    pixels: Tensor  # B C H W
    classes: Tensor  # B M; −1: no object
    boxes: Tensor  # B M 4: centre and size, as shares of the image
    images: Tensor  # (): how many there are but for those that stand there twice
    layout: Grid
    tokens: int  # the same
    key: int | None = None


@register("detection")
class Detection(OverPictures[BoxBatch]):
    """`make_recipe({"objective": "detection", "data": {"path": "coco"}, …})`"""

    Options = DetectionOptions
    Data = BoxedPictures

    def __init__(self, recipe: Recipe | None = None) -> None:
        super().__init__(recipe)
        self._tree: tuple[Recipe, Any] | None = None

    # --- data -----------------------------------------------------------------------------------

    def open(self, corpus: Any = None) -> None:
        """The pictures; labels that nobody has named are the data's, and kept in the recipe."""
        super().open(corpus)
        if not self.labels:
            assert self.pictures is not None
            names = self._own_labels() or self.pictures[0].labels
            if not names:
                raise DataError("the pictures have no classes; give data with named objects")
            self.recipe = replace(self.recipe, options=replace(self.recipe.options, labels=names))

    def _own_labels(self) -> tuple[str, ...]:
        head = self.recipe.model.tree(self.shape).head
        return head.labels if isinstance(head, BoxHead) else ()

    @property
    def labels(self) -> tuple[str, ...]:
        """By number."""
        names: tuple[str, ...] = self.recipe.options.labels
        return names

    def gallery(self, pictures: Pictures, say: Any) -> BoxGallery:
        """One split, its classes numbered as the model's."""
        odd = sorted(set(pictures.labels) - set(self.labels))
        if odd:
            raise DataError(
                f"the pictures have classes that the model has not: {', '.join(odd[:5])}; it has "
                f"{', '.join(self.labels[:20])}; for a head of the pictures' own name them: "
                f"objective.labels"
            )
        numbers = np.array([self.labels.index(name) for name in pictures.labels], np.int64)
        return BoxGallery(numbers, pictures, self.settings, say)

    def fingerprint(self) -> str:
        """Of classes, boxes and names: masks, which nobody asks for, are not made."""
        from hashlib import blake2b

        assert self.pictures is not None
        seen, train = blake2b(digest_size=16), self.pictures[0]
        for i in range(len(train)):
            one = train[i]
            seen.update(one.name.encode("utf-8", "surrogatepass"))
            for known in (one.boxes, one.classes):
                seen.update(b"" if known is None else np.ascontiguousarray(known).tobytes())
        return seen.hexdigest()

    @cached_property
    def anew(self) -> Anew:
        """Scenes that nobody has seen yet, with the classes numbered as the model's."""
        gallery = self.examples(0)
        assert isinstance(gallery, BoxGallery)
        return Anew(gallery.pictures, gallery.numbers, self.recipe.data.augment.objects)

    @property
    def most(self) -> int:
        """Objects of a training picture, at most."""
        if self.recipe.data.augment.anew:
            return int(self.anew.objects[1])
        examples = self.examples(0)
        assert isinstance(examples, BoxGallery)
        return max(1, examples.most)

    @property
    def waits(self) -> bool:  # type: ignore[override]
        """Many objects are matched on the CPU; before the data is read nobody knows."""
        return self._galleries is None or not fits_device(self._queries(self.fitted()), self.most)

    # --- model ----------------------------------------------------------------------------------

    def fitted(self) -> Any:
        """As ever, and sizes get their queries; once for a recipe."""
        if self._tree is None or self._tree[0] is not self.recipe:
            tree = super().fitted()
            if isinstance(tree, EncoderOnly) and isinstance(tree.encoder.source, Patches):
                tree = self._with_queries(tree)
            self._tree = (self.recipe, tree)
        return self._tree[1]

    def _with_queries(self, tree: EncoderOnly) -> EncoderOnly:
        source, place = tree.encoder.source, tree.encoder.position
        assert isinstance(source, Patches)
        if source.behind:
            return tree
        if isinstance(self.recipe.model, CheckpointModel):
            raise ConfigError(
                f"model.checkpoint={self.recipe.model.checkpoint!r} has no queries that look for "
                f"objects; give a YOLOS, a DETR, or a run of objective={self.name!r}"
            )
        count = self.recipe.options.queries
        if isinstance(place, LearnedPlane):
            place = replace(place, behind=count, resize="always")
        source = replace(source, behind=count)
        return replace(tree, encoder=replace(tree.encoder, source=source, position=place))

    @staticmethod
    def _queries(tree: Any) -> int:
        source = tree.writer.source
        return int(source.behind if isinstance(source, Patches) else source.count)

    @property
    def longest(self) -> int:
        """Tokens of an image: patches and queries, or cells of the feature map."""
        tree, data = self.fitted(), self.data
        if isinstance(tree, SetDecoder) and data.image is not None:
            assert isinstance(tree.encoder.source, ResNet)
            rows, columns = tree.encoder.source.cut(*data.image)
            return rows * columns + self._queries(tree)
        return super().longest

    def _checkpoint(self) -> dict[str, Any]:
        tree = self.recipe.model.tree(self.shape)
        if not isinstance(tree, SetDecoder):
            return super()._checkpoint()
        assert isinstance(tree.encoder.source, ResNet)
        return {"channels": tree.encoder.source.channels}

    def config(self, vocabulary: Any) -> Any:
        """The tree under a head that finds objects, with the labels."""
        tree = self.fitted()
        if not isinstance(tree, SetDecoder):
            tree = super().config(vocabulary)
        head, asked = tree.head, self.recipe.options
        if head is not None and not isinstance(head, BoxHead):
            raise ConfigError(
                f"the model has a {type(head).__name__}, but objective={self.name!r} finds "
                f"objects; leave the head out, or give a YOLOS or a DETR"
            )
        names = self.labels or ("?",)
        loss = SetLoss() if head is None else head.loss
        loss = replace(loss, nothing=asked.nothing, auxiliary=asked.auxiliary)
        depth = 1 if isinstance(tree, SetDecoder) else 3
        head = BoxHead(names, depth) if head is None else replace(head, labels=names)
        tree = replace(tree, head=replace(head, loss=loss))
        return replace(tree, pool=None) if isinstance(tree, EncoderOnly) else tree

    # --- batches and losses -----------------------------------------------------------------------

    def collate(self, examples: Gallery, index: Array, frame: Frame | None = None) -> BoxBatch:
        """Bytes, and objects up to as many as any training picture has."""
        assert isinstance(examples, BoxGallery)
        count = len(index)
        if frame is not None and count < frame.sentences:
            index = np.resize(index, frame.sentences)
        most = self.most if frame is not None else max(1, examples.most)
        classes, boxes = examples.padded(index, most)
        pixels = torch.from_numpy(examples.pixels(index))
        objects = torch.from_numpy(classes), torch.from_numpy(boxes)
        layout = Grid(len(index), self.longest)
        return BoxBatch(pixels, *objects, torch.tensor(float(count)), layout, count)

    def drawn(self, batch: BoxBatch) -> tuple[Any, ...]:
        """Of scenes that are composed anew what is on them; and how all are moved."""
        if batch.key is None:
            return ()
        chance, rows = torch.Generator().manual_seed(batch.key), len(batch.pixels)
        assert isinstance(self.data, BoxedPictures)
        augment, move = self.data.augment, self.data.augment.made()
        scenes = self.anew.draw(rows, chance) if augment.anew else ()
        return scenes, () if move is None else move.draw(rows, chance)

    def prepared(self, batch: BoxBatch, drawn: tuple[Any, ...]) -> BoxBatch:
        """Moved by chance in training, and normalised."""
        pixels, classes, boxes = batch.pixels, batch.classes, batch.boxes
        if not drawn:
            return batch._replace(pixels=self.normalised(pixels))
        assert isinstance(self.data, BoxedPictures)
        (chosen, moves), move = drawn, self.data.augment.made()
        if chosen:
            scenes, classes = self.anew.apply(chosen, pixels.device)
            pixels, boxes = scenes.pixels, scenes.boxes
        pixels = pixels.float().div_(255)
        if move is not None:
            pixels, boxes, classes = move.apply(pixels, boxes, classes, moves)
        return batch._replace(pixels=self.normalised(pixels), classes=classes, boxes=boxes)

    def guesses(
        self, model: Any, batch: BoxBatch, dtype: torch.dtype | None = None
    ) -> tuple[Guesses, Tensor | None]:
        """What the queries say, and the states of each layer, where they are scored too."""
        found, _ = model.sort({"pixel_values": batch.pixels})
        sides = model._lay_out(found)
        hidden = model.hidden(sides, dtype=dtype)
        states = hidden[list(sides)[-1]]
        head: BoxModule = model.head
        out = head.outputs(Hidden(states, next(iter(sides.values())).layout, states))
        layers, last = hidden.get("layers"), self.recipe.options.layers
        if layers is not None and last is not None:
            layers = layers[-last:]
        return Guesses(out["logits"], out["pred_boxes"]), layers

    def loss(
        self,
        model: Any,
        batch: BoxBatch,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """DETR's, a mean over the batch, times its images."""
        guesses, layers = self.guesses(model, batch, dtype)
        parts = model.head.parts(guesses, Wanted(batch.classes, batch.boxes), layers)
        return parts.total * batch.images, (parts.total * batch.images).detach()

    # --- figures ----------------------------------------------------------------------------------

    @torch.no_grad()
    def find(
        self, model: Any, examples: Gallery, dtype: torch.dtype | None = None
    ) -> list[tuple[Array, Array, Array]]:
        """Of each picture, of each query: score, class and corners as shares of the picture."""
        out: list[tuple[Array, Array, Array]] = []
        with judging(model):
            for index in np.array_split(np.arange(len(examples)), -(-len(examples) // self.rows)):
                batch = self.onto(self.collate(examples, index), model.device)
                guesses, _ = self.guesses(model, batch, dtype)
                said = [x.cpu().numpy() for x in found_by(*guesses)]
                out += list(zip(*said, strict=True))
        return out

    def encode(self, tokenizer: Any, say: Say) -> None:
        """As all pictures; a figure that cannot be computed here is told now, not hours later."""
        if not can_judge():
            missing = "pycocotools is not installed (pip install allformer[vision])"
            if (self.recipe.train.best or "").startswith("map"):
                raise ConfigError(f"train.best={self.recipe.train.best}, but {missing}")
            say(f"validation has no mean average precision: {missing}")
        super().encode(tokenizer, say)

    def measured(self, model: Any) -> tuple[str, ...]:
        """Mean average precision, where it can be computed."""
        return PRECISIONS if can_judge() else ()

    def metrics(
        self,
        model: Any,
        examples: Gallery,
        *,
        batch_tokens: int = 4096,
        dtype: torch.dtype | None = None,
    ) -> dict[str, float]:
        """map50 (IoU 0.5) and map (0.5 to 0.95), in the pictures' own pixels; without pycocotools
        none, as was said before the first step."""
        if not can_judge():
            return {}
        found, there = [], []
        for i, (scores, classes, corners) in enumerate(self.find(model, examples, dtype)):
            picture = examples.pictures[i]
            assert picture.boxes is not None
            height, width = size_of(picture)
            found.append(Found(corners * np.array([width, height] * 2), classes, scores))
            there.append(There(picture.boxes, self._numbers(examples, i), picture.crowd))
        figures = mean_precision(found, there, len(self.labels))
        return {name: figures[name] for name in PRECISIONS}

    def _numbers(self, examples: Gallery, index: int) -> Array:
        """The classes of a picture's objects, crowds too, as the model numbers them."""
        picture = examples.pictures[index]
        assert picture.classes is not None
        ours = [self.labels.index(name) for name in examples.pictures.labels]
        return np.asarray(ours, np.int64)[picture.classes]

    def predictions(self, model: Any, examples: Gallery, count: int = 24) -> Predictions:
        """Some pictures with the boxes that are there and those that were found."""
        assert isinstance(examples, BoxGallery)
        shown = []
        some = _First(examples, count)
        for i, (scores, classes, corners) in enumerate(self.find(model, some)):
            known, where = examples.objects[i]
            low, high = where[:, :2] - where[:, 2:] / 2, where[:, :2] + where[:, 2:] / 2
            true = [
                Box(_sides(box), self.labels[number])
                for box, number in zip(np.concatenate([low, high], 1), known, strict=True)
            ]
            sure = np.flatnonzero(scores > 0.5)
            own = [Box(_sides(corners[q]), self.labels[classes[q]], float(scores[q])) for q in sure]
            pixels = examples.pixels(np.array([i]))[0]
            image = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
            shown.append(Seen(thumbnail(image), boxes=tuple(true), found=tuple(own)))
        return Predictions(labels=self.labels, pictures=tuple(shown))


class _First(BoxGallery):
    """The first pictures of a gallery, which is read already."""

    def __init__(self, whole: BoxGallery, count: int) -> None:
        vars(self).update(vars(whole))
        self.count = min(count, len(whole.pictures))

    def __len__(self) -> int:
        return self.count


def _sides(box: Any) -> tuple[float, float, float, float]:
    """Corners on the picture, rounded for a file."""
    left, top, right, below = (round(min(max(float(x), 0.0), 1.0), 4) for x in box)
    return left, top, right, below
