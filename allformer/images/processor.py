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
from allformer.images.in_order import in_order, usable_cores
from allformer.images.prepare import Array, look_up, pixels_of, value_table
from allformer.images.read import Image, read_image
from allformer.images.settings import Settings, make_settings
from allformer.json_file import read_object

FILE = "preprocessor_config.json"
WHOLE = "processor_config.json"  # transformers 5: of several processors together
FILES = (WHOLE, FILE)
# Threads: reading and resizing go on beside each other, Pillow lets Python's lock go.
WORKERS = max(4, usable_cores())


@dataclass(frozen=True, eq=False)
class Processor:
    """Images → `pixel_values`; `files` are those it was read from, to be written back."""

    settings: Settings
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @cached_property
    def _table(self) -> Array | None:
        return value_table(self.settings)

    def __call__(self, images: Image | Sequence[Image], *, workers: int = WORKERS) -> Tensor:
        """Prepared images, B C H W, in their order; one image is a batch of one.

        >>> load_processor("google/vit-base-patch16-224")(["cat.jpg", "dog.png"]).shape
        torch.Size([2, 3, 224, 224])
        """
        many = list(images) if isinstance(images, list | tuple) else [images]
        if not many:
            raise DataError("there is no image; give one or more")
        return next(self.batches(many, len(many), workers=workers))

    def one(self, image: Image, name: str = "the image") -> Tensor:
        """A single image, C H W."""
        return torch.from_numpy(look_up(self._bytes(image, name), self._table))

    def _bytes(self, image: Image, name: str) -> Array:
        """Read, resized and cropped, C H W."""
        read = read_image(image, mode=self.settings.mode, name=name)
        name = str(image) if isinstance(image, str | Path) else name
        return pixels_of(read, self.settings, name)

    def values(self, pixels: Tensor) -> Tensor:
        """Bytes B C H W, wherever they are, as the model reads them: the bits that `one` gives."""
        if self._table is None:
            return pixels
        table = torch.from_numpy(self._table).to(pixels.device, non_blocking=True)
        channel = torch.arange(len(table), device=pixels.device)[:, None, None]
        return torch.take(table, pixels.long() + 256 * channel)

    def batches(
        self,
        images: Iterable[Image],
        size: int,
        *,
        workers: int = WORKERS,
        progress: Callable[[int], None] | None = None,
        device: torch.device | None = None,
    ) -> Iterator[Tensor]:
        """Batches of at most `size` in order on the `device`, read ahead by so many threads.

        `progress` hears how many images are done. Never more than the next few images are in
        memory, however many there are. To a GPU go bytes, a fourth of what they become there.
        """
        if size < 1:
            raise DataError(f"size={size} must be at least 1: so many images go together")
        named = ((image, f"image {i}") for i, image in enumerate(images, 1))
        if device is None or device.type != "cuda":
            stream = in_order(lambda pair: self.one(*pair), named, workers)
        else:
            stream = in_order(lambda pair: _contiguous(self._bytes(*pair)), named, workers)
        done = 0
        while rows := list(islice(stream, size)):
            yield self._moved(_same(rows, done), device)
            done += len(rows)
            if progress is not None:
                progress(done)

    def _moved(self, rows: list[Tensor], device: torch.device | None) -> Tensor:
        """A batch where it shall be; nobody waits until it is there."""
        if device is None or device.type != "cuda":
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
    return torch.from_numpy(np.ascontiguousarray(pixels))


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
