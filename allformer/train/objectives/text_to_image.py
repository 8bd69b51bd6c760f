"""Text to image (DALL-E): a caption, then the codes of its image, are one sequence to be said.

    objective: {is: text-to-image, codec: runs/fashion-dvae}
    data: {path: fashion-mnist, templates: ["a photo of a {}", "{}"], text: 16}
    model: {dim: 256, heads: 4, feed: 1024, layers: 6}

A codec (`objective: image-codec`) turns all images into codes once. The loss is 1/8 text and 7/8
image, each a mean over its own tokens (Ramesh et al., 2021, section 2.2).

Legend: B rows, L places of text, N codes of an image, U captions that differ, P pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.checkpoint.codec import FOLDER, load_codec
from allformer.checkpoint.save import OWN, save
from allformer.codecs.encode_set import encode_set, read_codes
from allformer.codecs.encode_set import fingerprint as codec_fingerprint
from allformer.config import DecoderOnly, JoinedHead
from allformer.core.inputs import Side
from allformer.core.layout import Grid
from allformer.core.loss import IGNORE
from allformer.core.precision import pick_device, widen
from allformer.data.fixed_rows import fixed_rows
from allformer.data.pictures import Pictures, fingerprint
from allformer.errors import ConfigError, DataError
from allformer.families.dalle import fit_source, fitted
from allformer.generate.codes import draw_codes
from allformer.images.settings import FILTERS, Settings, make_settings
from allformer.images.thumbnail import thumbnail
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, Frame, rows_that_fit
from allformer.train.objectives.objective import Lengths, Objective, Say, register
from allformer.train.pictures.captions import (
    TEMPLATES,
    Captions,
    check_templates,
    made_captions,
    names_of,
    own_captions,
)
from allformer.train.pictures.data import PictureData
from allformer.train.pictures.gallery import Gallery
from allformer.train.predictions import Predictions, Seen
from allformer.train.sections.common import TokenizerRecipe
from allformer.train.sections.recipe import Recipe
from allformer.train.sections.section import Section, at_least, share
from allformer.train.sections.vocabulary import Vocabulary

_AT_ONCE = 512  # images that go through the codec together
CAPTIONS, EACH = 12, 8  # that the report shows


@dataclass(frozen=True)
class DrawingOptions(Section, section="objective"):
    """`text_weight` is the share of the text in the loss; of `drop` rows the caption is left out,
    so that the model knows images without one, by which drawing can be guided."""

    codec: str | None = None
    text_weight: Annotated[float, share("0.125")] = 0.125
    drop: Annotated[float, share("0.1")] = 0.0


@dataclass(frozen=True)
class DrawingData(PictureData, section="data"):
    """Pictures with captions of their own, or labels that are put into `templates`; `names` are
    other words for labels. A caption has `text` places. `flip`: mirrored images are taken too.
    `cache` is a folder that keeps the codes for the next time."""

    templates: tuple[str, ...] = TEMPLATES
    names: Mapping[str, Any] = field(default_factory=dict)
    text: Annotated[int, at_least(3)] = 64
    flip: bool = False
    cache: str | None = None


class DrawingBatch(NamedTuple):
    """A caption and the codes of an image, in each row; filler has codes of −100."""

    text: Tensor  # B L
    codes: Tensor  # B N
    tokens: int
    counts: tuple[int, ...]  # codes, and words, to be said


@dataclass(frozen=True, eq=False)
class Drawings:
    """Examples of an epoch: which caption each has, and the codes of its image."""

    texts: Array  # U L
    which: Array  # P: a row of `texts`
    codes: Array  # P N

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, eq=False)
class _Split:
    """One split, encoded: its captions as rows of ids behind the empty one, and codes of each
    image as it is and, perhaps, mirrored."""

    captions: Captions
    rows: Array  # 1 + U, L
    codes: Array  # 1 or 2, P, N

    def drawn(self, drop: float, *key: int) -> Drawings:
        """A caption of each picture, by the key; of some none."""
        which = 1 + self.captions.drawn(*key)
        chance, pictures = np.random.default_rng((*key, 1)), len(which)
        which = np.where(chance.random(pictures) < drop, 0, which)
        side = chance.integers(0, len(self.codes), pictures)
        return Drawings(self.rows, which, self.codes[side, np.arange(pictures)])


@register("text-to-image")
class TextToImage(Objective[Drawings, DrawingBatch]):
    """`make_recipe({"objective": {"is": "text-to-image", "codec": "runs/dvae"}, …})`"""

    shape = "text-and-image"
    Options = DrawingOptions
    Data = DrawingData
    terms = ("image", "text")
    usual: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "train": {"smoothing": 0.0, "batch_rows": 128, "batch_tokens": 1 << 20, "pool": 0},
        "tokenizer": {"vocab": 1000},
    }

    def __init__(self, recipe: Recipe | None = None) -> None:
        super().__init__(recipe)
        self.pictures: tuple[Pictures, ...] | None = None

    @property
    def options(self) -> DrawingOptions:
        """The objective's own settings."""
        found = self.recipe.options
        return found if isinstance(found, DrawingOptions) else DrawingOptions()

    @property
    def data(self) -> DrawingData:
        """The data section."""
        assert isinstance(self.recipe.data, DrawingData)
        return self.recipe.data

    @cached_property
    def codec(self) -> Any:
        """What turns images into codes."""
        if self.options.codec is None:
            raise ConfigError(
                "objective.codec is missing: say which run of objective=image-codec turns images "
                "into codes; try objective: {is: text-to-image, codec: runs/dvae}"
            )
        return load_codec(self.options.codec).eval()

    # --- data -----------------------------------------------------------------------------------

    def open(self, corpus: Any = None) -> None:
        """The pictures, and what they are called."""
        size = self.codec.config
        data = self.data
        said = {"image": (data.image, size.image), "channels": (data.channels, size.channels)}
        for name, (own, wanted) in said.items():
            if own is not None and own != wanted:
                data.refuse(name, f"is not what objective.codec reads, {wanted}", "leave it out")
        for name in ("mean", "std"):
            if getattr(data, name) is not None:
                data.refuse(name, "is for models that normalise; a codec does not", "leave it out")
        self.recipe = replace(
            self.recipe, data=replace(data, image=size.image, channels=size.channels)
        )
        self.pictures = self.data.opened(corpus, self.recipe.train.seed)
        self.captions = [self._captions(each) for each in self.pictures]

    def _captions(self, pictures: Pictures) -> Captions:
        """Their own, or their classes' names in templates."""
        if not pictures.labels or pictures[0].captions:
            return own_captions(pictures, self.name)
        check_templates("templates", self.data.templates)
        numbers = np.array([pictures[i].label for i in range(len(pictures))])
        if None in numbers:
            raise DataError(f"objective={self.name!r} needs a label or a caption of each picture")
        names = names_of(pictures.labels, self.data.names)
        return made_captions(numbers.astype(np.int64), names, self.data.templates)

    def texts(self) -> Iterable[str]:
        """Each training caption once."""
        return self.captions[0].texts

    def fingerprint(self) -> str:
        """Of the training pictures, and of their captions."""
        assert self.pictures is not None
        return fingerprint(self.pictures[0]) + super().fingerprint()

    def tokenizer(self, trained: Tokenizer) -> Tokenizer:
        """`<s> caption </s>`; a checkpoint's own puts what it puts."""
        if not isinstance(self.recipe.tokenizer, TokenizerRecipe):
            return trained
        names = trained.settings.names
        return trained.with_specials([names["bos"]], [names["eos"]])

    def encode(self, tokenizer: Any, say: Say) -> None:
        """Captions as ids, images as codes: once."""
        assert self.pictures is not None
        sizes = [len(each) for each in self.pictures]
        say(f"pictures: {sizes[0]:,} to train on, {sizes[1]:,} to validate on")
        codec = self.codec.to(pick_device(None))
        self.splits = []
        for captions, pictures, flip in zip(
            self.captions, self.pictures, (self.data.flip, False), strict=True
        ):
            rows = self._rows(tokenizer, captions, say)
            self.splits.append(_Split(captions, rows, self._codes(pictures, codec, say, flip)))
        codec.cpu()
        used = len(np.unique(self.splits[0].codes))
        say(f"codes: {used:,} of {codec.codes:,} occur, {codec.grid[0]} × {codec.grid[1]} an image")

    def _rows(self, tokenizer: Tokenizer, captions: Captions, say: Say) -> Array:
        """Ids of the captions, the empty one first."""
        pad = Vocabulary.of(tokenizer).pad
        if pad is None:
            raise DataError("the tokeniser has no padding token; use one that has (pad_token)")
        self.pad = pad
        rows, cut = fixed_rows(tokenizer.encode_batch(["", *captions.texts]), self.data.text, pad)
        if cut:
            say(f"{cut:,} captions are longer than data.text={self.data.text} tokens, and cut")
        return rows

    def _codes(self, pictures: Pictures, codec: Any, say: Say, flip: bool) -> Array:
        """1 or 2, P, N: those of each image, and of its mirror image."""
        sides = (False, True) if flip else (False,)
        return np.stack([self._side(pictures, codec, say, side) for side in sides])

    def _side(self, pictures: Pictures, codec: Any, say: Say, mirrored: bool) -> Array:
        """P N: as they were kept, or from the codec."""
        asked = self.data.cache
        if asked is None:
            with TemporaryDirectory() as folder:
                return self._encoded(pictures, codec, say, mirrored, Path(folder) / "codes.npz")
        known = f"{fingerprint(pictures)}{codec_fingerprint(codec)}{self.data.resample}{mirrored}"
        name = blake2b(known.encode(), digest_size=8).hexdigest()
        Path(asked).mkdir(parents=True, exist_ok=True)
        return self._encoded(pictures, codec, say, mirrored, Path(asked) / f"codes-{name}.npz")

    def _encoded(
        self, pictures: Pictures, codec: Any, say: Say, mirrored: bool, file: Path
    ) -> Array:
        if not file.is_file():
            gallery = Gallery(pictures, self.settings, say)
            gallery.workers, gallery.reduced = self.data.workers, self.data.reduced
            encode_set(codec, _batches(gallery, codec.device, mirrored), file)
        return read_codes(file, codec).ids.astype(np.int32)

    @property
    def settings(self) -> Settings:
        """How an image is brought to the codec's size."""
        data = self.data
        assert data.image is not None
        assert data.channels is not None
        return make_settings(
            {
                "image_processor_type": "ViTImageProcessor",
                "size": {"height": data.image[0], "width": data.image[1]},
                "resample": next(n for n, name in FILTERS.items() if name == data.resample),
                "image_mean": [0.5] * data.channels,
                "image_std": [0.5] * data.channels,
                "do_convert_rgb": data.channels == 3,
            }
        )

    def examples(self, epoch: int) -> Drawings:
        """A caption of each, by (seed, epoch) alone."""
        return self.splits[0].drawn(self.options.drop, self.recipe.train.seed, epoch)

    @property
    def validation(self) -> Drawings:
        """The held-out images, each with one of its captions."""
        return self.splits[1].drawn(0.0, 0)

    def lengths(self, examples: Drawings) -> tuple[Lengths, Lengths]:
        """All alike."""
        lengths = np.full(len(examples), self.longest, dtype=np.int64)
        return lengths, lengths

    # --- model ----------------------------------------------------------------------------------

    @property
    def longest(self) -> int:
        """Places of text, and codes."""
        rows, columns = self.codec.grid
        return int(self.data.text + rows * columns)

    def config(self, vocabulary: Vocabulary) -> DecoderOnly:
        """The recipe's decoder for these words, this codec and so much text."""
        tree = self.recipe.model.tree(self.shape)
        if not isinstance(tree, DecoderOnly) or not isinstance(tree.head, JoinedHead):
            raise ConfigError(
                f"model is a {type(tree).__name__} with head {type(tree.head).__name__}, but "
                f"objective={self.name!r} needs a DecoderOnly with JoinedHead; give sizes alone "
                f"(model: {{dim: 256, heads: 4, layers: 6}}), or preset: dalle with changes"
            )
        source = fit_source(tree.decoder)
        codes, shape = source.codes, source.shape
        if self.pictures is not None:  # until then nobody needs the codec
            codes, shape = self.codec.codes, self.codec.grid
        return fitted(
            tree, words=vocabulary.size, codes=codes, text=self.data.text, shape=shape,
            pad_id=vocabulary.pad or 0,
        )  # fmt: skip

    def leave(self, run: Path) -> None:
        """The codec, so that the run can draw wherever it goes."""
        save(self.codec, run / FOLDER, family=OWN)

    # --- batches and losses -----------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Images of a full batch."""
        train = self.recipe.train
        return rows_that_fit(self.longest, train.batch_tokens, train.batch_rows)

    def frame(self) -> Frame | None:
        """So many rows; those that are missing at the end of an epoch are filled up."""
        return Frame(self.rows * self.longest, self.rows, self.longest)

    def collate(self, examples: Drawings, index: Array, frame: Frame | None = None) -> DrawingBatch:
        """Rows of a caption and codes."""
        text = examples.texts[examples.which[index]]
        codes = examples.codes[index].astype(np.int64)
        missing = 0 if frame is None else frame.sentences - len(index)
        if missing:
            text = np.concatenate([text, np.full((missing, text.shape[1]), self.pad)])
            codes = np.concatenate([codes, np.full((missing, codes.shape[1]), IGNORE)])
        counts = (len(index) * codes.shape[1], int((text[:, 1:] != self.pad).sum()))
        both = torch.from_numpy(text), torch.from_numpy(codes)
        return DrawingBatch(*both, sum(counts), counts)

    def _hidden(
        self, model: Any, batch: DrawingBatch, dtype: torch.dtype | None
    ) -> tuple[Tensor, Tensor]:
        """The states that say words, and those that say codes: B L−1 dim, B N dim."""
        words = model.config.decoder.source.words
        read = batch.codes[:, :-1].clamp(min=0) + words  # the last code is said, and not read
        ids = torch.cat([batch.text, read], 1)
        side = Side(Grid(*ids.shape), {"input_ids": ids}, ids)
        hidden = model.hidden({"decoder": side}, dtype=dtype)["decoder"]
        last = batch.text.shape[1] - 1
        return hidden[:, :last], hidden[:, last:]

    def loss(
        self,
        model: Any,
        batch: DrawingBatch,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Weighted sums over codes and over words, and the plain ones."""
        words, codes = self._hidden(model, batch, dtype)
        head, share = model.vocab_head, self.options.text_weight
        aims = batch.text[:, 1:]
        aims = aims.masked_fill(aims == model.config.decoder.source.pad_id, IGNORE)
        image, image_nll = head.score_part(
            codes.flatten(0, 1), batch.codes.flatten(), smoothing, codes=True, **more
        )
        text, text_nll = head.score_part(words.flatten(0, 1), aims.flatten(), smoothing, **more)
        return torch.stack([(1 - share) * image, share * text]), torch.stack([image_nll, text_nll])

    def measured(self, model: Any) -> tuple[str, ...]:
        """How often the likeliest code is right."""
        return ("image_accuracy",)

    def measures(
        self, model: Any, batch: DrawingBatch, *, dtype: torch.dtype | None = None
    ) -> dict[str, Tensor]:
        """How often the likeliest code is the right one."""
        _, codes = self._hidden(model, batch, dtype)
        said = widen(model.vocab_head.codes(codes)).argmax(-1)
        return {"image_accuracy": (said == batch.codes).sum()}

    @torch.no_grad()
    def predictions(self, model: Any, examples: Drawings, count: int = 50) -> Predictions:
        """Some captions, and what is drawn of them: a class each, or the first ones."""
        captions = self.captions[1]
        _, first = np.unique(captions.meaning, return_index=True)
        chosen = np.sort(first)[:CAPTIONS]
        which = torch.arange(len(chosen)).repeat_interleave(EACH).to(model.device)
        texts = torch.from_numpy(examples.texts[1 + chosen]).to(model.device)
        generator = torch.Generator().manual_seed(self.recipe.train.seed)
        noise = 1 - torch.rand(len(which), examples.codes.shape[1], generator=generator)
        codec = self.codec.to(model.device)
        images = codec.decode(draw_codes(model, texts, which, noise.to(model.device))).cpu()
        codec.cpu()
        shown = [Seen(thumbnail(image)) for image in images]
        return Predictions(
            pictures=tuple(
                Seen(wanted=captions.texts[text], drawn=tuple(shown[i * EACH : (i + 1) * EACH]))
                for i, text in enumerate(chosen)
            )
        )


def _batches(gallery: Gallery, device: torch.device, mirrored: bool) -> Iterator[Tensor]:
    """All images in their order, as bytes."""
    for first in range(0, len(gallery), _AT_ONCE):
        index = np.arange(first, min(first + _AT_ONCE, len(gallery)))
        pixels = torch.from_numpy(gallery.pixels(index)).to(device)
        yield pixels.flip(-1) if mirrored else pixels
