"""What an adapter has whole beside its method: PEFT's `modules_to_save`, and its `bias`.

    base_model.model.classifier.weight                       # a module saved whole
    base_model.model.….query.base_layer.bias                 # the bias of a module that is changed

We hold some of their tensors as one (the biases of q, k and v): where a file has some of them, the
others are the base's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from allformer.checkpoint.adapter.fields import Fields
from allformer.checkpoint.adapter.form import NotPeft, Tensors, check_shape
from allformer.checkpoint.adapter.names import Names, covered
from allformer.errors import CheckpointError
from allformer.families.weights import Weight
from allformer.tune.tuning import tuning_of

LAYER = ".base_layer."


@dataclass
class Whole:
    """What is written whole: the names of modules, the kind of biases, and the tensors."""

    modules: list[str]
    bias: str
    tensors: Tensors


def base_tensors(model: Any) -> dict[str, Tensor]:
    """The base's own parameters by their paths, whichever adapter acts."""
    tuning = tuning_of(model)
    found: dict[str, Tensor] = dict(model.named_parameters())
    return found if tuning is None else found | tuning.base


@torch.no_grad()
def read_whole(fields: Fields, tensors: Tensors, names: Names, model: Any) -> Tensors:
    """Our tensors, by their paths, of those that a file has whole."""
    base, own = base_tensors(model), Tensors()
    for key, tensor in tensors.items():
        name = key.replace(LAYER, ".")
        found = names.find(name, names.tensors)
        if found is None:
            _check_alias(fields, name, tensor, tensors, names, base)
            continue
        op = names.tensors[found]
        if op.ours not in own:
            own[op.ours] = base[op.ours].detach().clone()
        part = next(p for p in op.parts(own[op.ours]) if names.now(p.theirs) == found)
        check_shape(fields, key, tensor, part.shape)
        _check_untied(fields, found, tensor, part.view, tensors, names)
        part.view.copy_(tensor.reshape(part.view.shape))
    return own


def _check_untied(
    fields: Fields, name: str, tensor: Tensor, base: Tensor, tensors: Tensors, names: Names
) -> None:
    """PEFT trains a copy of a module: under the other names of its tensors the base's stay.

    What is whole in the file but no such copy (`save_embedding_layers`) is all of them.
    """
    module, others = name.rpartition(".")[0], {b for b, a in names.aliases.items() if a == name}
    copied = any(module.endswith(said) for said in fields.raw.get("modules_to_save") or ())
    apart = others - {names.find(key, others) for key in tensors}
    if copied and apart and not torch.equal(base.reshape(tensor.shape).to(tensor), tensor):
        raise _apart(fields, name, min(apart))


def _apart(fields: Fields, name: str, other: str) -> CheckpointError:
    return CheckpointError(
        f"{fields.file.parent} has {name} apart from {other}, which are one tensor in this model; "
        f"untie them (tie_word_embeddings: false, and both in the file), and load that"
    )


def _check_alias(
    fields: Fields,
    name: str,
    tensor: Tensor,
    tensors: Tensors,
    names: Names,
    base: Mapping[str, Tensor],
) -> None:
    """A second name of a tied tensor must have the first one's values: here they are one."""
    found = names.find(name, names.aliases)
    if found is None:
        raise CheckpointError(
            f"{fields.file.parent} has {name}, which is no tensor of this {names.architecture}: "
            f"the adapter is of another model; give the one that it was trained on"
        )
    first = names.aliases[found]
    op = names.tensors[first]
    mine = tensors.get(first)
    if mine is None:
        parts = op.parts(base[op.ours].detach())
        mine = next(part.view for part in parts if names.now(part.theirs) == first)
    if mine.shape != tensor.shape or not torch.equal(mine.to(tensor), tensor):
        raise _apart(fields, name, first)


def write_whole(
    own: Mapping[str, Tensor], names: Names, model: Any, changed: Collection[str]
) -> Whole:
    """Those tensors as PEFT has them; `changed` are the modules that a method has changed."""
    base, of = base_tensors(model), {op.ours: op for op in names.tensors.values()}
    theirs, same = Tensors(), set[str]()
    for path, tensor in own.items():
        if path not in of:
            raise NotPeft(f"{path} is no tensor of transformers'")
        before = _parts(of[path], base[path], names)
        for name, x in _parts(of[path], tensor, names).items():
            theirs[name] = x
            same |= {name} if torch.equal(x, before[name]) else set()
    for second, first in names.aliases.items():
        if first in theirs:
            theirs[second] = theirs[first].clone()
    every = (*names.tensors, *names.aliases, *names.others)
    inside = {f"{module}.{kind}" for module in changed for kind in ("weight", "bias")}
    modules = covered(theirs.keys() - inside, every)
    for module in modules:
        twin = next((m for m in names.modules if m.endswith(module) and m != module), None)
        if twin is not None:  # PEFT compares letters here, and not words
            raise NotPeft(f"{module} cannot be told from {twin}")
    held = {name for name in theirs if any(name.startswith(f"{m}.") for m in modules)}
    left = theirs.keys() - held - same
    odd = next((name for name in left if not name.endswith(".bias")), None)
    if odd is not None:
        raise NotPeft(f"{odd} is trained, but not all of its module")
    bias = "none" if not left else "lora_only" if left <= inside else "all"
    tensors = {name: theirs[name] for name in theirs if name in held}
    for name in left:
        key = name.removesuffix(".bias") + LAYER + "bias" if name in inside else name
        tensors[key] = theirs[name]
    return Whole(modules, bias, tensors)


def _parts(op: Weight, tensor: Tensor, names: Names) -> Tensors:
    return {
        names.now(part.theirs): part.view.contiguous().view(part.shape)
        for part in op.parts(tensor.detach())
    }
