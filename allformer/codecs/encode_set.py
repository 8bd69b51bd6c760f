"""A whole set of images as codes, kept on disk: encoded once, read by every run that learns them.

    count = encode_set(codec, batches, "codes.npz")        # batches of B C H W, uint8 or 0 … 1
    codes = read_codes("codes.npz", codec)
    codes.ids[7]                                          # h·w numbers

Legend: N images, B those of a batch, h w the grid of codes.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from allformer.codecs.codec import CodecModel
from allformer.errors import DataError


class Codes(NamedTuple):
    """What a file of codes says."""

    ids: npt.NDArray[Any]  # N (h·w), in reading order
    grid: tuple[int, int]
    codes: int  # of the codebook
    codec: str  # by which they were made: `fingerprint`


def encode_set(codec: CodecModel[Any], batches: Iterable[Tensor], path: str | Path) -> int:
    """Write the codes of all images, in their order; returns how many images there were.

    The file appears whole or not at all.
    """
    path = Path(path)
    kind = np.uint16 if codec.codes <= 1 << 16 else np.int32
    found = [codec.encode(pixels).cpu().numpy().astype(kind) for pixels in batches]
    if not found:
        raise DataError(f"{path}: there are no images to encode; give one batch at least")
    if len({rows.shape[1] for rows in found}) > 1:
        raise DataError(f"{path}: the images have different sizes; resize them to one")
    ids, part = np.concatenate(found), path.with_name(path.name + ".part")
    told = {"grid": codec.grid, "codes": codec.codes, "codec": fingerprint(codec)}
    with part.open("wb") as file:
        np.savez_compressed(file, ids=ids, **told)  # type: ignore[arg-type]
    os.replace(part, path)
    return len(ids)


def read_codes(path: str | Path, codec: CodecModel[Any] | None = None) -> Codes:
    """What `encode_set` wrote; with a `codec`, only if it was the one that wrote it."""
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            grid = tuple(int(n) for n in file["grid"])
            found = Codes(file["ids"], grid, int(file["codes"]), str(file["codec"]))  # type: ignore[arg-type]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is no file of codes ({error}); encode the images again") from None
    if codec is not None and found.codec != fingerprint(codec):
        raise DataError(
            f"{path} has codes of another codec, which mean something else to this one; encode the "
            f"images again"
        )
    return found


def fingerprint(codec: CodecModel[Any]) -> str:
    """Of its config and weights: codes are read by the codec that made them, or not at all."""
    seen = blake2b(codec.config.to_json().encode(), digest_size=16)
    for name, x in codec.state_dict().items():
        seen.update(name.encode())
        seen.update(x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return seen.hexdigest()
