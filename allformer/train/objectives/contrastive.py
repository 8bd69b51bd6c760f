"""Images and texts by contrast: each image is to find its caption in the batch, and each caption
its image (CLIP; Radford et al., 2021, figure 3).

    objective: contrastive
    data: {path: fashion-mnist}                  # or a TSV of image files and captions
    model: {vision: {patch: 4, …}, text: {dim: 128, …}, width: 128}

    s = e^scale · cos(text, image),   loss = ½ Σ −log softmax(s) both ways, each pair

The learned scale stays below ln 100, as there. A model whose head has a bias judges each pair by
itself, by a sigmoid (SigLIP).

**Equal captions are no negatives.** Where captions are made of class names, many images of a batch
have the same one, or one that says the same in other words. To tell a cat from "a photo of a cat."
because that caption was drawn for another cat would teach nothing but chance: it puts a floor under
the loss and pushes images of one class apart. So the target is shared evenly among all that mean
the same (soft targets), and with a sigmoid all those pairs belong together. Captions of a TSV mean
the same where they are the same.

Negatives are those of the micro-batch, and with several data-parallel processes those of all of
them. Accumulated micro-batches do not see each other.

Legend: B pairs, U distinct texts, T tokens of the longest, C channels, H height, W width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer import config
from allformer.core.inputs import Side
from allformer.core.layout import Grid
from allformer.core.precision import widen
from allformer.data.encoded import Rows
from allformer.data.pictures import Pictures
from allformer.errors import ConfigError, DataError
from allformer.text.framed import framed
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, Frame
from allformer.train.objectives.objective import Say, register
from allformer.train.pictures.augment import Chance
from allformer.train.pictures.caption_data import CaptionData
from allformer.train.pictures.captioned import CaptionedGallery, grid
from allformer.train.pictures.captions import (
    Captions,
    made_captions,
    names_of,
    own_captions,
)
from allformer.train.pictures.gallery import Gallery
from allformer.train.pictures.labels import numbers_of
from allformer.train.pictures.looked import Looked
from allformer.train.pictures.over_pictures import OverPictures
from allformer.train.pictures.pair_loss import pair_loss
from allformer.train.predictions import Predictions
from allformer.train.sections.common import TokenizerRecipe
from allformer.train.sections.model import CheckpointModel, with_vocabulary
from allformer.train.sections.recipe import Recipe
from allformer.train.sections.section import Section
from allformer.train.sections.towers import SHAPE
from allformer.train.supervised.packed import rows_of
from allformer.train.supervised.supervised import judging

MOST = math.log(100.0)  # "clipped to prevent scaling the logits by more than 100" (section 2.5)
_TEXTS = 1024  # whose vectors are made together


@dataclass(frozen=True)
class ContrastOptions(Section, section="objective"):
    """`labels` left out are the data's."""

    labels: tuple[str, ...] = ()


class ContrastBatch(NamedTuple):
    """Images, the distinct texts of a batch, and which text each image has."""

    pixels: Tensor  # B C H W
    ids: Tensor  # U T
    keep: Tensor | None  # U T; None: nothing looks at padding
    caption: Tensor  # B, rows of ids
    meaning: Tensor  # B: equal numbers say the same
    shares: Tensor | None  # once ready B B: how much of image i is the image of pair k
    tokens: int  # pairs
    key: int | None = None


@register("contrastive")
class Contrastive(OverPictures[ContrastBatch]):
    """`make_recipe({"objective": "contrastive", "data": {"path": "fashion-mnist"}, …})`"""

    words = True
    shape = SHAPE
    Data, Options = CaptionData, ContrastOptions
    _fitted: tuple[Recipe, Any] | None = None

    # --- data -----------------------------------------------------------------------------------

    def open(self, corpus: Any = None) -> None:
        """The pictures; labels and wordings that nobody has named are settled in the recipe."""
        super().open(corpus)
        assert self.pictures is not None
        data, train = self.data, self.pictures[0]
        if train[0].captions and data.templates is None:
            return
        labels = self.labels or train.labels
        if len(labels) < 2:
            raise DataError(
                f"the pictures have no captions, and are of {len(labels)} class(es); give a TSV of "
                f"files and captions, or pictures of two classes at least"
            )
        self.recipe = replace(
            self.recipe, data=data.worded(labels), options=ContrastOptions(labels)
        )

    @property
    def data(self) -> CaptionData:
        """The data section."""
        assert isinstance(self.recipe.data, CaptionData)
        return self.recipe.data

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes by number; () of pictures with captions of their own."""
        labels: tuple[str, ...] = self.recipe.options.labels
        return labels

    @property
    def names(self) -> list[tuple[str, ...]]:
        """What each class is called."""
        return names_of(self.labels, self.data.names)

    def captions(self, pictures: Pictures, templates: tuple[str, ...] | None) -> Captions:
        """What is said of a split."""
        if not self.labels:
            return own_captions(pictures, self.name)
        assert templates is not None  # `open` settles them
        return made_captions(numbers_of(pictures, self.labels, self.name), self.names, templates)

    def texts(self) -> Iterable[str]:
        """The distinct captions that are trained on."""
        assert self.pictures is not None
        return self.captions(self.pictures[0], self.data.templates).texts

    def tokenizer(self, trained: Tokenizer) -> Tokenizer:
        """One that is trained here gets `<s>` before a text and `</s>` after it."""
        if not isinstance(self.recipe.tokenizer, TokenizerRecipe):
            return trained
        return framed(trained, self.fitted().text.longest)

    def encode(self, tokenizer: Any, say: Say) -> None:
        """Both splits in one size, and their captions as ids; those that are too long are cut."""
        assert self.pictures is not None
        self._tokenizer: Tokenizer = tokenizer
        train, held = self.pictures
        say(f"pictures: {len(train):,} to train on, {len(held):,} to validate on")
        wordings = self.data.templates, self.data.test_templates
        first, second = (
            self._captioned(part, self.captions(part, wording), say)
            for part, wording in zip((train, held), wordings, strict=True)
        )
        self._galleries = (first, second)
        self._staff()

    def _captioned(self, pictures: Pictures, captions: Captions, say: Say) -> CaptionedGallery:
        rows, cut = self._rows(captions.texts)
        if cut:
            say(f"{cut:,} of {len(captions.texts):,} captions are cut to {self.room} tokens")
        full = self.room if self.fitted().head.text.at == "last" else None  # SigLIP: filled up
        return CaptionedGallery(captions, rows, full, pictures, self.settings, say)

    def _rows(self, texts: tuple[str, ...] | list[str]) -> tuple[Rows, int]:
        batch = self._tokenizer(
            list(texts), padding_side="right", max_length=self.room, truncate=True
        )
        return Rows.from_lists(rows_of(batch)), len(batch.cut)

    @property
    def room(self) -> int:
        """The most tokens of a text."""
        limits = (self.fitted().text.longest, self._tokenizer.model_max_length)
        return min((x for x in limits if x is not None), default=512)

    def examples(self, epoch: int) -> CaptionedGallery:
        """Wordings drawn anew, in whole batches."""
        assert self._galleries is not None
        train = self._galleries[0]
        assert isinstance(train, CaptionedGallery)
        return train.at(self.recipe.train.seed, epoch, self.rows)

    def order(self, examples: Gallery) -> list[Array] | None:
        """As the epoch has them; those of validation are cut as any."""
        assert isinstance(examples, CaptionedGallery)
        return examples.batches

    # --- model ----------------------------------------------------------------------------------

    def fitted(self) -> Any:
        """The tree; made once, for each batch asks for its sizes."""
        if self._fitted is None or self._fitted[0] is not self.recipe:
            self._fitted = (self.recipe, super().fitted())
        return self._fitted[1]

    def config(self, vocabulary: Any) -> Any:
        """Two towers, for the images and the tokeniser that there are."""
        self._check_recipe()
        tree = super().config(None)
        if not isinstance(tree, config.TwoTowers):
            raise ConfigError(
                f"the model of objective={self.name!r} is a {type(tree).__name__}; it needs two "
                f"towers: give model.vision and model.text, or a CLIP"
            )
        if isinstance(self.recipe.model, CheckpointModel):
            self.recipe.model.fitted(self.shape, 0, vocabulary)  # refuses a tokeniser too large
            return tree
        return with_vocabulary(tree, vocabulary)

    def _check_recipe(self) -> None:
        """Settings that would change nothing here, and plans that cut a batch's pairs."""
        smoothing, parallel = self.recipe.train.smoothing, self.recipe.parallel
        if smoothing:
            raise ConfigError(
                f"train.smoothing={smoothing} is for labels; objective={self.name!r} has none: "
                f"remove it"
            )
        for name in ("shard", "tensor", "context", "pipeline"):
            if (parts := getattr(parallel, name)) > 1:
                raise ConfigError(
                    f"parallel.{name}={parts}: objective={self.name!r} compares all pairs of a "
                    f"step with each other, which is done for whole copies alone; use parallel.data"
                )

    # --- batches and losses -----------------------------------------------------------------------

    def frame(self) -> Frame | None:
        """Whole batches: no more rows than there are pictures."""
        assert self._galleries is not None
        rows = min(self.rows, len(self._galleries[0]))
        return Frame(rows * self.longest, rows, self.longest)

    def collate(self, examples: Gallery, index: Array, frame: Frame | None = None) -> ContrastBatch:
        """Bytes, and each distinct text once."""
        assert isinstance(examples, CaptionedGallery)
        room = None if frame is None else frame.sentences
        ids, keep, which = examples.texts(index, room, self._pad)
        meaning = examples.captions.meaning[examples.drawn[index]]
        parts = (examples.pixels(index), ids, keep, which, meaning)
        images, texts, seen, caption, means = map(torch.from_numpy, parts)
        kept = None if self._blind else seen
        return ContrastBatch(images, texts, kept, caption, means, None, len(index))

    @property
    def _pad(self) -> int:
        ids = self._tokenizer.special_ids
        return ids.get("pad", ids.get("eos", 0))

    @property
    def _blind(self) -> bool:
        """Whether padding at the right is never looked at: behind the end of a causal text; or as
        SigLIP is taught, by rows that are filled up."""
        tree = self.fitted()
        return bool(tree.text.causal and tree.head.text.at == "eos") or tree.head.text.at == "last"

    @property
    def fixed(self) -> bool:
        size = self.data.image
        return size is not None and self.data.augment.fixed((size[0], size[1]))

    def drawn(self, batch: ContrastBatch) -> tuple[Any, ...]:
        if batch.key is None:
            return ()
        count, _, high, wide = batch.pixels.shape
        generator = torch.Generator().manual_seed(batch.key)
        return self.data.augment.draw(count, (high, wide), count, generator)

    def prepared(self, batch: ContrastBatch, drawn: tuple[Any, ...]) -> ContrastBatch:
        """Images as the model reads them, in training augmented; mixed ones have two captions."""
        pixels, shares = batch.pixels, torch.eye(len(batch.pixels), device=batch.pixels.device)
        if drawn:
            pixels, shares = self.data.augment.apply(pixels.float() / 255, shares, Chance(*drawn))
        return batch._replace(pixels=self.normalised(pixels), shares=shares)

    def vectors(
        self, model: Any, batch: ContrastBatch, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """Of the pairs the texts' and the images', B W each, in at least fp32."""
        text = self._text_vectors(model, batch.ids, batch.keep, dtype)
        image = self._image_vectors(model, batch.pixels, dtype)
        return text.index_select(0, batch.caption), image

    def _text_vectors(
        self, model: Any, ids: Tensor, keep: Tensor | None, dtype: torch.dtype | None
    ) -> Tensor:
        side = Side(Grid(ids.shape[0], ids.shape[1], keep), {"input_ids": ids}, ids)
        return widen(model.embed("text", side, dtype=dtype))

    def _image_vectors(self, model: Any, pixels: Tensor, dtype: torch.dtype | None) -> Tensor:
        side = Side(Grid(len(pixels), self.longest), {"pixel_values": pixels})
        return widen(model.embed("vision", side, dtype=dtype))

    def loss(
        self,
        model: Any,
        batch: ContrastBatch,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """The sum over pairs; other ranks' texts and images are looked at too."""
        head = model.head
        if head.bias is None and model.training:
            with torch.no_grad():  # what the last step may have done
                head.scale.clamp_(max=MOST)
        text, image = self.vectors(model, batch, dtype)
        assert batch.shares is not None  # `ready` was there
        others = self.others if model.training else None
        loss = pair_loss(head, text, image, batch.meaning, batch.shares.to(text), others)
        return loss, loss.detach()

    # --- figures ----------------------------------------------------------------------------------

    def measured(self, model: Any) -> tuple[str, ...]:
        """Recalls, and of classes how many are right."""
        classes = ("accuracy", "accuracy_worst") if self.labels else ()
        return (*classes, "image_recall", "text_recall")

    def metrics(
        self,
        model: Any,
        examples: Gallery,
        *,
        batch_tokens: int = 4096,
        dtype: torch.dtype | None = None,
    ) -> dict[str, float]:
        """Of classes `accuracy`, zero-shot with the mean of all wordings (of validation: those that
        were never trained on), and `accuracy_worst`, with the worst of them alone. Of all
        `image_recall` (a text's nearest image means the same) and `text_recall` (an image's nearest
        text does)."""
        return self._looked(model, examples, dtype).figures(len(self.labels))

    def predictions(self, model: Any, examples: Gallery, count: int = 48) -> Predictions:
        """Some pictures, and the class or the caption that each is nearest to."""
        assert isinstance(examples, CaptionedGallery)
        looked = self._looked(model, examples)
        if self.labels:
            return looked.nearest_classes(model.head, examples, self.labels, count)
        return looked.nearest_texts(examples, count)

    def _looked(self, model: Any, examples: Gallery, dtype: torch.dtype | None = None) -> Looked:
        assert isinstance(examples, CaptionedGallery)
        with judging(model):
            images = self._all_images(model, examples, dtype)
            texts = self._all_texts(model, examples, dtype)
        captions = examples.captions
        rest = (captions.meaning, captions.wording, examples.drawn)
        return Looked(images, texts, *(torch.from_numpy(x).to(images.device) for x in rest))

    def _all_images(
        self, model: Any, examples: CaptionedGallery, dtype: torch.dtype | None
    ) -> Tensor:
        found = []
        for index in np.split(np.arange(len(examples)), range(self.rows, len(examples), self.rows)):
            pixels = torch.from_numpy(examples.pixels(index)).to(model.device)
            found.append(self._image_vectors(model, self.normalised(pixels), dtype))
        return torch.cat(found)

    def _all_texts(
        self, model: Any, examples: CaptionedGallery, dtype: torch.dtype | None
    ) -> Tensor:
        found = []
        for index in np.split(
            np.arange(len(examples.rows)), range(_TEXTS, len(examples.rows), _TEXTS)
        ):
            ids, keep = grid(examples.rows, index, examples.width, self._pad)
            given, real = (torch.from_numpy(x).to(model.device) for x in (ids, keep))
            found.append(self._text_vectors(model, given, None if self._blind else real, dtype))
        return torch.cat(found)
