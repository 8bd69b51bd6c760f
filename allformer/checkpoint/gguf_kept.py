"""A GGUF file's matrices in the bits that they have there, in the places of the plain ones.

    load_kept(build(tree, device="meta"), weights(tree), files)

Codes and scales are the file's own, so that the matrix is the one that would be loaded widened. Of
types with 4-bit codes a number takes 4 bits and its share of scales, of the others 8 bits. Where
projections that are one product here have different types (values often have more bits), each is
held in its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from allformer.checkpoint.files import TensorFiles
from allformer.checkpoint.gguf_blocks import BlockKind
from allformer.checkpoint.stored import InBlocks
from allformer.checkpoint.transfer import Loaded, load_weights
from allformer.core.linear import Fused, Linear
from allformer.core.model import AnyModel
from allformer.core.quantised import AnyQuantised, Quantised, QuantisedApart, pack
from allformer.families.weights import Weight, WeightMap, names_of


@dataclass(frozen=True)
class Kept:
    """A matrix's rows in few bits: `packed` N K·bits/8, `scale` and `least` N G."""

    kind: BlockKind
    packed: Tensor
    scale: Tensor
    least: Tensor | None

    def layer(self, bias: Tensor | None) -> Quantised:
        """As a layer of its own."""
        return Quantised(self.packed, self.scale, self.least, bits=self.kind.bits, bias=bias)


def load_kept(
    model: AnyModel,
    ops: WeightMap,
    files: TensorFiles,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> Loaded:
    """`load_weights`, with the linear layers whose matrices lie in blocks kept in few bits."""
    loaded = load_weights(model, ops, files, device="meta", dtype=dtype)  # every key is checked
    if torch.device(device).type == "meta":
        return loaded
    kept = [op for op in ops if isinstance(op, Weight) and _is_kept(model, op, files)]
    names = {name for op in kept for name in names_of(op)}
    for op in kept:  # then what is loaded plainly is the rest, their biases included
        _linear(model, op).weight = None  # type: ignore[assignment]
    rest = TensorFiles(files.where, [x for name, x in files.items() if name not in names])
    load_weights(model, [op for op in ops if op not in kept], rest, device=device, dtype=dtype)
    for op in kept:
        where, _, name = op.ours.removesuffix(".weight").rpartition(".")
        setattr(model.get_submodule(where), name, _layer(_linear(model, op), op, files, device))
    return loaded


def _is_kept(model: nn.Module, op: Weight, files: TensorFiles) -> bool:
    """Whether it is the matrix of a linear layer, of which all parts lie in blocks."""
    owner, _, name = op.ours.rpartition(".")
    return (
        name == "weight"
        and isinstance(model.get_submodule(owner), Linear)
        and all(isinstance(files[theirs], InBlocks) for theirs in names_of(op))
    )


def _linear(model: nn.Module, op: Weight) -> Linear:
    linear = model.get_submodule(op.ours.removesuffix(".weight"))
    assert isinstance(linear, Linear)
    return linear


def _layer(
    linear: Linear, op: Weight, files: TensorFiles, device: torch.device | str
) -> AnyQuantised:
    """One layer where all parts are of one type; else one for each."""
    parts = _rows(op, linear.out_features, files, device)
    kinds = {part.kind.name for part in parts}
    if len(kinds) == 1:
        leasts = [part.least for part in parts if part.least is not None]
        packed, scale = (torch.cat([getattr(p, x) for p in parts]) for x in ("packed", "scale"))
        least = torch.cat(leasts) if leasts else None
        return Quantised.like(linear, packed, scale, least, bits=parts[0].kind.bits)
    assert isinstance(linear, Fused)
    named = zip(linear.parts, parts, strict=True)
    return QuantisedApart(**{name: part.layer(linear.bias_of(name)) for name, part in named})


def _rows(op: Weight, outputs: int, files: TensorFiles, device: torch.device | str) -> list[Kept]:
    """Each of the file's tensors, its rows in our order."""
    numbers = torch.arange(outputs)[:, None]  # N 1: the map says where each row of theirs goes
    return [_kept(files[part.theirs], part.view.reshape(-1), device) for part in op.parts(numbers)]


def _kept(stored: object, ours: Tensor, device: torch.device | str) -> Kept:
    assert isinstance(stored, InBlocks)
    count = stored.shape[0] * stored.shape[1] // stored.kind.size
    groups, order = stored.groups(0, count), ours.argsort()

    def laid(x: Tensor) -> Tensor:
        return x.view(stored.shape[0], -1)[order].to(device)

    least = None if groups.least is None else laid(groups.least)
    codes = groups.codes.view(stored.shape)[order]
    packed = pack(codes, stored.kind.bits, signed=least is None).to(device)
    return Kept(stored.kind, packed, laid(groups.scale), least)
