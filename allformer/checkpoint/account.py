"""Every key accounted for: which file tensor goes where, decided before anything is loaded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from allformer.checkpoint.causes import Misfit, likely_causes
from allformer.checkpoint.files import TensorFiles
from allformer.checkpoint.stored import Stored
from allformer.errors import CheckpointError
from allformer.families.weights import (
    Alias,
    Derived,
    Ignored,
    Joined,
    Part,
    Renamed,
    Unused,
    Weight,
    WeightMap,
    names_of,
)

SHOWN = 20
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass
class Plan:
    """What loading will do, and the fate of each key of the file."""

    sources: dict[str, list[Stored]] = field(default_factory=dict)  # by our name, as op.parts
    constant: dict[str, float] = field(default_factory=dict)  # ours, where a file leaves it out
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    ties: list[tuple[Stored, Stored]] = field(default_factory=list)  # must be equal
    derived: list[tuple[Derived, Stored]] = field(default_factory=list)  # must be what make() says
    aside: dict[str, Stored] = field(default_factory=dict)  # read by nothing, kept for writing
    fates: dict[str, str] = field(default_factory=dict)


def account(
    state: Mapping[str, Tensor],
    ops: WeightMap,
    files: TensorFiles,
    dtype: torch.dtype | None = None,
    exact: Collection[str] = (),
) -> Plan:
    """Match a model's tensors with a file's by its weight map, or say all that does not fit.

    Floating tensors become `dtype`, if it is given; those that are `exact` stay as they are.
    """
    plan, misfit = Plan(), Misfit(files)
    stored = renamed(files, ops)
    weights = [op for op in ops if isinstance(op, Weight)]
    check_map(state, ops)
    aliases = [op for op in ops if isinstance(op, Alias | Unused)]
    usual = Counter(s.dtype for s in stored.values() if s.dtype in FLOATS).most_common(1)
    for op in weights:
        ours = state[op.ours]
        parts = op.parts(ours.detach().to("meta"))
        found = [_find(part.theirs, stored, aliases) for part in parts]
        if op.missing is not None and found[0] is None:
            plan.constant[op.ours] = op.missing
            plan.dtypes[op.ours] = dtype or (usual[0][0] if usual else ours.dtype)
            continue
        sources = [s for s in found if s is not None]
        for part, source in zip(parts, found, strict=True):
            if source is None:
                misfit.missing[part.theirs] = op.ours
            else:
                _check(part, source, ours, misfit)
                plan.fates[source.name] = op.ours
        kinds = {s.dtype for s in sources}
        if op.ours in exact and len(kinds) > 1:
            plan.dtypes[op.ours] = torch.float32
        elif len(kinds) > 1 and not (dtype and ours.is_floating_point()):
            said = ", ".join(f"{s.name} {_short(s.dtype)}" for s in sources)
            misfit.dtype[sources[0].name] = f"{said}: one tensor here; give a dtype to convert to"
        elif kinds:
            turned = dtype if ours.is_floating_point() and op.ours not in exact else None
            plan.dtypes[op.ours] = turned or kinds.pop()
        plan.sources[op.ours] = sources
    _account_rest(plan, ops, stored, misfit)
    if misfit:
        raise CheckpointError(explain(misfit, {n: op.ours for op in weights for n in names_of(op)}))
    return plan


def _find(name: str, stored: Mapping[str, Stored], aliases: list[Alias | Unused]) -> Stored | None:
    """A tensor by its name, or by another of its names where the file has only that one."""
    if name in stored:
        return stored[name]
    second = (alias for alias in aliases if not (isinstance(alias, Unused) and alias.apart))
    others = (alias.theirs for alias in second if alias.of == name)
    return next((stored[other] for other in others if other in stored), None)


def _check(part: Part, source: Stored, ours: Tensor, misfit: Misfit) -> None:
    if source.shape != part.shape:
        misfit.shape[source.name] = (source.shape, part.shape)
    fits = source.dtype in FLOATS if ours.is_floating_point() else source.dtype not in FLOATS
    if not fits:
        kind = "floating point" if ours.is_floating_point() else "integers"
        misfit.dtype[source.name] = f"{source.name} is {_short(source.dtype)}, not {kind}"


def _account_rest(plan: Plan, ops: WeightMap, stored: Mapping[str, Stored], misfit: Misfit) -> None:
    """The keys that are no weight of ours: second names, constants, junk, and the unexpected."""
    aliases = [op for op in ops if isinstance(op, Alias | Unused)]
    for op in ops:
        if isinstance(op, Alias) and op.theirs in stored:
            second, first = stored[op.theirs], _find(op.of, stored, aliases)
            if first is not None and first is not second:
                plan.fates[second.name] = f"equal to {first.name}"
                plan.ties.append((second, first))
        elif isinstance(op, Unused) and op.theirs in stored and op.of in stored:
            plan.fates[stored[op.theirs].name] = "never read; written back as it is"
            plan.aside[op.theirs] = stored[op.theirs]
        elif isinstance(op, Derived) and op.theirs in stored:
            plan.fates[stored[op.theirs].name] = "derived from the config"
            plan.derived.append((op, stored[op.theirs]))
    ignored = [(re.compile(op.pattern), op) for op in ops if isinstance(op, Ignored)]
    for name, source in stored.items():
        if source.name in plan.fates:
            continue
        matching = (op for pattern, op in ignored if pattern.fullmatch(name))
        dims = len(source.shape)
        why = next((op.why for op in matching if op.dims in (None, dims)), None)
        if why is None:
            misfit.unexpected[name] = source.shape
        else:
            plan.fates[source.name] = f"ignored: {why}"


def renamed(files: TensorFiles, ops: WeightMap) -> dict[str, Stored]:
    """The file's tensors under the names that the weight map uses."""
    rules = [(re.compile(op.pattern), op.to) for op in ops if isinstance(op, Renamed)]
    out: dict[str, Stored] = {}
    for name, source in files.items():
        new = name
        for pattern, to in rules:
            new = pattern.sub(to, new)
        twin = out.setdefault(new, source)
        if twin is not source:
            raise CheckpointError(
                f"{files.where} has {twin.name} and {name}, an older and a newer name of {new}; "
                f"remove one of them"
            )
    for op in ops:
        if isinstance(op, Joined) and out.get(op.theirs) is not None:
            _take_apart(op, out)
    return out


def _take_apart(op: Joined, stored: dict[str, Stored]) -> None:
    """A tensor of the file as the several that the map knows, if it is of their size."""
    whole = stored[op.theirs]
    if whole.shape[:1] != (sum(op.sizes),):
        return  # then the parts are missing, and it is unexpected
    del stored[op.theirs]
    first = 0
    for name, size in zip(op.parts, op.sizes, strict=True):
        stored[name] = whole.rows(first, size)
        first += size


def check_map(state: Mapping[str, Tensor], ops: WeightMap) -> None:
    """Each tensor of the model, and each name in a file, stands once in the map.

    Our own families must see to it.
    """
    times = Counter(op.ours for op in ops if isinstance(op, Weight))
    wrong = {name for name in {*state, *times} if times[name] != 1 or name not in state}
    assert not wrong, f"weight map and model disagree about {sorted(wrong)[:10]}"
    theirs = [name for op in ops if isinstance(op, Weight) for name in names_of(op)]
    theirs += [op.theirs for op in ops if isinstance(op, Alias | Unused | Derived)]
    twice = [name for name, count in Counter(theirs).items() if count > 1]
    assert not twice, f"the weight map has {twice[:10]} more than once"


def explain(misfit: Misfit, ours: Mapping[str, str]) -> str:
    """One message for all that does not fit, cut after `SHOWN` lines, with likely causes."""
    kinds = {
        "missing": [f"{theirs} (our {ours})" for theirs, ours in misfit.missing.items()],
        "unexpected": [f"{name} {list(shape)}" for name, shape in misfit.unexpected.items()],
        "of another shape": [
            f"{name} has {list(has)}, the model {list(wants)}"
            for name, (has, wants) in misfit.shape.items()
        ],
        "of another dtype": list(misfit.dtype.values()),
    }
    kinds = {label: said for label, said in kinds.items() if said}
    each = SHOWN // len(kinds)
    lines = []
    for label, said in kinds.items():
        lines += [f"{label}: {what}" for what in said[:each]]
        if said[each:]:
            lines.append(f"{label}: … and {len(said) - each} more")
    counts = ", ".join(f"{len(said)} {label}" for label, said in kinds.items())
    head = f"{misfit.files.where} does not fit the model: {counts}; it has {len(misfit.files)} keys"
    causes = [f"likely: {cause}" for cause in likely_causes(misfit, ours)]
    return "\n  ".join([head, *lines, *causes])


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
