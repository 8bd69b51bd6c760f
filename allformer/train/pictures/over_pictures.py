"""What objectives over pictures have in common: data in one size, a model fitted to it, the files
that let the tasks prepare images likewise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from allformer.data.pictures import Pictures, fingerprint
from allformer.errors import ConfigError, DataError
from allformer.images.processor import FILES, Processor, load_processor
from allformer.images.settings import FILTERS, HALF, Settings, make_settings
from allformer.train.batch import Array, B, Frame, rows_that_fit
from allformer.train.objectives.objective import Lengths, Objective, Say
from allformer.train.pictures.data import PictureData
from allformer.train.pictures.fit import seeing, with_images
from allformer.train.pictures.gallery import Gallery
from allformer.train.sections.model import CheckpointModel, PatchRecipe
from allformer.train.sections.recipe import Recipe
from allformer.train.stage import Stage


class OverPictures(Objective[Gallery, B]):
    """Pictures in; a batch is `train.batch_rows` of them."""

    words = False
    shape = "image-encoder"
    perplexity = False
    unit = "img"
    Data = PictureData
    # Rows say how large a batch is; the tokens of an image are known from its patches.
    usual: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "train": {"smoothing": 0.0, "batch_rows": 128, "batch_tokens": 1 << 20, "pool": 0}
    }

    def __init__(self, recipe: Recipe | None = None) -> None:
        super().__init__(recipe)
        self.pictures: tuple[Pictures, Pictures] | None = None
        self._galleries: tuple[Gallery, Gallery] | None = None
        self._normal: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self._stage: Stage[B] | None = None

    @property
    def data(self) -> PictureData:
        """The data section."""
        assert isinstance(self.recipe.data, PictureData)
        return self.recipe.data

    # --- data -----------------------------------------------------------------------------------

    def open(self, corpus: Any = None) -> None:
        """The pictures; what of their form nobody has said is settled, and kept in the recipe.

        `corpus` is splits by name: `{"train": pictures, "val": pictures}`.
        """
        self.pictures = self.data.opened(corpus, self.recipe.train.seed)
        self.recipe = replace(self.recipe, data=self._settled(self.pictures[0]))

    def _settled(self, train: Pictures) -> PictureData:
        """Size, channels, mean and std: as said, else the checkpoint's, else the data's."""
        data, given = self.data, self._checkpoint()
        if None not in (data.image, data.channels, data.mean, data.std):
            return data
        usual: dict[str, Any] = {"mean": HALF[:1], "std": HALF[:1], **self._form(train, given)}
        said = {name: getattr(data, name) for name in usual}
        told = {name: x for name, x in said.items() if x is not None}
        found: PictureData = replace(data, **{**usual, **given, **told})
        return found

    def _form(self, train: Pictures, given: dict[str, Any]) -> dict[str, Any]:
        """Size and channels of pictures in memory; of files, which have many, the model's."""
        if train.pixels is not None:
            height, width, channels = train.pixels.shape[1:]
            return {"image": (height, width), "channels": channels}
        sized = None if isinstance(self.recipe.model, PatchRecipe) else seeing(self.fitted())
        if self.data.image is None and "image" not in given and sized is None:
            raise ConfigError(
                "data.image is missing: files have many sizes, and the model reads one; try "
                "image: [224, 224]"
            )
        return {"channels": 3, **({} if sized is None else {"image": sized.image})}

    def _checkpoint(self) -> dict[str, Any]:
        """What a trained model was taught to read."""
        asked = self.recipe.model
        if not isinstance(asked, CheckpointModel):
            return {}
        source = seeing(asked.tree())
        if source is None:
            raise ConfigError(f"model.checkpoint={asked.checkpoint!r} reads no images; give a ViT")
        found: dict[str, Any] = {"image": source.image, "channels": source.channels}
        if any((asked.directory / name).is_file() for name in FILES):
            settings = load_processor(asked.directory).settings
            for ours, theirs in (("mean", settings.image_mean), ("std", settings.image_std)):
                if settings.do_normalize:
                    found[ours] = theirs if isinstance(theirs, tuple) else (theirs,)
        return found

    @property
    def settings(self) -> Settings:
        """How an image is prepared, here and by the tasks."""
        data = self.data
        if data.image is None or data.channels is None:
            raise DataError("the pictures are not open yet: nobody knows their size")
        mean, std = (
            list(x) * (data.channels // len(x)) for x in (data.mean or (0.5,), data.std or (0.5,))
        )
        return make_settings(
            {
                "image_processor_type": "ViTImageProcessor",
                "size": {"height": data.image[0], "width": data.image[1]},
                "resample": next(n for n, name in FILTERS.items() if name == data.resample),
                "image_mean": mean,
                "image_std": std,
                "do_convert_rgb": data.channels == 3,
            }
        )

    def fingerprint(self) -> str:
        """Of the training pictures and what is known of them."""
        assert self.pictures is not None
        return fingerprint(self.pictures[0])

    def encode(self, tokenizer: Any, say: Say) -> None:
        """Both splits in one size."""
        assert self.pictures is not None
        train, held = self.pictures
        say(f"pictures: {len(train):,} to train on, {len(held):,} to validate on")
        first = self.gallery(train, say)
        self._galleries = (first, first if held is train else self.gallery(held, say))
        self._staff()

    def _staff(self) -> None:
        """As many processes as the recipe says read the files, as it says."""
        for gallery in self._galleries or ():
            gallery.workers, gallery.reduced = self.data.workers, self.data.reduced

    def expect(self, examples: Gallery, index: Array) -> None:
        """The files of the next batch are read while this one is made."""
        examples.expect(index)

    def gallery(self, pictures: Pictures, say: Say) -> Gallery:
        """One split."""
        return Gallery(pictures, self.settings, say)

    def examples(self, epoch: int) -> Gallery:
        """Each time the same: what is drawn is drawn in `ready`."""
        assert self._galleries is not None
        return self._galleries[0]

    @property
    def validation(self) -> Gallery:
        """The held-out pictures."""
        assert self._galleries is not None
        return self._galleries[1]

    def lengths(self, examples: Gallery) -> tuple[Lengths, Lengths]:
        """Of each the tokens of an image."""
        lengths = np.full(len(examples), self.longest, dtype=np.int64)
        return lengths, lengths

    # --- model ----------------------------------------------------------------------------------

    @property
    def longest(self) -> int:
        """The tokens of an image."""
        source = seeing(self.fitted())
        if source is None:
            raise ConfigError(f"the model of objective={self.name!r} reads no images; give a ViT")
        return source.tokens_each

    def fitted(self) -> Any:
        """The recipe's tree for the images that there are."""
        tree = self.recipe.model.tree(self.shape)
        data = self.data
        if data.image is None or data.channels is None:  # not open yet
            return tree
        source = seeing(tree)
        fits = source is not None and (source.image, source.channels) == (data.image, data.channels)
        if isinstance(self.recipe.model, CheckpointModel) and not fits and source is not None:
            raise ConfigError(
                f"data.image={data.image}, data.channels={data.channels}, but model.checkpoint="
                f"{self.recipe.model.checkpoint!r} reads {source.image} and {source.channels}; "
                f"leave them out"
            )
        return tree if fits else with_images(tree, data.image, data.channels)

    def config(self, vocabulary: Any) -> Any:
        """The recipe's tree, fitted to the images."""
        if self.recipe.train.z_loss:
            raise ConfigError(
                f"train.z_loss={self.recipe.train.z_loss} is for scores over a vocabulary, which "
                f"objective={self.name!r} has none of; remove it"
            )
        tree = self.fitted()
        if seeing(tree) is None:
            raise ConfigError(f"the model of objective={self.name!r} reads no images; give a ViT")
        return tree

    def leave(self, run: Path) -> None:
        """preprocessor_config.json, so that the tasks see images as training did."""
        Processor(self.settings).save(run)

    # --- batches ----------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Pictures of a full batch."""
        train = self.recipe.train
        return rows_that_fit(self.longest, train.batch_tokens, train.batch_rows)

    def frame(self) -> Frame | None:
        """So many rows; those that are missing at the end of an epoch are filled up."""
        return Frame(self.rows * self.longest, self.rows, self.longest)

    def ready(self, batch: B) -> B:
        """What was drawn on the host, done on the device: as a graph where that is possible."""
        drawn = self.drawn(batch)
        if not drawn or not self.fixed:
            return self.prepared(batch, drawn)
        if self._stage is None:
            self._stage = Stage(self.prepared)
        return self._stage(batch, drawn)

    def drawn(self, batch: B) -> tuple[Any, ...]:
        """All of a batch's chance (`key`), on the host; nothing is left to it in validation."""
        return ()

    def prepared(self, batch: B, drawn: tuple[Any, ...]) -> B:
        """The batch as the model reads it: kernels alone, and nothing waits for the device."""
        return batch

    @property
    def fixed(self) -> bool:
        """Whether `prepared` is the same work whatever is drawn."""
        return True

    def normalised(self, pixels: Tensor) -> Tensor:
        """Bytes, or values from 0 to 1 in floating point, as the model reads them."""
        x = pixels if pixels.is_floating_point() else pixels.float().div_(255)
        if x.device not in self._normal:  # made once: a way to the device each
            said = self.settings
            mean, std = (
                torch.tensor(value, dtype=torch.float32).view(-1, 1, 1).to(x.device)
                for value in (said.image_mean, said.image_std)
            )
            self._normal[x.device] = mean, std
        mean, std = self._normal[x.device]
        return (x - mean) / std
