"""`quantise`: a model whose matrices are held in eight or four bits.

    quantise(model, "int8")                          # a scale for each output
    quantise(model, "int4", group=64)                # a scale for each 64 inputs of an output
    quantise(model, "int4", calibrate=ids)           # GPTQ: rounded so that these ids fare well

It is the layers of attention and feed-forward that become `Quantised`. Embeddings and heads stay
wide: of an embedding a step reads one row, the head is most often the same table, and its errors
are the logits' own. So do norms, biases and positions: they are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

from allformer.core.attention import Attention
from allformer.core.calibrate import Inputs, calls_of, watch
from allformer.core.feed_forward import Feed
from allformer.core.linear import Fused, Linear
from allformer.core.quantised import Quantised, is_quantised, pack
from allformer.core.rounding import compensated, fit_group, nearest
from allformer.errors import ConfigError

KINDS = {"int8": 8, "int4": 4}
GROUP = 128  # of four bits, where none is said; eight bits have a scale for each output
ModelT = TypeVar("ModelT", bound=nn.Module)


@torch.no_grad()
def quantise(
    model: ModelT,
    kind: str = "int8",
    *,
    group: int | None = None,
    calibrate: Tensor | Iterable[Inputs] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> ModelT:
    """Hold the model's matrices in few bits, in place: `quantise(model, "int4", calibrate=ids)`.

    `group` inputs share a scale (by default all of an output's in eight bits, 128 in four; where it
    does not divide a layer's inputs, the next that does). `calibrate` has ids, B T, or the inputs
    of several calls by name; with them layers are rounded one block after the other, each to keep
    what it gave for what the blocks before it give now. `tell` hears of each block.
    """
    bits = KINDS.get(kind)
    if bits is None:
        raise ConfigError(f"quantise({kind!r}) is not known; try {' or '.join(KINDS)}")
    if not isinstance(group, int | None) or isinstance(group, bool):
        raise ConfigError(f"group={group!r} must be a whole number; try 32 … 256")
    if group is not None and group < 16:
        raise ConfigError(f"group={group} is too few inputs for a scale of their own; try 32 … 256")
    if is_quantised(model):
        raise ConfigError(
            "the model is quantised already; load it anew, or make it plain first: widen_all, or "
            "`allformer convert … --quantise none`"
        )
    blocks = matrices(model, bits)
    if not blocks:
        raise ConfigError(
            f"{type(model).__name__} has no plain layers of attention or feed-forward to quantise; "
            f"give a Transformer as af.build or af.load makes it"
        )
    calls = None if calibrate is None else calls_of(calibrate)
    later = dict(blocks)
    for count, (name, layers) in enumerate(blocks.items(), 1):
        del later[name]
        seen = None
        if calls is not None:
            others = [getattr(owner, key) for each in later.values() for owner, key in each]
            seen = watch(model, [getattr(owner, key) for owner, key in layers], others, calls)
        for i, (owner, key) in enumerate(layers):
            wide = getattr(owner, key)
            setattr(owner, key, rounded(wide, bits, group, None if seen is None else seen[i]))
        tell(f"{name}: {len(layers)} matrices in {bits} bits ({count} of {len(blocks)})")
    return model


def rounded(
    linear: Linear, bits: int, group: int | None = None, seen: Tensor | None = None
) -> Quantised:
    """One layer in few bits; `seen` is Σ x xᵀ of what came into it: `rounded(linear, 4, 64)`."""
    weight = linear.weight.detach().float()
    usual = weight.shape[1] if bits == 8 else GROUP
    size = fit_group(weight.shape[1], usual if group is None else group)
    if seen is None:
        q, scale = nearest(weight, bits, size)
    else:
        q, scale = compensated(weight, seen, bits, size)
    kind = torch.bfloat16 if linear.weight.dtype == torch.bfloat16 else torch.float32
    return Quantised.like(linear, pack(q, bits), scale.to(kind), bits=bits)


def matrices(model: nn.Module, bits: int) -> dict[str, list[tuple[nn.Module, str]]]:
    """The layers to be rounded, as (owner, name), by the name of the block they are in.

    Only those that are plain, and whose inputs fill whole bytes.
    """
    found: dict[str, list[tuple[nn.Module, str]]] = {}
    for path, owner in model.named_modules():
        if isinstance(owner, Attention | Feed):
            for name, layer in owner.named_children():
                plain = type(layer) in (Linear, Fused)
                if plain and layer.in_features * bits % 8 == 0:  # type: ignore[operator]
                    found.setdefault(path.rpartition(".")[0], []).append((owner, name))
    return found
