"""x + an LSTM over time.

Legend: B batch, C channels, T steps of time.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn

from allformer.core.precision import cast

# cuDNN wants all weights in one piece of memory and says so. They are cast and copied there at each
# call anyway: a million numbers, beside which the steps of time take long.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")

_KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")  # in the order that torch.lstm asks


class LSTM(nn.Module):
    """B C T → B C T, the weights with torch's names: `weight_ih_l0` and so on.

    Not torch's module, which keeps a list of its weights beside them and so does not see that a
    checkpoint's have taken their place.
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.width, self.layers = width, layers
        for name in self.names:
            shape = (4 * width, width) if name.startswith("weight") else (4 * width,)
            setattr(self, name, nn.Parameter(torch.empty(shape)))
        self.decays = tuple(name for name in self.names if name.startswith("weight"))

    @property
    def names(self) -> list[str]:
        """Of its weights, layer by layer."""
        return [f"{kind}_l{layer}" for layer in range(self.layers) for kind in _KINDS]

    def reset_parameters(self) -> None:
        """As torch starts them."""
        reach = 1 / math.sqrt(self.width)
        for name in self.names:
            nn.init.uniform_(getattr(self, name), -reach, reach)

    def forward(self, x: Tensor) -> Tensor:
        steps = x.permute(2, 0, 1)  # T B C
        start = steps.new_zeros(self.layers, steps.shape[1], self.width)
        weights = [cast(getattr(self, name), x.dtype) for name in self.names]
        out, _, _ = torch.lstm(
            steps, (start, start), weights, True, self.layers, 0.0, self.training, False, False
        )
        return (steps + out).permute(1, 2, 0)
