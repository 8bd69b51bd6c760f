"""Encoder and decoder of DALL-E's dVAE: residual bottlenecks, pooling, repeated pixels.

The parts have the names of OpenAI's files: `blocks.group_1.block_1.res_path.conv_1.w`.

Legend: B batch, C channels, H W the image, h w the grid of codes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from allformer.codecs.config import Trunk
from allformer.codecs.convolution import Convolution
from allformer.core.taps import tap


class Bottleneck(nn.Module):
    """x + four convolutions, the inner ones a quarter as wide (appendix A.1); what they add is
    scaled down by the square of the depth, so that a deep stack starts as nothing but its path."""

    def __init__(self, inputs: int, outputs: int, kernels: Sequence[int], layers: int) -> None:
        super().__init__()
        inner, same = outputs // 4, inputs == outputs
        self.gain = 1 / layers**2
        self.id_path = nn.Identity() if same else Convolution(inputs, outputs, 1)
        sizes = [inputs, inner, inner, inner, outputs]
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        for i, kernel in enumerate(kernels):
            parts[f"relu_{i + 1}"] = nn.ReLU()
            parts[f"conv_{i + 1}"] = Convolution(sizes[i], sizes[i + 1], kernel)
        self.res_path = nn.Sequential(parts)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.id_path(x) + self.gain * self.res_path(x)
        return y


class Half(nn.Module):
    """What encoder and decoder have in common: a convolution, groups of blocks, a convolution."""

    def __init__(
        self, tree: Trunk, path: str, ends: tuple[Convolution, Convolution], start: int,
        widths: Sequence[int], kernels: Sequence[int], between: tuple[str, nn.Module],
    ) -> None:  # fmt: skip
        super().__init__()
        self.path = path
        groups: OrderedDict[str, nn.Module] = OrderedDict(input=ends[0])
        before = start
        for i, width in enumerate(widths):
            blocks: OrderedDict[str, nn.Module] = OrderedDict()
            for j in range(tree.per_group):
                blocks[f"block_{j + 1}"] = Bottleneck(before, width, kernels, tree.layers)
                before = width
            if i + 1 < len(widths):
                blocks[between[0]] = between[1]
            groups[f"group_{i + 1}"] = nn.Sequential(blocks)
        groups["output"] = nn.Sequential(OrderedDict(relu=nn.ReLU(), conv=ends[1]))
        self.blocks = nn.Sequential(groups)

    def forward(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The middle computes in `dtype`; what meets the codes stays as wide as `x`."""
        return self.run(x, list(self.blocks.named_children()), dtype)

    def behind(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """All but the first convolution."""
        return self.run(x, list(self.blocks.named_children())[1:], dtype)

    def run(
        self, x: Tensor, parts: Sequence[tuple[str, nn.Module]], dtype: torch.dtype | None
    ) -> Tensor:
        """One part after the other."""
        wide = x.dtype
        for name, part in parts:
            # OpenAI's are half but for the convolutions from and to the codes.
            x = part(x.to(wide if self.keeps(name) or dtype is None else dtype))
            x = tap(self, name, x)
        return x.to(wide)

    def keeps(self, name: str) -> bool:
        """Whether a part stays in full precision."""
        raise NotImplementedError


class Encoder(Half):
    """B C H W → B read h w."""

    def __init__(self, tree: Trunk) -> None:
        ends = (Convolution(tree.channels, tree.hidden, 7),
                Convolution(tree.widths[-1], tree.read, 1))  # fmt: skip
        pool = ("pool", nn.MaxPool2d(2))
        super().__init__(tree, "encoder", ends, tree.hidden, tree.widths, (3, 3, 3, 1), pool)

    def keeps(self, name: str) -> bool:
        return name == "output"


class Decoder(Half):
    """B said h w → B painted H W."""

    def __init__(self, tree: Trunk) -> None:
        ends = (Convolution(tree.said, tree.start, 1),
                Convolution(tree.hidden, tree.painted, 1))  # fmt: skip
        up, widths = ("upsample", nn.Upsample(scale_factor=2, mode="nearest")), tree.widths[::-1]
        super().__init__(tree, "decoder", ends, tree.start, widths, (1, 3, 3, 3), up)

    def keeps(self, name: str) -> bool:
        return name == "input"
