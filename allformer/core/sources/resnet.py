"""A residual network's feature map as a sequence.

Legend: B images, C channels, H and W rows and columns of the map, N = H·W.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.config.resnet import Convolved
from allformer.core.inputs import Side
from allformer.core.linear import Linear
from allformer.core.precision import cast, widen
from allformer.core.registry import implements
from allformer.core.sources.source import Source
from allformer.core.taps import tap
from allformer.errors import ConfigError

EPS = 1e-5


class FrozenNorm(nn.Module):
    """Batch norm by stored numbers: (x − mean) / √(variance + ε) · weight + bias."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "mean", "variance"):
            self.register_buffer(name, torch.empty(channels))

    def reset_parameters(self) -> None:
        """Nothing is changed."""
        for name in ("weight", "variance"):
            nn.init.ones_(getattr(self, name))
        for name in ("bias", "mean"):
            nn.init.zeros_(getattr(self, name))

    def forward(self, x: Tensor) -> Tensor:
        scale = widen(self.weight) * (widen(self.variance) + EPS).rsqrt()
        shift = widen(self.bias) - widen(self.mean) * scale
        return x * scale.to(x.dtype)[:, None, None] + shift.to(x.dtype)[:, None, None]


class Convolution(nn.Module):
    """A convolution without bias, as large as its image divided by its stride, and its norm."""

    decays = ("weight",)

    def __init__(self, sizes: Convolved) -> None:
        super().__init__()
        self.sizes = sizes
        shape = sizes.outputs, sizes.inputs, sizes.kernel, sizes.kernel
        self.weight = nn.Parameter(torch.empty(shape))
        self.norm = FrozenNorm(sizes.outputs)

    def reset_parameters(self) -> None:
        """He et al., 2015b: the spread stays the same through relu."""
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.sizes.kernel, self.sizes.stride
        weight = cast(self.weight, x.dtype)
        y: Tensor = self.norm(F.conv2d(x, weight, stride=stride, padding=kernel // 2))
        return y


class Residual(nn.Module):
    """Convolutions with relu in between, beside a short cut."""

    def __init__(self, sizes: tuple[Convolved, ...], short: Convolved | None) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(map(Convolution, sizes))
        self.short = None if short is None else Convolution(short)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i, convolution in enumerate(self.convolutions):
            y = convolution(y if i == 0 else F.relu(y))
        return F.relu(y + (x if self.short is None else self.short(x)))


@implements(config.ResNet)
class ResNet(Source):
    """Pixels → the cells of the last feature map, in reading order, B N dim."""

    takes = ("pixel_values", "pixel_mask")
    per_token = False

    def __init__(self, stack: config.Stack, path: str) -> None:
        super().__init__(stack, path)
        c: config.ResNet = self.config
        self.stem = Convolution(Convolved(c.channels, c.stem, 7, 2))
        self.stages = nn.ModuleList(
            nn.ModuleList(Residual(*sizes) for sizes in stage) for stage in c.layers()
        )
        self.project = Linear(c.widths[-1], stack.width)
        self.finish()

    def check(self, inputs: Mapping[str, Any], prefix: str = "") -> tuple[int, int]:
        pixels: Any = inputs.get("pixel_values")
        mask: Any = inputs.get("pixel_mask")
        c = self.config
        four = isinstance(pixels, Tensor) and pixels.ndim == 4 and pixels.numel() > 0
        if not four or not pixels.is_floating_point() or pixels.shape[1] != c.channels:
            shown = tuple(pixels.shape) if isinstance(pixels, Tensor) else repr(pixels)[:60]
            raise ConfigError(
                f"{prefix}pixel_values={shown} must be images × {c.channels} channels × height × "
                f"width, in floating point; prepare images as the model's "
                f"preprocessor_config.json says"
            )
        size = (pixels.shape[0], *pixels.shape[2:])
        if mask is not None and (not isinstance(mask, Tensor) or tuple(mask.shape) != size):
            shown = tuple(mask.shape) if isinstance(mask, Tensor) else repr(mask)[:60]
            raise ConfigError(
                f"{prefix}pixel_mask={shown} must be images × height × width, {size}; give 1 for "
                f"pixels of the image and 0 for those around it"
            )
        height, width = c.cut(*size[1:])
        return pixels.shape[0], height * width

    def keep(self, inputs: Mapping[str, Tensor]) -> Tensor | None:
        """Which cells of the map are the image's, B N; None: all. A cell is what the pixel at its
        upper left corner is, as the reference has it."""
        mask = inputs.get("pixel_mask")
        if mask is None:
            return None
        shape = self.config.cut(*mask.shape[1:])
        return F.interpolate(mask[:, None].float(), shape).bool()[:, 0].flatten(1)

    def forward(self, side: Side, dtype: torch.dtype | None = None) -> Tensor:
        """The cells that the first layer reads, B N dim; convolutions compute in `dtype` too."""
        pixels = side.inputs["pixel_values"].to(dtype or self.stem.weight.dtype)
        side = side._replace(inputs={**side.inputs, "pixel_values": pixels})
        return super().forward(side, dtype)

    def vectors(self, side: Side) -> Tensor:
        x = F.relu(self.stem(side.inputs["pixel_values"]))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for number, stage in enumerate(self.stages):
            for layer in stage:  # type: ignore[attr-defined]
                x = layer(x)
            x = tap(self, f"stage{number}", x)  # B C H W
        return tap(self, "cells", self.project(x.flatten(2).transpose(1, 2)))
