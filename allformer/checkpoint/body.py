"""A trained body under another head: what fits by name and shape is taken, the rest stays fresh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from allformer.core.model import build
from allformer.core.quantised import Quantised, QuantisedApart, is_quantised
from allformer.core.sources.patches import Patches

BITS = (Quantised, QuantisedApart)
FRESH = ("head.", "pool.")  # what may start anew on a trained body


class Taken(NamedTuple):
    """Names that are left as they were: of a head, a pooler or queries, and of the body itself."""

    fresh: list[str]
    odd: list[str]


@torch.no_grad()
def build_on(tree: Any, trained: Any, device: torch.device | str) -> Any:
    """A fresh model for a trained body; what of it is in few bits is there already.

    Nothing of a matrix that is in few bits is ever held wide: `build_on(tree, load(DIR), "cpu")`.
    """
    if not is_quantised(trained):
        return build(tree, device=device)
    model = build(tree, device="meta")
    inner = [path for path, layer in trained.named_modules() if isinstance(layer, BITS)]
    for path in inner:
        owner, _, name = path.rpartition(".")
        if not owner.startswith(tuple(f"{each}." for each in inner)):  # a part of one held apart
            setattr(model.get_submodule(owner), name, trained.get_submodule(path))
    for module in model.modules():
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if any(tensor.is_meta for tensor in own):
            fresh: Any = module.to_empty(device=device, recurse=False)
            fresh.reset_parameters()
    return model


@torch.no_grad()
def take_body(model: Any, trained: Mapping[str, Tensor]) -> Taken:
    """Copy into a model what fits: `take_body(build(tree), trained.state_dict())`.

    Queries behind the patches may be new to a body that had none (so YOLOS begins with a DeiT):
    they and their positions start anew, the patches' positions are those that were learnt.
    """
    found, queries = Taken([], []), _queries(model, trained)
    state = model.state_dict()
    # A head's table may be that of the tokens: the second name of what is taken is not fresh.
    taken = {x.data_ptr() for n, x in state.items() if n in trained and trained[n].shape == x.shape}
    for name, tensor in state.items():
        source = trained.get(name)
        if source is not None and source.shape == tensor.shape:
            tensor.copy_(source)
        elif tensor.data_ptr() in taken:
            continue
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
