"""Log-mel frames as a sequence: two convolutions over time, with GELU behind each.

Legend: B rows, M mel bins, F frames, T = F/2 vectors, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.config.sound import KERNEL, STRIDE
from allformer.core.inputs import Side
from allformer.core.precision import cast
from allformer.core.registry import implements
from allformer.core.sources.source import Source
from allformer.core.taps import tap
from allformer.errors import ConfigError, LengthError


class Convolution(nn.Module):
    """A convolution over time whose result is as long as its input, divided by its stride."""

    decays = ("weight",)

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.weight = nn.Parameter(torch.empty(outputs, inputs, KERNEL))
        self.bias = nn.Parameter(torch.empty(outputs))

    def reset_parameters(self) -> None:
        """As a matrix starts."""
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = cast(self.weight, x.dtype), cast(self.bias, x.dtype)
        return F.conv1d(x, weight, bias, self.stride, KERNEL // 2)


@implements(config.Sound)
class Sound(Source):
    """gelu(conv(gelu(conv(frames)))), B M F → B T D."""

    takes = ("input_features",)
    per_token = False
    masked = False

    def __init__(self, stack: config.Stack, path: str) -> None:
        super().__init__(stack, path)
        self.first = Convolution(self.config.mels, stack.width, 1)
        self.second = Convolution(stack.width, stack.width, STRIDE)
        self.finish()

    def check(self, inputs: Mapping[str, Any], prefix: str = "") -> tuple[int, int]:
        frames: Any = inputs.get("input_features")
        mels = self.config.mels
        three = isinstance(frames, Tensor) and frames.ndim == 3 and frames.numel() > 0
        if not three or not frames.is_floating_point() or frames.shape[1] != mels:
            raise ConfigError(
                f"{prefix}input_features={_told(frames)} must be rows × {mels} mel bins × frames, "
                f"in floating point; make them with allformer.sound"
            )
        longest = self.stack.longest
        steps = self.config.steps(frames.shape[2])
        if longest is not None and steps > longest:
            raise LengthError(
                f"{prefix}input_features of {frames.shape[2]} frames are longer than the model's "
                f"{STRIDE * longest}; cut the sound into windows of at most so many"
            )
        self._check_mask(inputs.get("attention_mask"), (frames.shape[0], frames.shape[2]), prefix)
        return frames.shape[0], steps

    def _check_mask(self, mask: Any, shape: tuple[int, int], prefix: str) -> None:
        """Refuse a mask that is none of frames."""
        if mask is None or (isinstance(mask, Tensor) and tuple(mask.shape) == shape):
            return
        raise ConfigError(
            f"{prefix}attention_mask={_told(mask)} must be rows × frames, {shape}; give 1 for "
            f"frames of the sound and 0 for those behind it, or leave it out"
        )

    def forward(self, side: Side, dtype: torch.dtype | None = None) -> Tensor:
        """The vectors that the first layer reads, B T D; convolutions compute in `dtype` too."""
        frames = side.inputs["input_features"].to(dtype or self.first.weight.dtype)
        side = side._replace(inputs={**side.inputs, "input_features": frames})
        return super().forward(side, dtype)

    def vectors(self, side: Side) -> Tensor:
        frames = self._hide(side.inputs["input_features"], side.inputs.get("attention_mask"))
        x = tap(self, "first", F.gelu(self.first(frames)))  # B D F
        # In order: else every layer's sums would lie as these do, and every norm would copy them.
        return tap(self, "frames", F.gelu(self.second(x)).transpose(1, 2).contiguous())  # B T D

    def _hide(self, frames: Tensor, mask: Tensor | None) -> Tensor:
        """In training, zeros in some spans of frames and of mel bins."""
        c: config.Sound = self.config
        rows, mels, width = frames.shape
        if self.training and c.hide_frames is not None:
            lengths = None if mask is None else mask.sum(-1).tolist()
            spans = draw_spans(c.hide_frames, rows, width, lengths).to(frames.device)
            frames = frames.masked_fill(tap(self, "hidden_frames", spans)[:, None], 0.0)
        if self.training and c.hide_mels is not None:
            spans = draw_spans(c.hide_mels, rows, mels).to(frames.device)
            frames = frames.masked_fill(tap(self, "hidden_mels", spans)[:, :, None], 0.0)
        return frames


def draw_spans(
    spans: config.Spans, rows: int, width: int, lengths: list[int] | None = None
) -> Tensor:
    """Which of `width` cells of each row are hidden, rows × width, by torch's generator.

    `draw_spans(Spans(0.05, 10), 2, 3000)`. Spans begin at places that are drawn without putting
    them back, so that they may overlap; with `lengths` within each row's own.
    """
    if spans.length > width:
        raise ConfigError(
            f"Spans.length={spans.length} is longer than the {width} that there are; shorten it"
        )
    part = torch.rand(()).item()  # one for all rows: a fraction of a span is one, or none
    hidden = torch.zeros(rows, width, dtype=torch.bool)
    for row in range(rows):
        length = width if lengths is None else lengths[row]
        places = length - spans.length + 1
        count = span_count(spans, length, width, part)
        starts = torch.randperm(places)[:count] if places > 0 else torch.empty(0).long()
        cells = starts[:, None] + torch.arange(spans.length)
        hidden[row, cells.flatten()] = True
    return hidden


def span_count(spans: config.Spans, length: int, width: int, part: float) -> int:
    """How many spans in a row of which `length` cells of `width` are its own."""
    count = max(int(spans.share * length / spans.length + part), spans.least)
    if count * spans.length > width:
        count = width // spans.length
    return min(count, max(length - spans.length + 1, 0))


def _told(x: Any) -> str:
    """A tensor by shape and type, for errors."""
    return f"{tuple(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else repr(x)[:60]
