"""Weights between a model and its files, through a weight map.

    loaded = load_weights(build(config, device="meta"), ops, open_tensors(path), device="cpu")
    save_weights(model, ops, path)

Tensors are read into memory of their own, not mapped: a map breaks (or changes the weights) when
somebody writes to the file later, and its pages are counted as resident beside any copy. So
loading needs the weights once, plus a buffer of `CHUNK` bytes a thread where something is
converted on the way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from allformer.checkpoint.account import FLOATS, Plan, account, check_map
from allformer.checkpoint.chunks import CHUNK, chunks
from allformer.checkpoint.files import TensorFiles
from allformer.checkpoint.packed_files import packed_out
from allformer.checkpoint.shards import Outgoing, write_checkpoint
from allformer.checkpoint.stored import Stored, read_whole
from allformer.core.quantised import scale_names
from allformer.errors import CheckpointError
from allformer.families.weights import (
    Derived,
    Joined,
    Part,
    Renamed,
    Same,
    Unused,
    Weight,
    WeightMap,
)

READERS = 4
SHARD = 50 * 10**9  # bytes, as transformers 5 splits


def own_state(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters and stored buffers; a shared one once, under its first name."""
    state: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            state[name] = tensor
    return state


# What a stack's source holds was the stack's own in older files.
OLD_NAMES = (
    Renamed(r"^(encoder|decoder)\.(embedding|types|position|widen)\.", r"\1.source.\2."),
    Renamed(r"^(encoder|decoder)\.source_norm\.", r"\1.source.norm."),
    Renamed(r"^(encoder|decoder)\.bucket\.", r"\1.relative."),
)


def own_map(model: nn.Module) -> WeightMap:
    """Our own files have our own names, old ones those of their time."""
    return [*OLD_NAMES, *(Same(name, name) for name in own_state(model))]


@dataclass(frozen=True)
class Loaded:
    """What became of each key of the files, and what nothing reads, for writing it back."""

    fates: dict[str, str]
    aside: dict[str, Tensor] = field(default_factory=dict)


@torch.inference_mode(False)  # inside such a block too: parameters are no inference tensors
@torch.no_grad()
def load_weights(
    model: nn.Module,
    ops: WeightMap,
    files: TensorFiles,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> Loaded:
    """Give a model (built on "meta") its weights, all or nothing; returns each key's fate.

    The dtypes are the file's unless `dtype` is given. On an error the model is as it was. On
    "meta" the keys are accounted for and nothing is loaded.
    """
    device = torch.device(device)
    state = own_state(model)
    plan = account(state, ops, files, dtype, scale_names(model))
    if device.type == "meta":
        return Loaded(plan.fates)
    for second, first in plan.ties:
        check_tied(second, first, files)
    for op, stored in plan.derived:
        check_derived(op, stored)
    loaded = {
        name: torch.empty(state[name].shape, dtype=plan.dtypes[name], device=device)
        for name in state
    }
    weights = [op for op in ops if isinstance(op, Weight)]
    _fill(plan, weights, loaded)
    put(model, {id(state[name]): loaded[name] for name in state})
    return Loaded(plan.fates, {name: read_whole(stored) for name, stored in plan.aside.items()})


def _fill(plan: Plan, weights: list[Weight], loaded: dict[str, Tensor]) -> None:
    jobs: list[tuple[Stored, Part]] = []
    for op in weights:
        if op.ours in plan.constant:
            loaded[op.ours].fill_(plan.constant[op.ours])
        else:
            jobs += zip(plan.sources[op.ours], op.parts(loaded[op.ours]), strict=True)
    jobs.sort(key=lambda job: (str(job[0].file), job[0].offset))  # as it lies on the disk
    with ThreadPoolExecutor(READERS) as pool:
        done = [pool.submit(copy_in, stored, part.view) for stored, part in jobs]
        try:
            for future in done:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def copy_in(stored: Stored, view: Tensor) -> None:
    """Fill a view of one of our tensors, straight from the file where nothing changes."""
    if view.is_contiguous() and view.dtype == stored.dtype and view.device.type == "cpu":
        stored.read_into(view)
        return
    buffer = torch.empty(0, dtype=stored.dtype)
    for first, rows in chunks(view):
        buffer = buffer if buffer.numel() else torch.empty(rows.numel(), dtype=stored.dtype)
        piece = buffer[: rows.numel()].view(rows.shape)
        stored.read_into(piece, first)
        rows.copy_(piece)


def same_bytes(second: Stored, first: Stored) -> bool:
    """Whether two tensors of a file are copies; looks no further than the first difference."""
    if second.shape != first.shape or second.dtype != first.dtype:
        return False
    size, total = max(1, CHUNK // first.dtype.itemsize), math.prod(first.shape)
    for at in range(0, total, size):
        a, b = torch.empty(2, min(size, total - at), dtype=first.dtype)
        first.read_into(a, at)
        second.read_into(b, at)
        if not torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
            return False
    return True


def own_names(files: TensorFiles, tables: Sequence[str]) -> set[str]:
    """The names of a file without those `tables` (by their ends) that repeat one before them."""
    names, found = set(files), list[str]()
    for table in tables:
        for name in sorted(name for name in files if f".{name}".endswith(f".{table}")):
            if any(same_bytes(files[name], files[other]) for other in found):
                names.discard(name)
            else:
                found.append(name)
    return names


def check_tied(second: Stored, first: Stored, files: TensorFiles) -> None:
    """Two names of one tensor must hold the same bytes."""
    if not same_bytes(second, first):
        raise CheckpointError(
            f"{files.where}: {second.name} differs from {first.name}, but the config says that "
            f"they are one tensor: the checkpoint is untied; set tie_word_embeddings to false in "
            f"config.json, or remove {second.name} if it is a leftover"
        )


def check_derived(op: Derived, stored: Stored) -> None:
    """A stored constant must be what the config makes of it."""
    shape = stored.shape if op.shape is None else op.shape
    wanted = op.make() if shape == stored.shape else torch.empty(shape, device="meta")
    found = read_whole(stored)
    if found.shape != wanted.shape:
        fault = f"has shape {list(found.shape)}, not {list(wanted.shape)}"
    elif not found.is_floating_point():
        fault = "" if torch.equal(found, wanted.to(found.dtype)) else "has other values"
    else:
        tolerance = op.tolerance or 8 * torch.finfo(found.dtype).eps
        near = tolerance * wanted.double().nan_to_num(0.0, 0.0, 0.0).abs().amax()
        apart = (found.double() - wanted.double()).abs()
        same = (found == wanted.to(found.dtype)) | (apart <= near)  # two infinities are equal
        fault = "" if same.all() else f"differs by up to {apart[~same].max():.3g}"
    if fault:
        raise CheckpointError(
            f"{stored.file}: {stored.name} is not what the config gives: it {fault}; use the "
            f"config.json that the weights were saved with"
        )


def put(model: nn.Module, new: dict[int, Tensor]) -> None:
    """Put tensors in the places of others, by their `id`; what was shared stays shared."""
    parameters = {
        id(old): nn.Parameter(new[id(old)], requires_grad=old.requires_grad)
        for old in model.parameters()
    }
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is not None:
                module._parameters[name] = parameters[id(old)]
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) in new:
                module._buffers[name] = new[id(buffer)]
    left = [name for name, x in [*model.named_parameters(), *model.named_buffers()] if x.is_meta]
    assert not left, f"still without values: {left[:5]}"


def joined(out: list[Outgoing], ops: WeightMap) -> list[Outgoing]:
    """The same tensors, with those put together that lie in one in a file."""
    found = {x.name: x for x in out}
    for op in ops:
        if isinstance(op, Joined):
            parts = [found.pop(name) for name in op.parts]
            shape = (sum(op.sizes), *parts[0].shape[1:])
            whole = torch.cat([part.view for part in parts])
            found[op.theirs] = Outgoing(op.theirs, whole, shape, parts[0].dtype)
    return list(found.values())


def save_weights(
    model: nn.Module,
    ops: WeightMap,
    directory: str | Path,
    *,
    max_shard_bytes: int = SHARD,
    dtype: torch.dtype | None = None,
    aside: Mapping[str, Tensor] | None = None,
    beside: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write a model's weights as transformers lays them out; returns the files.

    The directory's older weights stay whole until the new ones are all there. Floating tensors are
    converted to `dtype` if it is given. `aside` has tensors that nothing reads, by their names;
    `beside` the texts of small files, such as config.json, which appear with the weights.
    """
    state = own_state(model)
    weights = [op for op in ops if isinstance(op, Weight)]
    check_map(state, ops)
    if empty := [name for name, x in state.items() if x.is_meta]:
        raise CheckpointError(
            f"{empty[0]} is on the meta device: there are no weights to write to {directory}; load "
            f"or build the model on a real device"
        )
    floats = Counter(x.dtype for x in state.values() if x.dtype in FLOATS).most_common(1)
    usual = dtype or (floats[0][0] if floats else None)

    def kept(x: Tensor, wish: torch.dtype | None) -> torch.dtype:
        return wish if wish is not None and x.is_floating_point() else x.dtype

    exact = scale_names(model)
    out = [
        Outgoing(
            part.theirs,
            part.view,
            part.shape,
            kept(part.view, None if op.ours in exact else dtype),
        )
        for op in weights
        for part in op.parts(state[op.ours].detach().contiguous())
    ]
    out = joined(out, ops)
    views, kept_aside = {x.name: x.view for x in out}, aside or {}
    for op in ops:
        if isinstance(op, Unused) and (op.theirs in kept_aside or not op.kept):
            shape = op.shape or views[op.of].shape
            zeros = torch.zeros(shape, dtype=views[op.of].dtype)
            x = kept_aside.get(op.theirs, zeros)
            out.append(Outgoing(op.theirs, x, tuple(x.shape), kept(x, dtype)))
        elif isinstance(op, Derived) and op.write:
            x = op.make()
            out.append(Outgoing(op.theirs, x, tuple(x.shape), kept(x, usual)))
    count = sum(x.numel() for x in model.parameters())
    return write_checkpoint(Path(directory), packed_out(out), max_shard_bytes, count, beside)
