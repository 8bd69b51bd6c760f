"""Layers of a head's own: tokens of the head join those that it reads.

Legend: B images, T tokens of both, dim model width.
"""

from __future__ import annotations

from torch import Tensor, nn

from allformer import config
from allformer.core.block import Block, Carried
from allformer.core.fused import ready
from allformer.core.fused.norm import NOTHING
from allformer.core.fused.random import draw
from allformer.core.kernels import Case, Plan, choose
from allformer.core.look import make_look
from allformer.core.relatives.relative import PLAIN


class Layers(nn.Module):
    """`layers(0, x)`: the first layer's work on tokens B T dim; with `mask` (B 1 T T, True = may
    look) not every token looks at every one."""

    def __init__(self, blocks: tuple[config.Block, ...], dim: int, path: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            Block(block, dim, f"{path}.{i}") for i, block in enumerate(blocks)
        )

    def forward(self, number: int, x: Tensor, mask: Tensor | None = None) -> Tensor:
        layer: Block = self.blocks[number]  # type: ignore[assignment]
        kernel = choose(Case("fast", x.device, x.dtype, layer.attention.mixer.size))
        plan = Plan(kernel, make_look(mask))
        if not ready(x):
            whole: Tensor = layer(x, plan)
            return whole
        seed = draw(1, x.device)[0] if layer.training else None
        x, h = layer(x, plan, None, None, None, PLAIN, Carried(None, NOTHING, seed))
        return x if h is None else x + layer.thinning("feed", seed)(h)
