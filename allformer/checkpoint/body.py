"""A trained body under another head: what fits by name and shape is taken, the rest stays fresh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from allformer.core.sources.patches import Patches

FRESH = ("head.", "pool.")  # what may start anew on a trained body


class Taken(NamedTuple):
    """Names that are left as they were: of a head, a pooler or queries, and of the body itself."""

    fresh: list[str]
    odd: list[str]


@torch.no_grad()
def take_body(model: Any, trained: Mapping[str, Tensor]) -> Taken:
    """Copy into a model what fits: `take_body(build(tree), trained.state_dict())`.

    Queries behind the patches may be new to a body that had none (so YOLOS begins with a DeiT):
    they and their positions start anew, the patches' positions are those that were learnt.
    """
    found, queries = Taken([], []), _queries(model, trained)
    for name, tensor in model.state_dict().items():
        source = trained.get(name)
        if source is not None and source.shape == tensor.shape:
            tensor.copy_(source)
        elif name in queries and (source is None or tensor[queries[name] :].shape == source.shape):
            if source is not None:
                tensor[: len(source)].copy_(source)
            found.fresh.append(name)
        else:
            (found.fresh if name.startswith(FRESH) else found.odd).append(name)
    return found


def _queries(model: Any, trained: Mapping[str, Tensor]) -> dict[str, int]:
    """Names of queries behind patches, and of their positions, that a trained model has not; and
    how many there are."""
    sources = {n: m for n, m in model.named_modules() if isinstance(m, Patches)}
    return {
        f"{path}.{part}": source.config.behind
        for path, source in sources.items()
        if source.config.behind and f"{path}.behind" not in trained
        for part in ("behind", "position.weight")
    }
