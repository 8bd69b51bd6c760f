"""The feed-forward layer."""

from __future__ import annotations

from dataclasses import dataclass

from allformer.config.base import Activation, Config, Natural, Positive, Probability
from allformer.config.counting import Part


@dataclass(frozen=True)
class Feed(Config):
    """The feed-forward layer: act(x W₁ + b₁) W₂ + b₂; gated: (act(x W_g) ⊙ x W₁) W₂.

    `chunk` tokens of each row are computed at a time (0: all), and computed again in the backward
    pass: the inner values of a long row are never there together (Reformer).
    """

    width: Positive
    act: Activation = "relu"
    gated: bool = False
    bias: bool = True
    dropout: Probability = 0.0
    chunk: Natural = 0

    def line(self, name: str, dim: int) -> Part:
        """Its line in the count."""
        matrices = 3 if self.gated else 2
        weights = matrices * dim * self.width
        biases = ((matrices - 1) * self.width + dim) if self.bias else 0
        text = f"{matrices}·d·f" + (f" + {'2f' if self.gated else 'f'} + d" if self.bias else "")
        return Part(name, text, weights + biases, 2 * weights)
