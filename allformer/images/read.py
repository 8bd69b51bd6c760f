"""`read_image("cat.jpg")`: an image from a file, bytes, an array or Pillow, upright and in RGB."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from allformer.errors import DataError
from allformer.images.colours import from_array, to_mode
from allformer.images.pillow import pillow

# Pillow's own limit (it warns there): beyond it lie decompression bombs, files of a few bytes that
# fill the memory.
MOST_PIXELS = 89_478_485
# What is read. Others are left out on purpose: Pillow gives EPS to a program of the machine's.
FORMATS = (
    "JPEG",
    "MPO",
    "PNG",
    "WEBP",
    "GIF",
    "BMP",
    "DIB",
    "TIFF",
    "PPM",
    "JPEG2000",
    "AVIF",
    "ICO",
)
ENDINGS = (
    ".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm",
    ".jp2", ".avif",
)  # fmt: skip

Image = Any  # a path, bytes, an array, a tensor or a Pillow image


def read_image(
    source: Image, *, mode: str = "RGB", name: str = "the image", enough: int | None = None
) -> Any:
    """A Pillow image in RGB (or grey, `mode="L"`), turned as its EXIF says.

    >>> read_image("cat.jpg").size
    (640, 480)

    `source` is a path, the bytes of a file, an array or tensor (uint8 or uint16, H W C or C H W)
    or a Pillow image. Of an animation the first frame is taken. A file that is missing, empty,
    damaged, cut short, no image, or larger than 89 million pixels is refused by its name; `name`
    is what an error calls a source that has none.

    Where `enough` pixels along either edge are, a JPEG is decoded at a half, a quarter or an eighth
    of its size, as long as it has twice as many: much sooner, but to slightly other pixels.
    """
    if isinstance(source, str | Path):
        name = str(source)
    image = _open(source, name, enough)
    return to_mode(_upright(image, name), mode, name)


def _open(source: Image, name: str, enough: int | None = None) -> Any:
    """The first frame, loaded; nothing is decoded before its size is known."""
    if isinstance(source, np.ndarray | torch.Tensor):
        return from_array(source.cpu() if isinstance(source, torch.Tensor) else source, name)
    if isinstance(source, pillow().Image):
        image = source
    elif isinstance(source, str | Path):
        image = _open_stream(io.BytesIO(_bytes(Path(source))), name)
    elif isinstance(source, bytes | bytearray | memoryview):
        image = _open_stream(io.BytesIO(source), name)
    else:
        raise DataError(
            f"{name} is a {type(source).__name__}; give a path, bytes, an array or a Pillow image"
        )
    _check_size(image.size, name)
    try:
        if enough is not None and image is not source:
            image.draft(None, (2 * enough, 2 * enough))  # of all but JPEGs nothing comes of it
        image.load()
    except Exception as fault:  # each format has its own errors
        raise DataError(f"{name} is damaged ({_said(fault)}); get or save it again") from None
    return image.copy() if image is source else image  # what is given back may be written on


def _bytes(path: Path) -> bytes:
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is no file; give image files")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} is not there; check the path") from None
    except OSError as fault:
        raise DataError(f"{path} cannot be read: {fault.strerror}; check the file") from None


def _open_stream(stream: io.BytesIO, name: str) -> Any:
    library = pillow()
    if not stream.getbuffer().nbytes:
        raise DataError(f"{name} is empty; get or save it again")
    library.init()
    known = [kind for kind in FORMATS if kind in library.OPEN]
    try:
        return library.open(stream, formats=known)
    except library.DecompressionBombError:
        raise DataError(f"{name} has {_TOO_MANY}") from None
    except library.UnidentifiedImageError:
        raise DataError(
            f"{name} is no image that can be read, or its beginning is damaged; give one of "
            f"{', '.join(known)}"
        ) from None
    except Exception as fault:  # each format has its own errors
        raise DataError(f"{name} is damaged ({_said(fault)}); get or save it again") from None


_ORIENTATION = 0x0112  # EXIF's tag
_TURNED = range(2, 9)  # those of its values that ask for a turn
_TOO_MANY = (
    f"more than {MOST_PIXELS:,} pixels: too many to be decoded safely; make it smaller first"
)


def _check_size(size: tuple[int, int], name: str) -> None:
    width, height = size
    if width * height > MOST_PIXELS:
        raise DataError(f"{name} is {width:,} × {height:,}, {_TOO_MANY}")
    if not width or not height:
        raise DataError(f"{name} is {width} × {height}: it has no pixels; give another image")


def _upright(image: Any, name: str) -> Any:
    """Turned as the camera was held."""
    from PIL import ImageOps

    try:
        if image.getexif().get(_ORIENTATION, 1) not in _TURNED:
            return image  # Pillow would copy it
        return ImageOps.exif_transpose(image)
    except Exception as fault:  # the pixels are sound, what is written about them is not
        warnings.warn(
            f"{name}: its EXIF cannot be read ({_said(fault)}), so it is not turned", stacklevel=3
        )
        return image


def _said(fault: Exception) -> str:
    return (str(fault).splitlines() or [type(fault).__name__])[0][:120] or type(fault).__name__
