"""A layer, and layers as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle as _cycle
from itertools import islice
from typing import Annotated, Literal

from allformer.config.attention import Attention
from allformer.config.base import Config, Probability
from allformer.config.check import above, refuse
from allformer.config.counting import Part
from allformer.config.feed_forward import Feed
from allformer.config.json import MOST_LAYERS
from allformer.config.mixer import Full
from allformer.config.norm import Norm
from allformer.errors import ConfigError


@dataclass(frozen=True)
class Block(Config):
    """One layer: self-attention, cross-attention when `cross` is set, feed-forward.

    `norm_at="post"`: norm(x + f(x)), as in the paper. `"pre"`: x + f(norm(x)).
    `dropout` acts on each sub-layer's output before it is added; `scale` multiplies it first, by a
    learned factor for each feature that starts there (layer scale: CaiT, DINOv2). In training
    `drop_path` leaves out what a sub-layer gives for a whole row, with this probability (stochastic
    depth; Huang et al., 2016).
    """

    attention: Attention
    feed: Feed
    cross: Attention | None = None
    norm: Norm = Norm()
    norm_at: Literal["pre", "post"] = "post"
    dropout: Probability = 0.1
    scale: Annotated[float, above(0, "DINOv2 has 1.0; None is without")] | None = None
    drop_path: Probability = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cross is not None and self.cross.mixer != Full():
            refuse(self, "cross", "must look at all that there is", "give it mixer=Full()")

    def lines(self, dim: int, n: int, causal: bool) -> Iterator[Part]:
        """Its lines in the count, at n tokens."""
        yield self.attention.line("self-attention", dim, n, causal)
        if self.cross is not None:
            yield self.cross.line("cross-attention", dim, n, causal=False)
        yield self.feed.line("feed-forward", dim)
        times = 2 if self.cross is None else 3
        yield self.norm.line("norms", dim, times=times)
        if self.scale is not None:
            yield Part("layer scales", f"{times}·d", times * dim)

    def activations(self, dim: int) -> int:
        """Numbers of one token that are kept for the backward pass, with fused attention.

        What matrix products and norms need again: inputs, q, k, v, context, the feed-forward's
        inner values. With attention by the formula, H·n² weights come on top.
        """
        inner = 2 * (self.attention.heads + self.attention.groups) * self.attention.size(dim)
        layers = 1 if self.cross is None else 2
        feed = 0 if self.feed.chunk else (3 if self.feed.gated else 2) * self.feed.width
        return layers * (inner + 2 * dim) + 2 * dim + feed


def repeat(block: Block, times: int) -> tuple[Block, ...]:
    """`repeat(block, 6)`: six layers of one shape."""
    return (block,) * _some("repeat", times)


def cycle(blocks: Iterable[Block], times: int) -> tuple[Block, ...]:
    """`cycle((local, full), 12)`: twelve layers that alternate."""
    return tuple(islice(_cycle(tuple(blocks)), _some("cycle", times)))


def _some(name: str, times: int) -> int:
    if times > MOST_LAYERS:
        raise ConfigError(
            f"{name} with times={times} makes more than {MOST_LAYERS:,} layers; try 6"
        )
    return times
