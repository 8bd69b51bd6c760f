"""A codec: images to codes and back, with as little lost on the way as may be.

    objective: {is: image-codec, codes: gumbel, anneal: 4000, kl: 0.4, spread: 1.0}
    data: {path: fashion-mnist}
    model: {preset: dvae-28}

The loss is by the pixel (each channel's number counts as one), as in the paper: −log p of the
reconstruction, and the KL term or the commitment with its weight.

Legend: B images, C channels, H height, W width, V codes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from allformer.config import Codec
from allformer.data.pictures import Pictures
from allformer.errors import ConfigError
from allformer.images.thumbnail import thumbnail
from allformer.train.batch import Array, Frame
from allformer.train.objectives.objective import register
from allformer.train.pictures.codec_options import CodecOptions, Now
from allformer.train.pictures.data import PictureData
from allformer.train.pictures.gallery import Gallery
from allformer.train.pictures.over_pictures import OverPictures
from allformer.train.predictions import Predictions, Seen

SHOWN = 24  # pictures that the report shows
AS_THEY_ARE: dict[str, Any] = {"mean": (0.0,), "std": (1.0,)}  # a codec reads pixels from 0 to 1


class CodecBatch(NamedTuple):
    """Images as bytes; `keep` is 0 for filler, which repeats them."""

    pixels: Tensor  # B C H W
    keep: Tensor  # B
    tokens: int  # images that are no filler
    counts: tuple[int, ...]  # and their numbers


@register("image-codec")
class ImageCodec(OverPictures[CodecBatch]):
    """`make_recipe({"objective": "image-codec", "data": {"path": "fashion-mnist"}, …})`"""

    Options = CodecOptions
    usual: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **OverPictures.usual,
        "train": {**OverPictures.usual["train"], "average": 1},
    }

    def __init__(self, recipe: Any = None) -> None:
        super().__init__(recipe)
        self._step, self._now = 1, dict[torch.device, Now]()

    @property
    def options(self) -> CodecOptions:
        """How it learns."""
        found: CodecOptions = self.recipe.options
        return found

    # --- data -----------------------------------------------------------------------------------

    def _settled(self, train: Pictures) -> PictureData:
        """Size and channels; nothing is normalised."""
        for name, value in AS_THEY_ARE.items():
            if getattr(self.data, name) not in (None, value):
                self.data.refuse(name, "is for models that normalise; a codec does not", "leave it")
        data: PictureData = replace(self.data, **AS_THEY_ARE)
        self.recipe = replace(self.recipe, data=data)
        return super()._settled(train)

    # --- model ----------------------------------------------------------------------------------

    def config(self, vocabulary: Any) -> Codec:
        """A codec's tree that learns as the options say."""
        asked, tree = self.recipe.train, self.recipe.model.tree(self.shape)
        if (fits := CodecOptions.of(tree)) != self.options.named:
            way_out = f"objective.codes={fits}" if fits else "model: {preset: dvae-28}"
            raise ConfigError(
                f"objective.codes={self.options.named} teaches a {self.options.tree.__name__}, but "
                f"the model is a {type(tree).__name__}; try {way_out}"
            )
        for name, usual in (("recompute", "none"), ("redraw", 0), ("smoothing", 0.0)):
            if getattr(asked, name) != usual:
                asked.refuse(name, "is for Transformers, and a codec is none", "leave it out")
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise ConfigError("objective='image-codec' in several processes: train it in one")
        found: Codec = super().config(vocabulary)
        return found

    # --- batches and losses -----------------------------------------------------------------------

    def collate(self, examples: Gallery, index: Array, frame: Frame | None = None) -> CodecBatch:
        """Bytes; a frame is filled up with the same images again, which count for nothing."""
        rows = len(index) if frame is None else frame.sentences
        pixels = examples.pixels(np.resize(index, rows))
        keep = (np.arange(rows) < len(index)).astype(np.float32)
        counts = (len(index) * math.prod(examples.shape),)
        return CodecBatch(torch.from_numpy(pixels), torch.from_numpy(keep), len(index), counts)

    def at(self, step: int) -> None:
        """The temperature and the weight of this step, where a captured step reads them."""
        self._step = step
        for tensors in self._now.values():
            for tensor, value in zip(tensors, self.options.now(step), strict=True):
                tensor.fill_(value)

    def now(self, device: torch.device) -> Now:
        """Of the current step, on the device."""
        if device not in self._now:
            numbers = self.options.now(self._step)
            self._now[device] = Now(*(torch.tensor(x, device=device) for x in numbers))
        return self._now[device]

    def loss(
        self,
        model: Any,
        batch: CodecBatch,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Sums over the numbers of the images."""
        now = self.now(batch.pixels.device)
        return self.options.sums(model, batch.pixels, batch.keep, now, dtype)

    def measured(self, model: Any) -> tuple[str, ...]:
        """What is lost, and how much of the codebook is in use."""
        return ("mse", "psnr", "codes_used", "codes_perplexity")

    def appraise(
        self, model: Any, batch: CodecBatch, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Through the codes themselves: −log p, and the squared error."""
        found = model.judged(batch.pixels, dtype)
        error = (found.images - batch.pixels / 255).square()
        return found.unlikely.sum(), {"mse": error.sum()}

    def follows(self, means: Mapping[str, float], examples: Gallery) -> dict[str, float]:
        """Of the mean squared error, white being 1: the signal above it, in decibels."""
        return {"psnr": -10 * math.log10(max(means["mse"], 1e-10))}

    @torch.no_grad()
    def metrics(
        self,
        model: Any,
        examples: Gallery,
        *,
        batch_tokens: int = 4096,
        dtype: torch.dtype | None = None,
    ) -> dict[str, float]:
        """How much of the codebook is in use: the share of codes that occur, and the perplexity of
        their frequencies (as many codes, all as frequent, would say as much)."""
        found = torch.zeros(model.codes, dtype=torch.long, device=model.device)
        for index in np.array_split(np.arange(len(examples)), -(-len(examples) // self.rows)):
            pixels = torch.from_numpy(examples.pixels(index)).to(model.device)
            found += model.encode(pixels, dtype=dtype).flatten().bincount(minlength=model.codes)
        share = found.double() / found.sum()
        entropy = -torch.special.xlogy(share, share).sum()
        used = (found > 0).double().mean()
        return {"codes_used": float(used), "codes_perplexity": math.exp(float(entropy))}

    def predictions(self, model: Any, examples: Gallery, count: int = 50) -> Predictions:
        """Held-out images, and what the codec makes of them; the score is the squared error."""
        index = np.unique(np.linspace(0, len(examples) - 1, min(SHOWN, count)).astype(int))
        pixels = torch.from_numpy(examples.pixels(index))
        images = model.decode(model.encode(pixels)).cpu().float()
        names = examples.pictures.labels
        rows = []
        for i, one, again in zip(index, pixels, images, strict=True):
            label = examples[int(i)].label
            error = float((again - one / 255).square().mean())
            wanted = "" if label is None or not names else names[label]
            rows.append(Seen(thumbnail(one), wanted, score=error, again=thumbnail(again)))
        return Predictions(pictures=tuple(rows))
