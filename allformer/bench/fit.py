"""One model's weights in another tree: what is there under the same name and shape is taken."""

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

    Tensors are shared with the old model where they are the same. A longer table of positions
    repeats the old one, and projections of global tokens start from the others, as Longformer's
    authors did it.
    """
    first = next(model.parameters())
    made = build(tree, device=first.device, seed=0).to(first.dtype).eval()
    old = dict(model.named_modules())
    fresh: list[str] = []
    for name, module in made.named_modules():
        twin = old.get(name)
        kept = {} if twin is None else dict(twin.named_parameters(recurse=False))
        for key, own in dict(module.named_parameters(recurse=False)).items():
            if key in kept and kept[key].shape == own.shape and _alike(module, twin):
                setattr(module, key, kept[key])
            elif isinstance(module, Fused) and isinstance(twin, Fused):
                fresh += [f"{name}.{part}" for part in _projections(module, twin, key)]
            elif isinstance(module, Learned) and isinstance(twin, Learned):
                own.copy_(_repeated(twin, own.shape[0]))
            else:
                fresh.append(f"{name}.{key}")
    return made, fresh


def _alike(module: nn.Module, twin: nn.Module | None) -> bool:
    """Whether tensors of one shape mean the same in both."""
    if isinstance(module, Fused) and isinstance(twin, Fused):
        return module.parts == twin.parts
    return True


def _projections(module: Fused, twin: Fused, key: str) -> Iterator[str]:
    """Copy part by part; those that the other has not are named."""
    index = 0 if key == "weight" else 1
    for name in module.parts:
        target = module.part(name)[index]
        known = name if name in twin.parts else name.removesuffix("_global")
        source = twin.part(known)[index] if known in twin.parts else None
        if target is None:
            continue
        if source is not None and source.shape == target.shape:
            target.copy_(source)
        else:
            yield f"{name}.{key}"


def _repeated(old: Learned, rows: int) -> Tensor:
    """The rows in front as they are, the positions again and again."""
    front, body = old.weight[: old.config.offset], old.weight[old.config.offset :]
    times = -(-(rows - front.shape[0]) // body.shape[0])
    return torch.cat([front, body.repeat(times, 1)])[:rows]
