"""What draws: a decoder over text and codes with its codec, or ImageGPT with its colours.

kit = open_drawing("runs/fashion-dalle")
kit.draw(["a red shoe"], [0, 0, 0], noise)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from allformer import config
from allformer.checkpoint.codec import FOLDER, load_codec
from allformer.checkpoint.hub import find_checkpoint
from allformer.checkpoint.load import load
from allformer.core.model import DecoderOnlyModel
from allformer.core.precision import pick_device, widen
from allformer.core.states import Cache
from allformer.data.fixed_rows import fixed_rows
from allformer.errors import LengthError, TaskError
from allformer.generate.codes import draw_codes, pick
from allformer.images.clusters import paint
from allformer.images.processor import Processor, has_processor, load_processor
from allformer.tasks.batching import excerpt
from allformer.tasks.pipeline import is_half
from allformer.text.load import load_tokenizer
from allformer.text.tokenizer import Tokenizer

Pixels = npt.NDArray[np.uint8]  # R H W C


class DrawingKit(Protocol):
    """A model that draws, opened once for many calls."""

    directory: Path

    @property
    def cells(self) -> int:
        """Codes, or pixels, of an image: as many numbers of chance does it take."""

    @property
    def reads(self) -> bool:
        """Whether it draws what a text says."""

    def draw(self, texts: Sequence[str], which: Tensor, noise: Tensor, **options: Any) -> Pixels:
        """Images of the texts that `which` numbers, one for each row of `noise`."""


@dataclass(frozen=True, eq=False)
class TextKit:
    """DALL-E: a caption becomes codes, and the codec's decoder makes an image of them."""

    model: DecoderOnlyModel = field(repr=False)
    codec: Any = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    directory: Path

    reads = True

    @property
    def source(self) -> config.Joined:
        """What tells words from codes."""
        source = self.model.config.decoder.source
        assert isinstance(source, config.Joined)
        return source

    @property
    def cells(self) -> int:
        return self.source.cells

    def rows(self, texts: Sequence[str]) -> Tensor:
        """Captions as the model reads them, U L; one that is too long is refused."""
        found, source = self.tokenizer.encode_batch(list(texts)), self.source
        for text, ids in zip(texts, found, strict=True):
            if len(ids) > source.length:
                raise LengthError(
                    f"{excerpt(text)} has {len(ids)} tokens, but the model reads {source.length} "
                    f"of a caption; say it in fewer words"
                )
        assert source.pad_id is not None
        rows, _ = fixed_rows(found, source.length, source.pad_id)
        return torch.from_numpy(rows).to(self.model.device)

    def draw(self, texts: Sequence[str], which: Tensor, noise: Tensor, **options: Any) -> Pixels:
        rows = self.rows([*texts, ""])
        device = self.model.device
        codes = draw_codes(
            self.model, rows[:-1], which.to(device), noise.to(device), empty=rows[-1], **options
        )
        pixels = self.codec.decode(codes)  # R C H W, 0 … 1
        found: Pixels = (widen(pixels) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
        return found


@dataclass(frozen=True, eq=False)
class ColourKit:
    """ImageGPT: pixel after pixel, each one of its colours; it reads no text."""

    model: DecoderOnlyModel = field(repr=False)
    processor: Processor = field(repr=False)
    directory: Path

    reads = False

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        size = self.processor.settings.size
        return size["height"], size["width"]

    @property
    def cells(self) -> int:
        return self.size[0] * self.size[1]

    @torch.no_grad()
    def draw(
        self, texts: Sequence[str], which: Tensor, noise: Tensor, *, temperature: float = 1.0,
        top_k: int | None = None, guidance: float = 1.0,
    ) -> Pixels:  # fmt: skip
        if guidance != 1.0:
            raise TaskError(
                f"guidance={guidance} compares with what is drawn without a text, but "
                f"{self.directory} never reads one; leave it out"
            )
        model, clusters = self.model, self.processor.settings.clusters
        assert clusters is not None
        first = model.config.decoder.source.vocab - 1  # the token that an image begins with
        ids = torch.full((len(noise), 1), first, device=model.device)
        cache: Cache = model.new_cache()
        said: list[Tensor] = []
        for chance in noise.to(model.device).unbind(1):
            scores = widen(model.step(ids, cache))[:, : len(clusters)]
            said.append(pick(scores, chance, temperature, top_k))
            ids = said[-1][:, None]
        return paint(torch.stack(said, 1).cpu().numpy(), clusters, self.size)


def open_drawing(
    path: str | Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> TextKit | ColourKit:
    """Open what draws, for many calls: `open_drawing("runs/fashion-dalle")`.

    `device` is a GPU if there is one; the dtype is that of the file, on a CPU fp32 at least.
    """
    directory = find_checkpoint(path)
    where = device if isinstance(device, torch.device) else pick_device(device)
    if dtype is None and where.type == "cpu" and is_half(directory):
        dtype = torch.float32
    model: Any = load(directory, device=where, dtype=dtype)
    tree = model.config
    head = getattr(tree, "head", None)
    if isinstance(tree, config.DecoderOnly) and isinstance(head, config.LMHead):
        if isinstance(tree.decoder.source, config.Joined) and isinstance(head, config.JoinedHead):
            return TextKit(model, _codec(directory, where), load_tokenizer(directory), directory)
        if has_processor(directory):
            processor = load_processor(directory)
            if processor.settings.clusters is not None:
                return ColourKit(model, processor, directory)
    raise TaskError(
        f"{directory} has the shape {type(tree).__name__} and does not draw; give a run of "
        f"objective=text-to-image, or an ImageGPT with its preprocessor_config.json"
    )


def _codec(directory: Path, device: torch.device) -> Any:
    if not (directory / FOLDER).is_dir():
        raise TaskError(
            f"{directory} has no folder {FOLDER}/ with what makes images of codes; copy it from "
            f"the run that was trained"
        )
    return load_codec(directory / FOLDER, device=device)
