"""What is trained of a model: how many numbers, and where.

print(tune.trainable(model))
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from allformer.core.quantised import Quantised


class Numbers(NamedTuple):
    """Of a part of the model: numbers that are trained, and all that there are."""

    trained: int
    total: int


@dataclass(frozen=True)
class Trainable:
    """`trainable(model).share` of all numbers; `parts["encoder.layers.0"]` has those of a part.

    What an adapter adds counts to the part that it sits in; one that does not act is left out.
    """

    parts: dict[str, Numbers]

    @property
    def trained(self) -> int:
        """All that are trained."""
        return sum(part.trained for part in self.parts.values())

    @property
    def total(self) -> int:
        """All that there are."""
        return sum(part.total for part in self.parts.values())

    @property
    def share(self) -> float:
        """Trained of all, 0 to 1."""
        return self.trained / max(self.total, 1)

    def __str__(self) -> str:
        """A line for each part, and one for all."""
        wide = max(len(name) for name in (*self.parts, "all"))
        rows = [*self.parts.items(), ("all", Numbers(self.trained, self.total))]
        return "\n".join(
            f"{name:<{wide}} {n.trained:>14,} of {n.total:>15,} {n.trained / max(n.total, 1):>8.3%}"
            for name, n in rows
        )


def layer_of(path: str) -> str:
    """`encoder.layers.0.feed.up` → `encoder.layers.0`: a layer, or what comes before and after."""
    found: Any = re.match(r"(.*?\.layers\.\d+)(\.|$)", path)
    return found[1] if found else ".".join(path.split(".")[:2])


def trainable(model: nn.Module, part: Callable[[str], str] = layer_of) -> Trainable:
    """Count them, a tensor that several hold once: `trainable(model).share`.

    `part` names the part that a module's path belongs to.
    """
    parts: dict[str, list[int]] = {}
    seen: set[int] = set()
    for path, module in model.named_modules():
        counts = parts.setdefault(part(path), [0, 0])
        if isinstance(module, Quantised):
            counts[1] += module.inputs * module.outputs
        for tensor in module.parameters(recurse=False):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                counts[0] += tensor.numel() if tensor.requires_grad else 0
                counts[1] += tensor.numel()
    return Trainable({name: Numbers(*n) for name, n in parts.items() if n[1]})
