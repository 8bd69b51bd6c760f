"""Block sparse attention: BigBird's global, window and random blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from allformer.config.base import Natural, Positive
from allformer.config.check import Rule
from allformer.config.counting import Heads, Layers
from allformer.config.mixer import Mixer
from allformer.errors import ConfigError

Seed = Annotated[
    int, Rule(lambda x: 0 <= x < 2**32, "must be from 0 to 2³² − 1", "try the layer's number")
]


@dataclass(frozen=True)
class BlockSparse(Mixer):
    """Blocks of `block` tokens look at blocks (BigBird, Zaheer et al., 2020): the first and the
    last at all and all at them; each at itself and its two neighbours, and at `random` others.

        Attention(heads=12, mixer=BlockSparse(block=64, random=3, seed=layer))

    The random blocks are drawn by `seed` for each head, and are the same in every call: those of
    transformers, whose seed is the layer's number. `table` matters for rows of 1024, 3072 and 4096
    tokens alone, whose blocks are cut out of a table for that many.

    As in transformers, blocks are drawn in training alone; in evaluation each random block is the
    first one, whose keys then count 1 + `random` times in the softmax. `always=True` draws them in
    evaluation too. Attention.dropout acts where rows are looked at in full: the sparse form drops
    nothing out.

    Rows of up to (5 + 2·random)·block tokens are too short for this, and are looked at in full;
    longer ones are filled with padding up to a whole block. How wide the batch is, padding
    included, decides, as in transformers: a text beside a longer one has another last block.
    """

    block: Positive = 64
    random: Natural = 3
    seed: Seed = 0
    table: Positive = 4096
    always: bool = False

    @property
    def short(self) -> int:
        """Rows of so many tokens are still looked at in full."""
        return (5 + 2 * self.random) * self.block

    def check(self, attention: Heads, stack: Layers) -> None:
        if stack.causal:
            raise ConfigError(
                "BlockSparse looks at blocks ahead, but Stack.causal=True; give a causal stack "
                "mixer=Full() or Window(left)"
            )
        if stack.relative is not None and stack.relative.adds:
            name = type(stack.relative).__name__
            raise ConfigError(
                f"BlockSparse has no place for what Stack.relative={name} adds to scores; "
                f"try relative=Rotary() or None"
            )

    def keys(self, n: int, causal: bool) -> float:
        if n <= self.short:
            return super().keys(n, causal)
        blocks = -(-n // self.block)
        own = (5 + self.random) * (blocks - 2) - 2  # beside the first and the last one lies one
        return self.block * (own + 2 * blocks) / blocks
