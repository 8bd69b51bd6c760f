"""Patches: an image becomes a sequence by one matrix product.

Legend: B images, C channels, P pixels of a patch's side, H rows and W columns of patches, N = H·W,
F tokens before them, E tokens behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core import plane  # noqa: F401  (registers its positions)
from allformer.core.inputs import Side
from allformer.core.linear import Linear
from allformer.core.registry import implements
from allformer.core.sources.source import Source
from allformer.core.taps import tap
from allformer.errors import ConfigError


@implements(config.Patches)
class Patches(Source):
    """[CLS], the distillation token, registers, and x_p E for each patch x_p (ViT, eq. 1)."""

    takes = ("pixel_values", "bool_masked_pos", "interpolate_pos_encoding")
    per_token = False
    cls: nn.Parameter | None  # 1 width
    distilled: nn.Parameter | None
    registers: nn.Parameter | None
    mask: nn.Parameter | None
    behind: nn.Parameter | None

    def __init__(self, stack: config.Stack, path: str) -> None:
        super().__init__(stack, path)
        c: config.Patches = self.config
        self.project = Linear(c.channels * c.patch**2, stack.width, bias=c.bias)
        counts = {"cls": c.cls, "distilled": c.distilled, "registers": c.registers, "mask": c.mask}
        counts["behind"] = c.behind
        for name, count in counts.items():
            rows = torch.empty(int(count), stack.width)
            self.register_parameter(name, nn.Parameter(rows) if count else None)
        self.finish()

    def reset_parameters(self) -> None:
        """Small random tokens; the vector of hidden patches starts as nothing."""
        for name in ("cls", "distilled", "registers", "behind"):
            if (rows := getattr(self, name)) is not None:
                nn.init.normal_(rows, std=0.02)
        if self.mask is not None:
            nn.init.zeros_(self.mask)

    def check(self, inputs: Mapping[str, Any], prefix: str = "") -> tuple[int, int]:
        pixels: Any = inputs.get("pixel_values")
        c = self.config
        four = isinstance(pixels, Tensor) and pixels.ndim == 4 and pixels.numel() > 0
        if not four or not pixels.is_floating_point() or pixels.shape[1] != c.channels:
            raise ConfigError(
                f"{prefix}pixel_values={_told(pixels)} must be images × {c.channels} channels × "
                f"height × width, in floating point; prepare images as the model's "
                f"preprocessor_config.json says"
            )
        rows, size = pixels.shape[0], (pixels.shape[2], pixels.shape[3])
        self._check_size(size, bool(inputs.get("interpolate_pos_encoding")), prefix)
        height, width = c.cut(*size)
        self._check_hidden(inputs.get("bool_masked_pos"), (rows, height * width), prefix)
        return rows, c.front + height * width + c.behind

    def _check_size(self, size: tuple[int, int], asked: bool, prefix: str) -> None:
        """Refuse an image for which there are no positions."""
        c, position = self.config, self.stack.position
        told = f"{prefix}pixel_values of {size[0]} × {size[1]} pixels"
        if min(size) < c.patch:
            raise ConfigError(
                f"{told} have no patch of Patches.patch={c.patch}; give larger images"
            )
        fixed = isinstance(position, config.LearnedPlane) and position.resize == "asked"
        if fixed and not asked and size != c.image:
            raise ConfigError(
                f"{told} are not of the model's size, Patches.image={c.image}; resize them, or "
                f"give interpolate_pos_encoding=True for positions in between"
            )

    def _check_hidden(self, hidden: Any, shape: tuple[int, int], prefix: str) -> None:
        """Refuse a `bool_masked_pos` that is none."""
        if hidden is None:
            return
        if self.mask is None:
            raise ConfigError(
                f"{prefix}bool_masked_pos={_told(hidden)} given, but Patches.mask=False: this "
                f"model has no vector for hidden patches; leave it out"
            )
        if not isinstance(hidden, Tensor) or tuple(hidden.shape) != shape:
            raise ConfigError(
                f"{prefix}bool_masked_pos={_told(hidden)} must be images × patches, {shape}; give "
                f"True (hidden) or False for each patch"
            )

    def forward(self, side: Side, dtype: torch.dtype | None = None) -> Tensor:
        """The tokens that the first layer reads, B F+N+E dim.

        The matrix product is done in the compute dtype already: it is one like the layers' own.
        """
        pixels = side.inputs["pixel_values"].to(dtype or self.project.weight.dtype)
        side = side._replace(inputs={**side.inputs, "pixel_values": pixels})
        return super().forward(side, dtype)

    def vectors(self, side: Side) -> Tensor:
        x = tap(self, "patches", self.project(self.cut(side.inputs["pixel_values"])))  # B N width
        hidden = side.inputs.get("bool_masked_pos")
        if hidden is not None:
            assert self.mask is not None  # `check` refuses it
            x = torch.where(hidden.bool()[..., None], self.mask.to(x.dtype), x)
        before = (self.cls, self.distilled, self.registers)
        return tap(self, "tokens", self._around(before, x, self.behind))

    def cut(self, pixels: Tensor) -> Tensor:
        """B C H·P W·P → B N C·P·P: each patch as a convolution's kernel lies in memory."""
        side = self.config.patch
        height, width = self.config.cut(*pixels.shape[2:])
        pixels = pixels[:, :, : height * side, : width * side]
        pixels = pixels.reshape(*pixels.shape[:2], height, side, width, side)  # B C H P W P
        return pixels.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)

    @staticmethod
    def _around(before: tuple[Tensor | None, ...], x: Tensor, behind: Tensor | None) -> Tensor:
        """The same tokens before and behind each image's patches."""
        rows = [
            x if row is x else row.to(x.dtype).expand(len(x), -1, -1)
            for row in (*before, x, behind)
            if row is not None
        ]
        return torch.cat(rows, 1) if len(rows) > 1 else x

    def _positions(self, side: Side, x: Tensor) -> Tensor:
        if not isinstance(self.stack.position, config.Plane):
            return super()._positions(side, x)
        assert self.position is not None
        c = self.config
        shape = c.cut(*side.inputs["pixel_values"].shape[2:])
        vectors: Tensor = self.position(shape, c.placed, x)
        if len(vectors) < x.shape[1] - c.registers:  # a formula, which knows of patches alone
            vectors = torch.cat([vectors, vectors.new_zeros(c.behind, vectors.shape[1])])
        if not c.registers:
            return vectors
        nowhere = vectors.new_zeros(c.registers, vectors.shape[1])
        return torch.cat([vectors[: c.placed], nowhere, vectors[c.placed :]])


def _told(x: Any) -> str:
    """A tensor by shape and type, for errors."""
    return f"{tuple(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else repr(x)[:60]
