"""Pillow, which reads and resizes images: imported where it is used."""

from __future__ import annotations

from typing import Any

from allformer.errors import DataError


def pillow() -> Any:
    """`pillow().open(…)`: the module `PIL.Image`, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(
            "images are read by Pillow; install it: pip install allformer[vision]"
        ) from None
    return Image
