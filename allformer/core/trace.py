"""Run a model and keep every intermediate value by its name.

seen = trace(model, input_ids=ids, attention_mask=mask, decoder_input_ids=target)
seen["decoder.1.cross.weights"]      # B H T S
seen.output.logits
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn

from allformer.core.taps import listen


class Trace(Mapping[str, Tensor]):
    """Names to values in the order in which they were computed, and the model's `output`."""

    def __init__(self, values: dict[str, Tensor], output: Any) -> None:
        self.values_by_name, self.output = values, output

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self.values_by_name[name]
        except KeyError:
            last = name.rsplit(".", 1)[-1]
            like = [n for n in self.values_by_name if n.rsplit(".", 1)[-1] == last]
            names = ", ".join((like or list(self.values_by_name))[:6])
            raise KeyError(f"{name!r} was not seen; there is {names} …") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)


def trace(model: nn.Module, *, only: str = "*", **inputs: Any) -> Trace:
    """Call `model(**inputs)` and record each tap whose name fits the pattern `only`."""
    values: dict[str, Tensor] = {}

    def record(name: str, x: Tensor) -> None:
        if fnmatch(name, only):
            values[name] = x.detach()

    with torch.no_grad(), listen(record):
        output = model(**inputs)
    return Trace(values, output)
