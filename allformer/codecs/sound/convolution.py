"""Convolutions over time that keep step: T samples in, ⌈T / stride⌉ out, and back.

Legend: B batch, C channels, T steps of time, k kernel.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer.codecs.sound.seanet_config import Conv, Seanet
from allformer.core.precision import cast


class TimeNorm(nn.Module):
    """Mean 0 and variance 1 over all channels and all of time, then a gain and a bias a channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, 1, cast(self.weight, x.dtype), cast(self.bias, x.dtype))


class Weighted(nn.Module):
    """The weights of a convolution, as they are, or as a direction and a length (weight norm;
    Salimans & Kingma, 2016), and the norm that follows it."""

    decays = ("weight", "direction")

    def __init__(
        self, shape: Conv, trunk: Seanet, norm: str | None, groups: int = 1, bias: bool = True
    ) -> None:
        super().__init__()
        self.shape, self.trunk, self.groups = shape, trunk, groups
        rows, columns = (shape.outputs, shape.inputs)[:: -1 if shape.up else 1]
        weight = nn.Parameter(torch.empty(rows, columns // groups, shape.kernel))
        self.weight = self.direction = self.length = None
        if norm == "weights":
            self.length = nn.Parameter(torch.empty(rows, 1, 1))
            self.direction = weight
        else:
            self.weight = weight
        self.bias = nn.Parameter(torch.empty(shape.outputs)) if bias else None
        self.norm = TimeNorm(shape.outputs) if norm == "time" else None

    def reset_parameters(self) -> None:
        """As torch starts them: uniform within 1/√fan-in."""
        weight = self.direction if self.weight is None else self.weight
        assert weight is not None
        reach = 1 / math.sqrt(weight[0].numel())
        nn.init.uniform_(weight, -reach, reach)
        if self.length is not None:
            self.length.copy_(weight.flatten(1).norm(dim=1).view_as(self.length))
        if self.bias is not None:
            nn.init.uniform_(self.bias, -reach, reach)

    def weights(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Weight and bias, in the dtype that is computed in."""
        weight: Tensor | None = self.weight
        if weight is None:
            assert self.direction is not None
            assert self.length is not None
            weight = torch._weight_norm(self.direction, self.length, 0)
        bias = None if self.bias is None else cast(self.bias, dtype)
        return cast(weight, dtype), bias

    def normed(self, x: Tensor) -> Tensor:
        """After the norm, where there is one."""
        return x if self.norm is None else self.norm(x)


class Convolution(Weighted):
    """B C T → B C′ ⌈T / stride⌉. A causal one is padded before alone; what the last step lacks of
    a stride stands behind. `padding` is not the trunk's where Mimi's last one differs."""

    def __init__(
        self, shape: Conv, trunk: Seanet, norm: str | None,
        padding: str | None = None, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(shape, trunk, norm, bias=bias)
        self.padding = padding or trunk.padding

    def forward(self, x: Tensor) -> Tensor:
        shape = self.shape
        more = (shape.kernel - 1) * shape.dilation + 1 - shape.stride
        behind = 0 if self.trunk.causal else more // 2
        fill = -x.shape[-1] % shape.stride
        x = padded(x, more - behind, behind + fill, self.padding)
        weight, bias = self.weights(x.dtype)
        x = F.conv1d(x, weight, bias, stride=shape.stride, dilation=shape.dilation)
        return self.normed(x)


class Upward(Weighted):
    """B C T → B C′ T·stride: the surplus of a transposed convolution is cut off at its ends."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weights(x.dtype)
        x = F.conv_transpose1d(x, weight, bias, stride=self.shape.stride, groups=self.groups)
        x = self.normed(x)
        more = self.shape.kernel - self.shape.stride
        behind = math.ceil(more * self.trunk.trim) if self.trunk.causal else more // 2
        return x[..., more - behind : x.shape[-1] - behind]


def padded(x: Tensor, before: int, behind: int, mode: str) -> Tensor:
    """Padding in time. Sound shorter than its reflection is filled up with zeros first, which are
    cut off again (as the reference does)."""
    most = max(before, behind)
    lacks = most - x.shape[-1] + 1 if mode == "reflect" else 0
    if lacks <= 0:
        return F.pad(x, (before, behind), mode)
    x = F.pad(F.pad(x, (0, lacks)), (before, behind), mode)
    return x[..., : x.shape[-1] - lacks]
