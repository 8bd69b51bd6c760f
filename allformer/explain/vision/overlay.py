"""Small pictures in a page: each stands in it once, as a background; what lies on it is a tiny PNG
or an SVG of its own."""

from __future__ import annotations

import base64
import binascii
import re
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from allformer.explain.heat import address

PNG = b"\x89PNG\r\n\x1a\n"
# Dark to bright, seen on white, black and coloured pictures alike.
_RAMP = np.array([(40, 16, 100), (170, 30, 120), (240, 90, 50), (255, 225, 90)], np.float64)
_LEAST, _MOST = 0.35, 0.85  # opacity


def size(text: str) -> tuple[int, int] | None:
    """Width and height of a PNG in base64, from its header; None: it is none."""
    if not re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", text):
        return None  # nothing that could leave an attribute
    try:
        head = base64.b64decode(text[:32])
    except binascii.Error:
        return None
    width, height = (int.from_bytes(head[at : at + 4], "big") for at in (16, 20))
    return (width, height) if head.startswith(PNG) and width and height else None


def picture(text: str, *above: str, alt: str = "", css: str = "") -> str:
    """A picture (PNG in base64) with what lies above it; empty where it is none. `alt` is HTML."""
    found = size(text)
    if found is None:
        return ""
    width, height = found
    fine = " fine" if max(found) > 64 else ""  # else its pixels are shown as they are
    return (
        f'<div class="sight{fine} {css}" style="aspect-ratio:{width}/{height}">'
        f'<img alt="{alt}" src="data:image/png;base64,{text}">{"".join(above)}</div>'
    )


class Shown:
    """Pictures that a page shows many times: `shown.on(text, heat)`, and `shown.style` once. Their
    names are made of what they show, so that several sections of a page do not mix them up."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def on(self, text: str, above: str, label: str) -> str:
        """The picture with what lies on it; empty where it is none."""
        found = size(text)
        if found is None:
            return ""
        name = self.names.setdefault(
            text, "back-" + blake2b(text.encode(), digest_size=6).hexdigest()
        )
        return (
            f'<div class="sight {name}" role="img" {label} '
            f'style="aspect-ratio:{found[0]}/{found[1]}">{above}</div>'
        )

    @property
    def style(self) -> str:
        """The pictures, each once."""
        rules = (
            f".{name}{{background-image:url(data:image/png;base64,{text})}}"
            for text, name in self.names.items()
        )
        return f"<style>{''.join(rules)}</style>" if self.names else ""


def heat(values: npt.NDArray[np.floating]) -> str:
    """Values R C ≥ 0 as a veil over a picture: the brightest is the largest of them."""
    share = values / max(float(values.max()), 1e-12)
    at = share * (len(_RAMP) - 1)
    low = np.minimum(at.astype(int), len(_RAMP) - 2)
    part = (at - low)[..., None]
    colour = _RAMP[low] * (1 - part) + _RAMP[low + 1] * part
    alpha = 255 * (_LEAST + (_MOST - _LEAST) * share)
    pixels = np.rint(np.concatenate([colour, alpha[..., None]], -1)).astype(np.uint8)
    return f'<img class="veil" alt="" src="{address(pixels)}">'
