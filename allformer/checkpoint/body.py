"""A trained body under another head: what fits by name and shape is taken, the rest stays fresh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

FRESH = ("head.", "pool.")  # what may start anew on a trained body


class Taken(NamedTuple):
    """Names that are left as they were: of a head or a pooler, and of the body itself."""

    fresh: list[str]
    odd: list[str]


@torch.no_grad()
def take_body(model: Any, trained: Mapping[str, Tensor]) -> Taken:
    """Copy into a model what fits: `take_body(build(tree), trained.state_dict())`."""
    found = Taken([], [])
    for name, tensor in model.state_dict().items():
        source = trained.get(name)
        if source is not None and source.shape == tensor.shape:
            tensor.copy_(source)
        else:
            (found.fresh if name.startswith(FRESH) else found.odd).append(name)
    return found
