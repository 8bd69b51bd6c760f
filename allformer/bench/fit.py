"""One model's weights in another tree: what is there under the same name and shape is copied."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.linear import Fused
from allformer.core.model import AnyModel, build
from allformer.core.position import Learned


@torch.no_grad()
def fit(model: AnyModel, tree: config.Model) -> tuple[AnyModel, list[str]]:
    """A model of `tree` with the weights of `model`, and the names of the weights that are fresh.

        fit(af.load("bert"), remix(tree, Window(256, 256)))

    A longer table of positions repeats the old one, as Longformer's authors did it. A projection
    that the old model has not is copied from the one that it stands for (see `_SOURCES`).
    """
    first = next(model.parameters())
    made = build(tree, device=first.device, seed=0).to(first.dtype).eval()
    old = dict(model.named_modules())
    fresh: list[str] = []
    for name, module in made.named_modules():
        twin = old.get(name)
        for key, target, source in _pairs(module, twin):
            if source is not None and source.shape == target.shape:
                target.copy_(source)
            else:
                fresh.append(f"{name}.{key}")
    return made, fresh


def _pairs(
    module: nn.Module, twin: nn.Module | None
) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Each tensor of a module's own, and what it is copied from."""
    if isinstance(module, Fused):
        yield from _projections(module, twin)
        return
    if isinstance(module, Learned) and isinstance(twin, Learned):
        yield "weight", module.weight, _repeated(twin, module.weight.shape[0])
        return
    theirs = {} if twin is None else dict(_own(twin))
    for key, tensor in _own(module):
        yield key, tensor, theirs.get(key)


def _own(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(recurse=False)
    yield from module.named_buffers(recurse=False)


# A projection that is new, and the one whose work it does: Reformer has one matrix for queries and
# keys; Longformer starts those of global tokens from the others.
_SOURCES = {"qk": "q", "global_q": "q", "global_k": "k", "global_v": "v"}


def _projections(
    module: Fused, twin: nn.Module | None
) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    for name in module.parts:
        weight, bias = module.part(name)
        source: tuple[Tensor | None, Tensor | None] = (None, None)
        if isinstance(twin, Fused):
            known = name if name in twin.parts else _SOURCES.get(name, "")
            source = twin.part(known) if known in twin.parts else source
        yield f"{name}.weight", weight, source[0]
        if bias is not None:
            yield f"{name}.bias", bias, source[1]


def _repeated(old: Learned, rows: int) -> Tensor:
    """The rows in front as they are, the positions again and again."""
    front, body = old.weight[: old.config.offset], old.weight[old.config.offset :]
    times = -(-(rows - front.shape[0]) // body.shape[0])
    return torch.cat([front, body.repeat(times, 1)])[:rows]
