"""Where a model looks in a picture: the attention of [CLS] over the patches, by layer and head, and
attention rollout.

    found = looks(model, processor(["cat.jpg"]))
    found.heads          # L H R C: layers, heads, rows and columns of patches
    found.rollout        # R C

Legend: L layers, H heads, T tokens, F tokens before the patches, R rows and C columns of patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from allformer import config
from allformer.core.model import Model
from allformer.core.taps import listen
from allformer.errors import ConfigError

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Looks:
    """Of one picture: what each head of each layer looks at, and what all layers gather."""

    heads: Array  # L H R C; a map adds up to 1 at most: the rest is on tokens that are no patches
    rollout: Array  # R C, adds up to 1
    who: str  # looks: "cls", "behind" (tokens that look for objects), "patches": their mean


def seeing_stack(model: config.Model) -> str | None:
    """The name of the stack that reads pictures by patches; None: there is none."""
    stacks = model.stacks.items()
    return next((n for n, stack in stacks if isinstance(stack.source, config.Patches)), None)


def reads_pictures(model: config.Model) -> bool:
    """By patches, or by features of a backbone (DETR); then no stack reads tokens."""
    sources = [stack.source for stack in model.stacks.values()]
    if any(isinstance(source, config.Sound) for source in sources):
        return False
    return seeing_stack(model) is not None or not any(source.vocab for source in sources)


def looks(model: Model[Any], pixels: Tensor) -> Looks | None:
    """Of one picture, 1 3 height width; None where a layer mixes without weights."""
    name = seeing_stack(model.config)
    if name is None:
        return None
    stack = model.config.stacks[name]
    seen = _weights(model, name, pixels)
    layers = [seen[i] for i in range(len(stack.blocks)) if i in seen]
    if len(layers) < len(stack.blocks) or len({x.shape[-1] for x in layers}) != 1:
        return None
    who, asks, patches = _places(stack.source, pixels, _reads_first(model.config.head))
    shape = stack.source.cut(*pixels.shape[2:])
    heads = torch.stack([x[:, asks, patches].mean(1) for x in layers])  # L H R·C
    rolled = rollout([x.mean(0) for x in layers])[asks, patches].mean(0)
    rolled = rolled / rolled.sum().clamp_min(1e-12)
    return Looks(
        heads.reshape(*heads.shape[:2], *shape).numpy(), rolled.reshape(shape).numpy(), who
    )


def _reads_first(head: config.Head | None) -> bool:
    """Whether what is said of a picture is read off its first token."""
    if isinstance(head, config.ClassHead):
        return head.at in ("first", "pool")
    return head is None or isinstance(head, config.TeacherHead | config.Contrast)


def _places(source: Any, pixels: Tensor, first: bool) -> tuple[str, slice, slice]:
    """Who looks, where they stand among the tokens, and where the patches do."""
    rows, columns = source.cut(*pixels.shape[2:])
    patches = slice(source.front, source.front + rows * columns)
    if getattr(source, "behind", 0):  # YOLOS: what is found is read off these
        return "behind", slice(patches.stop, None), patches
    if source.cls and first:
        return "cls", slice(0, 1), patches
    return "patches", patches, patches


def rollout(layers: list[Tensor]) -> Tensor:
    """How much of each token's input reaches each token after all layers, T T: the product of
    (A + I) / 2, A the mean of a layer's heads (Abnar and Zuidema, 2020, section 3)."""
    whole = torch.eye(len(layers[0]), dtype=layers[0].dtype)
    for weights in layers:
        mixed = (weights + torch.eye(len(weights), dtype=weights.dtype)) / 2
        whole = (mixed / mixed.sum(-1, keepdim=True)) @ whole
    return whole


def _weights(model: Model[Any], name: str, pixels: Tensor) -> dict[int, Tensor]:
    """H T T by layer; no head is run."""
    found: dict[int, Tensor] = {}

    def note(tap: str, x: Tensor) -> None:
        parts = tap.split(".")
        if parts[0] == name and parts[-2:] == ["attention", "weights"] and parts[1].isdigit():
            found[int(parts[1])] = x[0].detach().float().cpu().nan_to_num()

    training = model.training
    model.eval()
    try:
        with torch.no_grad(), listen(note):
            model.states(pixel_values=pixels.to(model.device))
    except ConfigError:  # a size that it does not read: there is nothing to show
        return {}
    finally:
        model.train(training)
    return found
