"""Quantised models and their files: in our own layout, and in compressed-tensors'.

    ops = place(model, ops, files)                 # layers that a file has packed become Quantised
    ops = place_out(model, ops)                    # the map of a model that is to be written

A weight's operation becomes one for each tensor that is there in its stead: bytes, scales, what is
added. So all that a family says of its names and of what it holds as one serves these as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import nn

from allformer.checkpoint.files import TensorFiles
from allformer.checkpoint.packed_files import PACKED, SCALE, SHAPE, ZERO
from allformer.core.linear import Fused, Linear
from allformer.core.quantised import Quantised, QuantisedApart
from allformer.errors import CheckpointError
from allformer.families.weights import (
    Derived,
    Interleaved,
    Joined,
    Name,
    Op,
    Same,
    Stacked,
    Weight,
    WeightMap,
    names_of,
)

OURS = {"packed": "packed", "scale": "scale", "least": "least"}
THEIRS = {"packed": PACKED, "scale": SCALE, "least": ZERO}
Kind = tuple[int, int, bool]  # bits, groups of a row, whether `least` is added


def plain_keys(keys: Iterable[str]) -> set[str]:
    """Names of a file as if nothing in it were packed."""
    return {re.sub(rf"\.({PACKED}|packed)$", ".weight", key) for key in keys}


def place(model: nn.Module, ops: WeightMap, files: TensorFiles, prefix: str = "") -> list[Op]:
    """Make those layers of a model on "meta" quantised that the files have packed; the map for it.

    `prefix`: what may stand before the names on one of the two sides.
    """
    if not any(key.endswith((f".{PACKED}", ".packed")) for key in files):
        return list(ops)
    changed: list[Op] = []
    for op in list(_by_parts(model, ops, files)):  # before any layer is replaced
        found = _find_packed(op, files, prefix) if isinstance(op, Same | Stacked) else None
        if found is None or not isinstance(op, Same | Stacked):
            changed.append(op)
            continue
        stems, names = found
        path = op.ours.removesuffix(".weight")
        layer = model.get_submodule(path)
        if type(layer) not in (Linear, Fused):
            raise CheckpointError(
                f"{files.where} has {stems[0]} packed, which is no layer of attention or "
                f"feed-forward ({path}): embeddings and heads are read wide only"
            )
        kinds = [_kind(files, stem, names, layer.in_features) for stem in stems]  # type: ignore[arg-type]
        owner, _, name = path.rpartition(".")
        setattr(model.get_submodule(owner), name, _empty(layer, kinds))  # type: ignore[arg-type]
        changed += _ops(op, path, model.get_submodule(path), names)
    return _apart_biases(model, changed)


def place_out(model: nn.Module, ops: WeightMap, names: Mapping[str, str] = THEIRS) -> list[Op]:
    """The map of a model that has quantised layers, by compressed-tensors' names for them."""
    together = {name for op in ops if isinstance(op, Joined) for name in op.parts}
    changed: list[Op] = []
    for op in ops:
        path, _, kind = op.ours.rpartition(".") if isinstance(op, Weight) else ("", "", "")
        layer = model.get_submodule(path) if kind == "weight" else None
        if not isinstance(layer, Quantised | QuantisedApart):
            changed.append(op)
            continue
        assert isinstance(op, Weight)
        if not isinstance(op, Same | Stacked) or together & set(names_of(op)):
            raise CheckpointError(
                f"{path} is quantised, and this family's files hold it transposed or joined with "
                f'another, which compressed-tensors has no way to say; save with family="allformer"'
            )
        changed += _ops(op, path, layer, names)
    return _apart_biases(model, changed)


def _by_parts(model: nn.Module, ops: WeightMap, files: TensorFiles) -> Iterator[Op]:
    """Our own files have a layer's parts by name where they are held each in its own way."""
    for op in ops:
        path, _, kind = str(getattr(op, "ours", "")).rpartition(".")
        layer = model.get_submodule(path) if kind in ("weight", "bias") else None
        if isinstance(layer, Fused) and isinstance(op, Same):
            parts = layer.parts if kind == "weight" else {n: layer.parts[n] for n in layer.biased}
            if all(f"{path}.each.{part}.packed" in files for part in layer.parts):
                names = tuple(f"{path}.each.{part}.{kind}" for part in parts)
                yield Stacked(op.ours, names, tuple(parts.values()))
                continue
        yield op


def _find_packed(
    op: Same | Stacked, files: TensorFiles, prefix: str
) -> tuple[list[str], Mapping[str, str]] | None:
    """The names of a matrix's layers in the files, and what their tensors are called."""
    stems = [name.removesuffix(".weight") for name in names_of(op) if name.endswith(".weight")]
    for names in (THEIRS, OURS):
        tried = [(stem, prefix + stem, stem.removeprefix(prefix)) for stem in stems]
        found = [next((s for s in t if f"{s}.{names['packed']}" in files), None) for t in tried]
        there = [stem for stem in found if stem is not None]
        if there and len(there) == len(found):
            return there, names
        if there:
            wide = next(s for s, f in zip(stems, found, strict=True) if f is None)
            raise CheckpointError(
                f"{files.where} has {there[0]} packed and {wide} not, which are one matrix here; "
                f"load the model that it was made from"
            )
    return None


def _kind(files: TensorFiles, stem: str, names: Mapping[str, str], inputs: int) -> Kind:
    """How a layer of the files is held, by the shapes of its tensors."""
    try:
        _, width = files[f"{stem}.{names['packed']}"].shape
        rows, groups = files[f"{stem}.{names['scale']}"].shape
    except (KeyError, ValueError):
        raise CheckpointError(
            f"{files.where}: {stem} has no {names['scale']} of rows and groups; download it again"
        ) from None
    bits = width * 8 // inputs
    if bits not in (4, 8) or bits * inputs != width * 8 or not groups or inputs % groups:
        raise CheckpointError(
            f"{files.where}: {stem} has rows of {width} bytes and {rows} × {groups} scales, "
            f"which is no matrix of {inputs} inputs in four or eight bits; use the config.json "
            f"that it was saved with"
        )
    return bits, groups, f"{stem}.{names['least']}" in files


def _empty(layer: Linear, kinds: list[Kind]) -> nn.Module:
    """A quantised layer on "meta" in the place of a plain one."""
    if len(set(kinds)) == 1:
        return _empty_one(layer, layer.out_features, kinds[0])
    assert isinstance(layer, Fused)
    each = {}
    for (name, size), kind in zip(layer.parts.items(), kinds, strict=True):
        part = Linear(layer.in_features, size, name in layer.biased).to("meta")
        each[name] = _empty_one(part, size, kind)
    return QuantisedApart(**each)


def _empty_one(layer: Linear, outputs: int, kind: Kind) -> Quantised:
    bits, groups, adds = kind
    with torch.device("meta"):
        packed = torch.empty(outputs, layer.in_features * bits // 8, dtype=torch.uint8)
        scale = torch.empty(outputs, groups)
        return Quantised.like(layer, packed, scale, scale.clone() if adds else None, bits=bits)


def _ops(op: Same | Stacked, path: str, layer: nn.Module, names: Mapping[str, str]) -> list[Op]:
    """A weight's operation as those of the tensors that are there in its stead."""
    if isinstance(layer, QuantisedApart):
        assert isinstance(op, Stacked)
        each = zip(layer.layers.items(), op.theirs, strict=True)
        return [
            new
            for (part, held), theirs in each
            for new in _ops(Same("", theirs), f"{path}.each.{part}", held, names)
        ]
    assert isinstance(layer, Quantised)
    kinds = ["packed", "scale"] if layer.least is None else ["packed", "scale", "least"]
    ops: list[Op] = [_renamed(op, f"{path}.{kind}", names[kind]) for kind in kinds]
    if names is THEIRS:
        sizes = op.sizes if isinstance(op, Stacked) else (layer.outputs,)
        for theirs, size in zip(names_of(op), sizes, strict=True):
            ops.append(_shape(theirs.removesuffix("weight") + SHAPE, size, layer.inputs))
    return ops


def _renamed(op: Same | Stacked, ours: str, kind: str) -> Op:
    def name(theirs: Name) -> Name:
        if isinstance(theirs, Interleaved):
            return replace(theirs, theirs=theirs.theirs.removesuffix("weight") + kind)
        return theirs.removesuffix("weight") + kind

    if isinstance(op, Stacked):
        return replace(op, ours=ours, theirs=tuple(map(name, op.theirs)))
    return replace(op, ours=ours, theirs=name(op.theirs))


def _shape(name: str, outputs: int, inputs: int) -> Derived:
    return Derived(name, lambda: torch.tensor([outputs, inputs]), write=True)


def _apart_biases(model: nn.Module, ops: list[Op]) -> list[Op]:
    """The biases of layers that are held part by part, each by itself."""
    out: list[Op] = []
    for op in ops:
        path, _, kind = str(getattr(op, "ours", "")).rpartition(".")
        held = model.get_submodule(path) if kind == "bias" else None
        if isinstance(held, QuantisedApart) and isinstance(op, Stacked):
            pairs = zip(held.biased, op.theirs, strict=True)
            out += [Same(f"{path}.each.{part}.bias", theirs) for part, theirs in pairs]
        else:
            out.append(op)
    return out
