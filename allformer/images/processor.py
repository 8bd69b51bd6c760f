"""`load_processor("path/of/a/checkpoint")`: its images as it was taught to see them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from allformer.errors import DataError
from allformer.images.clusters import nearest
from allformer.images.crew import Crew, Standing
from allformer.images.in_order import in_order, usable_cores
from allformer.images.pieces import Pieces, in_pieces
from allformer.images.prepare import Array, look_up, pixels_of, value_table
from allformer.images.read import Image, read_image
from allformer.images.settings import Settings, make_settings
from allformer.json_file import read_object

FILE = "preprocessor_config.json"
WHOLE = "processor_config.json"  # transformers 5: of several processors together
FILES = (WHOLE, FILE)
# Threads, or for many files processes (crew.py): reading and resizing go on beside each other.
WORKERS = max(4, usable_cores())


@dataclass(frozen=True, eq=False)
class Processor:
    """Images → `pixel_values` (or `input_ids`, where colours are numbered: `gives`); `files` are
    those it was read from, to be written back."""

    settings: Settings
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @cached_property
    def _table(self) -> Array | None:
        return value_table(self.settings)

    @property
    def gives(self) -> str:
        """What a model calls that which it prepares."""
        return "pixel_values" if self.settings.clusters is None else "input_ids"

    def __call__(self, images: Image | Sequence[Image], *, workers: int = WORKERS) -> Tensor:
        """Prepared images, B C H W (as numbers of colours B H·W), in their order; one image is a
        batch of one.

        >>> load_processor("google/vit-base-patch16-224")(["cat.jpg", "dog.png"]).shape
        torch.Size([2, 3, 224, 224])
        """
        many = list(images) if isinstance(images, list | tuple) else [images]
        if not many:
            raise DataError("there is no image; give one or more")
        return next(self.batches(many, len(many), workers=workers))

    def one(self, image: Image, name: str = "the image") -> Tensor:
        """A single image, C H W; as numbers of colours H·W."""
        found = self.pieces(image, name).pixels
        if len(found) > 1:
            raise DataError(
                f"{name} is cut into {len(found)} pieces (do_split_image); take them by `pieces`"
            )
        return found[0]

    def pieces(self, image: Image, name: str = "the image") -> Pieces:
        """An image in one piece, or in several where the settings say so, P C H W."""
        pixels, read = self._bytes(image, name)
        cut, ends = in_pieces(pixels, self.settings)
        found = [torch.from_numpy(self._values(piece)) for piece in cut]
        return Pieces(torch.stack(found), ends, (read.height, read.width), read)

    def _bytes(self, image: Image, name: str) -> tuple[Array, Any]:
        """Resized and cropped, C H W, and as it was read."""
        read = read_image(image, mode=self.settings.mode, name=name)
        name = str(image) if isinstance(image, str | Path) else name
        return pixels_of(read, self.settings, name), read

    def _values(self, pixels: Array) -> Array:
        values = look_up(pixels, self._table)
        clusters = self.settings.clusters
        return values if clusters is None else nearest(values, clusters)

    def values(self, pixels: Tensor) -> Tensor:
        """Bytes B C H W, wherever they are, as the model reads them: the bits that `one` gives."""
        if self._table is None:
            return pixels
        table = torch.from_numpy(self._table).to(pixels.device, non_blocking=True)
        channel = torch.arange(len(table), device=pixels.device)[:, None, None]
        return torch.take(table, pixels.long() + 256 * channel)

    def _as_bytes(self, device: torch.device | None) -> bool:
        """Whether images go to the device as bytes and become numbers there: to a GPU, where
        nothing else is done to them than to look the numbers up."""
        s = self.settings
        plain = s.clusters is None and s.do_split_image is None
        return device is not None and device.type == "cuda" and plain

    def batches(
        self,
        images: Iterable[Image],
        size: int,
        *,
        workers: int = WORKERS,
        progress: Callable[[int], None] | None = None,
        device: torch.device | None = None,
    ) -> Iterator[Tensor]:
        """Batches of at most `size` in order on the `device`, read ahead by so many threads; once
        it has read a thousand files, by as many processes.

        `progress` hears how many images are done. Never more than the next few images are in
        memory, however many there are. To a GPU go bytes, a fourth of what they become there.
        """
        if size < 1:
            raise DataError(f"size={size} must be at least 1: so many images go together")
        named = ((image, f"image {i}") for i, image in enumerate(images, 1))
        crew = self._crew(images, workers)
        if crew is not None:
            ready = _contiguous if self._as_bytes(device) else self._tensor
            stream: Iterator[Tensor] = map(ready, crew.read(named))
        elif self._as_bytes(device):
            stream = in_order(lambda pair: _contiguous(self._bytes(*pair)[0]), named, workers)
        else:
            stream = in_order(lambda pair: self.one(*pair), named, workers)
        done = 0
        while rows := list(islice(stream, size)):
            yield self._moved(_same(rows, done), device)
            done += len(rows)
            if progress is not None:
                progress(done)

    @cached_property
    def _standing(self) -> Standing:
        return Standing(self.settings)

    def _crew(self, images: Iterable[Image], workers: int) -> Crew | None:
        """Processes, where many files are read; they take seconds to begin."""
        if not isinstance(images, Sequence) or self.settings.do_split_image is not None:
            return None
        files = all(isinstance(image, str | Path) for image in images)
        return self._standing.crew(len(images), workers) if files else None

    def _tensor(self, pixels: Array) -> Tensor:
        return torch.from_numpy(self._values(pixels))

    def _moved(self, rows: list[Tensor], device: torch.device | None) -> Tensor:
        """A batch where it shall be; nobody waits until it is there."""
        if not self._as_bytes(device):
            batch = torch.stack(rows)
            return batch if device is None else batch.to(device)
        pinned = torch.empty((len(rows), *rows[0].shape), dtype=torch.uint8, pin_memory=True)
        return self.values(torch.stack(rows, out=pinned).to(device, non_blocking=True))

    def save(self, directory: str | Path) -> None:
        """Write the files back, byte for byte; fresh settings as a file that transformers opens."""
        fresh = json.dumps(self.settings.to_dict(), indent=2, sort_keys=True) + "\n"
        Path(directory).mkdir(parents=True, exist_ok=True)
        for name, content in (self.files or {FILE: fresh.encode()}).items():
            (Path(directory) / name).write_bytes(content)


def has_processor(directory: str | Path) -> bool:
    """Whether a checkpoint says how images are prepared for it."""
    return any((Path(directory) / name).is_file() for name in FILES)


def load_processor(directory: str | Path) -> Processor:
    """The processor of a checkpoint's directory, from preprocessor_config.json.

    >>> load_processor("openai/clip-vit-base-patch32").settings.size
    {'shortest_edge': 224}
    """
    directory = Path(directory)
    files = {name: directory / name for name in FILES if (directory / name).is_file()}
    found: dict[str, Any] | None = None
    for name, path in files.items():  # as transformers: what is inside the whole wins
        raw = read_object(path, DataError)
        said = raw.get("image_processor") if name == WHOLE else raw
        if found is None and isinstance(said, dict):
            found, source = said, path
    if found is None:
        raise DataError(
            f"{directory} has no {FILE}, which says how images are prepared; copy it from where "
            f"the checkpoint comes from, or write one with Processor(make_settings(…)).save(…)"
        )
    config = directory / "config.json"
    model_type = read_object(config, DataError).get("model_type", "") if config.is_file() else ""
    try:
        settings = make_settings(found, str(model_type))
    except DataError as error:
        raise DataError(f"{source}: {error}") from None
    return Processor(settings, {name: path.read_bytes() for name, path in files.items()})


def _contiguous(pixels: Array) -> Tensor:
    return torch.from_numpy(np.array(pixels))  # its own: what Pillow gave may be read-only


def _same(rows: list[Tensor], done: int) -> list[Tensor]:
    """They are of one size, or an error."""
    for i, row in enumerate(rows):
        if row.shape != rows[0].shape:
            raise DataError(
                f"image {done + i + 1} is prepared to {tuple(row.shape)}, image {done + 1} to "
                f"{tuple(rows[0].shape)}: they do not go together; prepare them one by one, or set "
                f"a crop_size"
            )
    return rows
