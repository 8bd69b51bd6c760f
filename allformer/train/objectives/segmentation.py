"""Segmentation: what each pixel of an image shows, or which segments there are.

    objective: segmentation                          # a class for each pixel, by a linear decoder
    data: {path: fashion-mnist, format: scenes, validation: test}
    model: {patch: 8, dim: 192, heads: 3, layers: 6}

    objective: {is: segmentation, task: panoptic, decoder: queries}      # EoMT's set of masks
    data: {path: coco, image: [320, 320], augment: {flip: 0.5, zoom: [0.5, 2.0]}}

Legend: B images, C channels, H height, W width, L labels, M segments of an image.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.config import ClassMasks, LinearMasks, MaskHead, MaskLoss, Norm, QueryMasks
from allformer.core.layout import Grid
from allformer.core.loss import IGNORE
from allformer.core.pixel_loss import few, pixel_entropy, resized
from allformer.core.precision import widen
from allformer.data.batches import token_batches
from allformer.data.pictures import Pictures
from allformer.data.pictures.areas import areas_of
from allformer.errors import ConfigError, DataError
from allformer.images.augment.chain import Drawn
from allformer.images.thumbnail import NOTHING, label_map, thumbnail
from allformer.metrics.mean_iou import confusion, iou
from allformer.train.batch import Array, Frame
from allformer.train.objectives.objective import register
from allformer.train.pictures.anew import Anew
from allformer.train.pictures.gallery import Gallery
from allformer.train.pictures.map_data import MapData
from allformer.train.pictures.map_gallery import MapGallery, Reading
from allformer.train.pictures.over_pictures import OverPictures
from allformer.train.predictions import Mask, Predictions, Seen
from allformer.train.sections.model import CheckpointModel
from allformer.train.sections.section import Count, Section, one_of

BACKGROUND = "background"
POWER = 0.9  # of the curve by which masking is annealed (EoMT's)


@dataclass(frozen=True)
class SegmentOptions(Section, section="objective"):
    """What is learnt, and by which decoder where the model comes without one.

    `decoder`: `linear` (scores for `cells` × `cells` places of each patch; left out, for each
    pixel), `mask` (Segmenter's, of so many `layers`), `queries` (EoMT's: so many join the last
    `layers`; the loss compares masks at `points`). `labels` left out are the data's.
    """

    task: Annotated[str, one_of("semantic", "instance", "panoptic")] = "semantic"
    decoder: Annotated[str | None, one_of("linear", "mask", "queries")] = None
    cells: Count | None = None
    layers: Count = 2
    queries: Count = 100
    points: Count = 12544
    labels: tuple[str, ...] = ()


class SegmentBatch(NamedTuple):
    """Images and maps: as collated bytes and numbers, once ready what the model reads, and −100
    where a pixel does not count."""

    pixels: Tensor  # B C H W
    maps: Tensor  # B H W: labels, or numbers of segments
    classes: Tensor  # B M: the labels of the segments, −1 for none; of maps of labels nothing
    masking: Tensor  # of each layer in which queries look at their masks, how likely they do
    layout: Grid
    tokens: int  # images that are no filler
    key: int | None = None


@register("segmentation")
class Segmentation(OverPictures[SegmentBatch]):
    """`make_recipe({"objective": "segmentation", "data": {"path": "VOC2012"}, …})`"""

    Options = SegmentOptions
    Data = MapData

    def __init__(self, recipe: Any = None) -> None:
        super().__init__(recipe)
        self.seen = 0  # batches that were trained on

    # --- labels ---------------------------------------------------------------------------------

    def open(self, corpus: Any = None) -> None:
        """The pictures; labels that nobody has named are found, and kept in the recipe."""
        super().open(corpus)
        if not self.labels:
            assert self.pictures is not None
            names = self._own_labels() or self._data_labels(self.pictures[0])
            self.recipe = replace(self.recipe, options=replace(self.recipe.options, labels=names))

    def _own_labels(self) -> tuple[str, ...]:
        """Of a head that a trained model comes with."""
        if not isinstance(self.recipe.model, CheckpointModel):
            return ()
        head = self.recipe.model.tree(self.shape).head
        return head.labels if isinstance(head, MaskHead) else ()

    def _data_labels(self, pictures: Pictures) -> tuple[str, ...]:
        """The data's; where objects lie on a background, that is one more, to be told from them."""
        if not pictures.labels:
            raise DataError("the pictures have no labels: nothing says what their maps mean")
        whole = areas_of(pictures[0]).whole and self.task == "semantic"
        return (BACKGROUND, *pictures.labels) if whole else pictures.labels

    @property
    def labels(self) -> tuple[str, ...]:
        """By number."""
        names: tuple[str, ...] = self.recipe.options.labels
        return names

    @property
    def task(self) -> str:
        """semantic, instance or panoptic."""
        return str(self.recipe.options.task)

    def gallery(self, pictures: Pictures, say: Any) -> MapGallery:
        """One split, with its maps."""
        ours = {name: i for i, name in enumerate(self.labels)}
        table = tuple(ours.get(name, -1) for name in pictures.labels)
        if max(table, default=-1) < 0:
            raise DataError(
                f"no label of the pictures ({', '.join(pictures.labels[:5])}) is one of the "
                f"model's ({', '.join(self.labels[:5])})"
            )
        segments = self.task != "semantic"
        reading = Reading(table, ours.get(BACKGROUND), segments, self.task == "instance")
        return MapGallery(reading, pictures, self.settings, say)

    # --- model ----------------------------------------------------------------------------------

    def config(self, vocabulary: Any) -> Any:
        """The tree under a head with the labels, so that the tasks know them."""
        tree, asked = super().config(vocabulary), self.recipe.options
        head = tree.head
        if head is None:
            tree = self._with_head(tree)
        elif not isinstance(head, MaskHead):
            raise ConfigError(
                f"the model has a {type(head).__name__}, but objective={self.name!r} learns masks; "
                f"leave it out: model.head={{kind: none}} (allformer tune: --new-head)"
            )
        elif asked.decoder is not None:
            raise ConfigError(
                f"objective.decoder={asked.decoder!r}, but the model has a {type(head).__name__} "
                f"already; leave one of them out"
            )
        labels = self.labels or tree.head.labels
        tree = replace(tree, head=replace(tree.head, labels=labels), pool=None)
        if self.task != "semantic" and not isinstance(tree.head, QueryMasks):
            raise ConfigError(
                f"objective.task={self.task!r} is learnt by queries, but the model has a "
                f"{type(tree.head).__name__}; give objective.decoder=queries"
            )
        self.waits = isinstance(tree.head, QueryMasks)
        return tree

    def _with_head(self, tree: Any) -> Any:
        """With the decoder that the recipe asks for."""
        asked, stack, labels = self.recipe.options, tree.encoder, self.labels or ("?",)
        block = stack.blocks[-1]
        kind = asked.decoder or ("linear" if self.task == "semantic" else "queries")
        if kind == "linear":
            head: MaskHead = LinearMasks(labels, asked.cells or stack.source.patch)
            return replace(tree, head=head)
        blocks = (replace(block, cross=None),) * asked.layers
        norm = stack.final_norm or Norm()
        if kind == "mask":
            return replace(tree, head=ClassMasks(labels, blocks, norm))
        if asked.layers >= len(stack.blocks):
            raise ConfigError(
                f"objective.layers={asked.layers} of the model's {len(stack.blocks)} are those in "
                f"which queries join; there must be more: give fewer, or a deeper model"
            )
        times = max(0, stack.source.patch.bit_length() - 3)  # up to a quarter of the image
        own = QueryMasks(
            labels, stack.blocks[-asked.layers :], asked.queries, norm, times,
            loss=MaskLoss(points=asked.points),
        )  # fmt: skip
        below = replace(stack, blocks=stack.blocks[: -asked.layers], final_norm=None)
        return replace(tree, encoder=below, head=own)

    # --- batches --------------------------------------------------------------------------------

    def frame(self) -> Frame | None:
        """None where no graph is made of a step: nothing is filled up then."""
        return None if self.waits else super().frame()

    def collate(self, examples: Gallery, index: Array, frame: Frame | None = None) -> SegmentBatch:
        """Bytes and maps; filler is black, and does not count."""
        assert isinstance(examples, MapGallery)
        pixels = examples.pixels(index)
        maps, classes = examples.maps(index)
        missing = 0 if frame is None else frame.sentences - len(index)
        if missing:
            pixels = np.concatenate([pixels, np.zeros((missing, *examples.shape), np.uint8)])
            maps = np.concatenate([maps, np.full((missing, *examples.shape[1:]), -1, np.int16)])
            classes = np.concatenate([classes, np.full((missing, classes.shape[1]), -1)])
        image, where, named = (torch.from_numpy(x) for x in (pixels, maps, classes))
        layout = Grid(len(pixels), self.longest)
        return SegmentBatch(image, where, named, self.masking(), layout, len(index))

    def drawn(self, batch: SegmentBatch) -> tuple[Any, ...]:
        """Of scenes that are composed anew what is on them; how all are moved; and how likely
        queries look at their masks alone, which is no chance but the host's too."""
        if batch.key is None:
            return ()
        chance, rows = torch.Generator().manual_seed(batch.key), len(batch.pixels)
        augment = self.recipe.data.augment
        scenes = self.anew.draw(rows, chance) if augment.anew else ()
        moves = augment.made().draw(rows, chance)
        self.seen += 1
        return scenes, moves, self.masking()

    def prepared(self, batch: SegmentBatch, drawn: tuple[Any, ...]) -> SegmentBatch:
        """Moved, in training, and normalised; in validation as it is."""
        pixels, maps = batch.pixels.float().div_(255), batch.maps
        if drawn:
            scenes, moves, masking = drawn
            if scenes:
                batch = self._composed(batch, scenes)
                pixels, maps = batch.pixels.float().div_(255), batch.maps
            pixels, maps = self.recipe.data.augment.made().apply(pixels, maps, moves)
            batch = batch._replace(masking=masking.to(pixels.device))
        maps = maps.long()
        maps = torch.where(maps < 0, IGNORE, maps)
        return batch._replace(pixels=self.normalised(pixels), maps=maps)

    def _composed(self, batch: SegmentBatch, drawn: Drawn) -> SegmentBatch:
        """Scenes that nobody has seen yet, instead; filler does not count there either."""
        scenes, classes = self.anew.apply(drawn, batch.pixels.device)
        maps = scenes.owner
        if self.task == "semantic":
            rest = self.labels.index(BACKGROUND) if BACKGROUND in self.labels else -1
            named = F.pad(classes, (0, 1), value=rest)  # the last one: of no object
            maps = named.gather(1, (maps % named.shape[1]).flatten(1)).view_as(maps)
        real = torch.arange(len(maps), device=maps.device) < batch.tokens
        maps = torch.where(real[:, None, None], maps, -1)
        return batch._replace(pixels=scenes.pixels, maps=maps, classes=classes)

    @cached_property
    def anew(self) -> Anew:
        """Scenes of the objects to train on, their classes numbered as the model's."""
        gallery = self.examples(0)
        assert isinstance(gallery, MapGallery)
        asked = self.recipe.data.augment
        return Anew(gallery.pictures, gallery.reading.table, asked.objects)

    def masking(self) -> Tensor:
        """How likely queries look at their masks alone in each of the last layers, by how far the
        training is: one layer after the other is let go, the last one before the end."""
        layers = self.recipe.options.layers
        done = torch.tensor(min(1.0, self.seen / max(1, self._total())))
        first = torch.arange(1, layers + 1) / (layers + 2)
        past = ((done - first) * (layers + 2)).clamp(0, 1)
        shares: Tensor = (1 - past) ** POWER
        return shares

    def _total(self) -> float:
        """Batches of the whole training."""
        train = self.recipe.train
        if train.epochs is None:
            return float(train.steps * train.accumulate)
        assert self.pictures is not None
        return float(train.epochs * len(self.pictures[0]) / self.rows)

    def state(self) -> dict[str, Any]:
        """How far masking is annealed."""
        return {"seen": torch.tensor(self.seen)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.seen = int(state.get("seen", 0))

    # --- losses ---------------------------------------------------------------------------------

    def loss(
        self,
        model: Any,
        batch: SegmentBatch,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Of each image the mean over its pixels that count; of a set of masks what it costs."""
        if isinstance(model.config.head, QueryMasks):
            return self._set_loss(model, batch, dtype)
        scores = model.call({"pixel_values": batch.pixels}, dtype=dtype)["logits"]
        loss, nll = pixel_entropy(scores, batch.maps, smoothing)
        count = (batch.maps != IGNORE).sum((1, 2)).clamp(min=1)
        return (loss / count).sum(), (nll / count).sum()

    def _set_loss(
        self, model: Any, batch: SegmentBatch, dtype: torch.dtype | None
    ) -> tuple[Tensor, Tensor]:
        if model.training:
            model.head.masking.copy_(batch.masking)
        labels = len(self.labels) if self.task == "semantic" else None
        masks, classes = _targets(batch, labels)
        given = {"pixel_values": batch.pixels, "mask_labels": masks, "class_labels": classes}
        loss = model.call(given, dtype=dtype)["loss"] * len(masks)
        return loss, loss.detach()

    def likeliest(
        self, model: Any, batch: SegmentBatch, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The likeliest label of each pixel, B H W."""
        out = model.call({"pixel_values": batch.pixels}, dtype=dtype)
        size = tuple(batch.pixels.shape[2:])
        if "logits" in out:
            some = torch.split(out["logits"], few(out["logits"], size))
            return torch.cat([resized(widen(x), size).argmax(1) for x in some])
        shares = widen(out["class_queries_logits"]).softmax(-1)[..., :-1]
        masks = widen(out["masks_queries_logits"])
        both = (torch.split(x, few(masks, size)) for x in (shares, masks))
        weighed = (
            torch.einsum("bql,bqhw->blhw", share, resized(mask, size).sigmoid())
            for share, mask in zip(*both, strict=True)
        )
        return torch.cat([x.argmax(1) for x in weighed])

    def measured(self, model: Any) -> tuple[str, ...]:
        """Overlap, and pixels that are right."""
        return ("mean_iou", "pixel_accuracy")

    def appraise(
        self, model: Any, batch: SegmentBatch, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss; what is right is counted over the whole set: see `metrics`. A set of masks is
        compared at the same points each time, and training draws as if nobody had looked."""
        with self._same_draws(batch.pixels.device):
            _, nll = self.loss(model, batch, dtype=dtype)
        return nll, {}

    @contextmanager
    def _same_draws(self, device: torch.device) -> Iterator[None]:
        """Where something is drawn: each time the same, and torch's generators are left alone."""
        if not self.waits:
            yield
            return
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            yield

    @torch.no_grad()
    def metrics(
        self,
        model: Any,
        examples: Gallery,
        *,
        batch_tokens: int = 4096,
        dtype: torch.dtype | None = None,
    ) -> dict[str, float]:
        """Mean IoU and the share of pixels that are right, of the labels of all pixels."""
        count = len(self.labels)
        total = torch.zeros(count, count, dtype=torch.long, device=model.device)
        for batch in self._batches(examples, batch_tokens, model.device):
            wanted = batch.maps
            if self.task != "semantic":
                wanted = _labelled(batch)
            with self._same_draws(model.device):
                total += confusion(self.likeliest(model, batch, dtype), wanted, count)
        found = iou(total)
        return {"mean_iou": found.mean, "pixel_accuracy": found.accuracy}

    @torch.no_grad()
    def predictions(self, model: Any, examples: Gallery, count: int = 24) -> Predictions:
        """Some pictures with the labels of their pixels, the true ones and the model's."""
        index = np.arange(min(count, len(examples)))
        raw = self.collate(examples, index)
        batch = self.onto(raw, model.device)
        wanted = batch.maps if self.task == "semantic" else _labelled(batch)
        with self._same_draws(model.device):
            given = self.likeliest(model, batch)
        shown = []
        ground = self.labels.index(BACKGROUND) if BACKGROUND in self.labels else -1  # no colour
        for image, true, own in zip(raw.pixels.numpy(), wanted.cpu(), given.cpu(), strict=True):
            real = true >= 0
            right = float((own == true)[real].float().mean()) if bool(real.any()) else None
            seen = (real & (x < NOTHING) & (x != ground) for x in (true, own))
            maps = [
                torch.where(k, x, NOTHING).numpy() for k, x in zip(seen, (true, own), strict=True)
            ]
            masks = [Mask(label_map(x), self.labels) for x in maps]
            picture = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
            shown.append(Seen(thumbnail(picture), score=right, mask=masks[0], found_mask=masks[1]))
        return Predictions(labels=self.labels, pictures=tuple(shown))

    def _batches(
        self, examples: Gallery, batch_tokens: int, device: torch.device
    ) -> Iterator[SegmentBatch]:
        sides = self.lengths(examples)
        budget = max(batch_tokens, self.longest)
        rows = self.recipe.train.batch_rows
        for index in token_batches(*sides, budget, seed=0, epoch=0, pool=1000, max_rows=rows):
            yield self.onto(self.collate(examples, index), device)


def _targets(batch: SegmentBatch, labels: int | None) -> tuple[list[Tensor], list[Tensor]]:
    """The masks of each image and their labels; of maps of so many `labels` one for each."""
    classes = batch.classes
    if labels is not None:
        classes = torch.arange(labels, device=batch.maps.device).expand(len(batch.maps), -1)
    numbers = torch.arange(classes.shape[1], device=batch.maps.device)
    every = batch.maps[:, None] == numbers[:, None, None]  # B M H W
    there = (every.flatten(2).any(2) & (classes >= 0)).tolist()  # waits for the device, once
    masks, named = [], []
    for i, row in enumerate(there):
        kept = [number for number, seen in enumerate(row) if seen]
        masks.append(every[i, kept])
        named.append(classes[i, kept])
    return masks, named


def _labelled(batch: SegmentBatch) -> Tensor:
    """The label of each pixel by its segment, B H W; −100 for none."""
    flat = batch.maps.flatten(1)
    classes = F.pad(batch.classes, (0, 1), value=IGNORE)  # the last one: of no segment
    last = classes.shape[1] - 1
    return classes.gather(1, torch.where(flat < 0, last, flat)).view_as(batch.maps)
