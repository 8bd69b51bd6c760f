"""Tensor parallel: every matrix of a layer cut among the ranks of a group, by heads and by width.

What is cut how is data (`PLAN`). A fused product is cut part by part: each rank has the rows of its
own heads of q, of k and of v, one below the other, and so computes with fewer heads, as if they
were all. Embeddings, norms, heads over labels or words, and the biases behind a sum stay whole on
every rank.

DTensor has no placement for "these rows of q, of k and of v", so a rank's part is a plain tensor,
and `Cut` says which rows or columns of the whole one it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from allformer.core.attention import Attention
from allformer.core.feed_forward import Feed
from allformer.core.linear import Fused, Linear
from allformer.core.matmul import matmul
from allformer.core.mixers.full import Full
from allformer.core.precision import cast
from allformer.core.relatives.bucket import BucketBias
from allformer.core.relatives.rotary import Rotary
from allformer.errors import ConfigError
from allformer.train.parallel.collectives import Group, copied, summed

OUTPUTS, INPUTS = "outputs", "inputs"  # the side of a product that is cut

PLAN: dict[type[nn.Module], dict[str, str]] = {
    Attention: {"qkv": OUTPUTS, "query": OUTPUTS, "memory": OUTPUTS, "out": INPUTS},
    Feed: {"up": OUTPUTS, "gate": OUTPUTS, "down": INPUTS},
}


@dataclass(frozen=True)
class Cut:
    """A rank's part of a tensor of `shape`: the `spans` (first, end) along `dim`, in order."""

    shape: tuple[int, ...]
    dim: int
    spans: tuple[tuple[int, int], ...]

    def of(self, whole: Tensor) -> Tensor:
        """The part of a whole tensor, in memory of its own."""
        pieces = [whole.narrow(self.dim, a, b - a) for a, b in self.spans]
        return torch.cat(pieces, self.dim).contiguous()


def even(size: int, rank: int, count: int, start: int = 0) -> tuple[int, int]:
    """The `rank`th of `count` equal parts of `size` rows that begin at `start`."""
    each = size // count
    return start + rank * each, start + (rank + 1) * each


class OutputsCut(Linear):
    """Some of the outputs: what came in was used by the others too."""

    group: Group

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(copied(x, self.group))


class FusedCut(Fused):
    """The same of a fused product, whose parts are each cut."""

    group: Group

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(copied(x, self.group))


class InputsCut(Linear):
    """Some of the inputs: the outputs are sums over all ranks, and then the bias is added."""

    group: Group

    def forward(self, x: Tensor) -> Tensor:
        y = summed(matmul(x, cast(self.weight, x.dtype), None), self.group)
        bias = self.addend(x.dtype)
        return y if bias is None else y + bias


def check_tensor(model: nn.Module, count: int) -> None:
    """Refuse, in words, a model that cannot be cut in `count`."""
    if getattr(model, "extended", False):
        _refuse(count, "cannot cut what adapters put beside layers or before the tokens")
    for module in model.modules():
        if isinstance(module, Attention):
            _check_attention(module, count)
        elif isinstance(module, Feed):
            width = module.down.in_features
            if width % count:
                _refuse(count, f"does not divide Feed.width={width}")
        elif isinstance(module, Linear) and module.delta is not None:
            _refuse(count, "cannot cut a layer that has a delta")
    for name, part in model.named_modules():
        known = isinstance(part, BucketBias | Rotary)
        if name.endswith(".relative") and not known and any(True for _ in part.parameters()):
            kind = type(part).__name__
            _refuse(count, f"cannot cut the parameters of {kind} ({name}) by heads")


def _check_attention(attention: Attention, count: int) -> None:
    mixer: Any = attention.mixer
    if mixer.heads % count or mixer.groups % count:
        heads = f"Attention.heads={mixer.heads}, kv_heads={mixer.groups}"
        _refuse(count, f"must divide the heads of every layer ({heads})")
    if not isinstance(mixer, Full) or any(True for _ in mixer.parameters()):
        _refuse(count, f"cannot cut the mixer {type(mixer).__name__} by heads")
    if attention.relative is not None:
        _refuse(count, f"cannot cut {type(attention.relative).__name__}, a part of each layer")


def _refuse(count: int, why: str) -> None:
    raise ConfigError(f"parallel.tensor={count} {why}; try another number, or shard: {count}")


def cut_tensors(model: nn.Module, rank: int, count: int, group: Group) -> dict[str, Cut]:
    """Leave this rank's part of every matrix in the model; returns what was cut, by name."""
    check_tensor(model, count)
    cuts: dict[str, Cut] = {}
    for path, module in list(model.named_modules()):
        for name, side in _planned(module):
            linear = getattr(module, name)
            for tensor, cut in _linear_cuts(linear, side, rank, count).items():
                cuts[f"{path}.{name}.{tensor}"] = cut
                _put(linear, tensor, cut)
            _become(linear, side, count, group)
        if isinstance(module, Attention):
            mixer: Any = module.mixer
            mixer.heads, mixer.groups = mixer.heads // count, mixer.groups // count
            module.turned //= count
        if isinstance(module, BucketBias):
            shape = tuple(module.weight.shape)
            cut = Cut(shape, 1, (even(shape[1], rank, count),))
            cuts[f"{path}.weight"] = cut
            _put(module, "weight", cut)
    return cuts


def _planned(module: nn.Module) -> Iterator[tuple[str, str]]:
    plan = PLAN.get(type(module), {})
    for name, part in module.named_children():
        if name in plan:
            yield name, plan[name]
        elif plan and any(True for _ in part.parameters()) and not isinstance(part, Full):
            raise ConfigError(
                f"parallel.tensor has no plan for {type(module).__name__}.{name}; set it to 1"
            )


def _linear_cuts(linear: Linear, side: str, rank: int, count: int) -> dict[str, Cut]:
    weight = tuple(linear.weight.shape)
    if side == INPUTS:
        return {"weight": Cut(weight, 1, (even(weight[1], rank, count),))}
    parts = linear.parts if isinstance(linear, Fused) else {"": weight[0]}
    biased = linear.biased if isinstance(linear, Fused) else tuple(parts)
    cuts = {"weight": Cut(weight, 0, _rows(parts, tuple(parts), rank, count))}
    if linear.bias is not None:
        cuts["bias"] = Cut(tuple(linear.bias.shape), 0, _rows(parts, biased, rank, count))
    return cuts


def _rows(
    parts: dict[str, int], among: tuple[str, ...], rank: int, count: int
) -> tuple[tuple[int, int], ...]:
    """Of each part its own share, by heads: the parts lie one below the other."""
    spans, start = [], 0
    for name in among:
        spans.append(even(parts[name], rank, count, start))
        start += parts[name]
    return tuple(spans)


def _put(module: nn.Module, name: str, cut: Cut) -> None:
    whole: Any = getattr(module, name)
    setattr(module, name, nn.Parameter(cut.of(whole.detach()), whole.requires_grad))


def _become(linear: Any, side: str, count: int, group: Group) -> None:
    """The same module, cut: its class says how it sums (as torch's fully_shard does it)."""
    if side == INPUTS:
        linear.in_features //= count
        linear.__class__ = InputsCut
    else:
        linear.out_features //= count
        if isinstance(linear, Fused):
            linear.parts = {name: rows // count for name, rows in linear.parts.items()}
        linear.__class__ = FusedCut if isinstance(linear, Fused) else OutputsCut
    linear.group = group
