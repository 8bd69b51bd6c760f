"""What a kind of adapter is on disk: how its settings and its tensors are read and written.

    class LoraForm(Form):
        kind, method = "LORA", Lora

One file each, and a line in `forms.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from allformer.checkpoint.adapter.fields import Fields
from allformer.checkpoint.adapter.names import Names, shortest
from allformer.errors import CheckpointError
from allformer.tune.method import Method
from allformer.tune.targets import Site, find_sites, sites
from allformer.tune.tuning import Tuning

Tensors = dict[str, Tensor]


class NotPeft(Exception):
    """PEFT has no words for this adapter; the message says why."""


@dataclass
class Said:
    """An adapter in our terms: its method, and its tensors by the paths of `adapter_state`."""

    method: Method
    state: Tensors


@dataclass
class Written:
    """An adapter in PEFT's terms: fields of adapter_config.json, tensors by the names of modules,
    the modules that are changed, and tensors that are of no module."""

    fields: dict[str, Any]
    tensors: Tensors
    modules: list[str] = field(default_factory=list)
    beside: Tensors = field(default_factory=dict)


class Form(ABC):
    """`kind` is PEFT's name for it, `before` what stands before the names of modules."""

    kind: ClassVar[str]
    method: ClassVar[type[Method]]
    before: ClassVar[str] = "base_model.model."
    biases: ClassVar[bool] = False  # whether it may have biases beside it
    tasked: ClassVar[bool] = False  # whether PEFT does without it where it knows no task

    @abstractmethod
    def read(self, fields: Fields, tensors: Tensors, names: Names, model: Any) -> Said:
        """What files say; takes its tensors out of `tensors` and leaves what is saved whole."""

    @abstractmethod
    def write(self, method: Any, adapter: str, names: Names, model: Any) -> Written:
        """The same as files have it, or `NotPeft`."""


def changes(model: Any, adapter: str, kind: str) -> Mapping[str, nn.Module]:
    """What a method has put on linear layers, by the path of the layer."""
    tuning: Tuning = model.tuning
    found: dict[str, nn.Module] = {}
    for (path, _), slot in tuning.slots.items():
        if adapter in slot.each and kind in slot.each[adapter]:  # type: ignore[operator]
            found[path] = slot.each[adapter][kind]  # type: ignore[index]
    return found


def targets_of(
    model: Any, chosen: Sequence[Site]
) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    """Our shortest names for some sites, and the numbers of the layers they are in (None: all)."""
    every = sites(model)
    numbers = {site.layer for site in chosen}
    layers: tuple[int, ...] | None = None
    among = every
    if None not in numbers and numbers != {s.layer for s in every if s.inside}:
        layers = tuple(sorted(n for n in numbers if n is not None))
        among = [site for site in every if site.layer in numbers]
    found = ends(chosen, among)
    if set(find_sites(model, found, layers)) != set(chosen):
        found, layers = tuple(site.ours for site in chosen), None
    return found, layers


def ends(chosen: Sequence[Site], among: Sequence[Site]) -> tuple[str, ...]:
    """Our shortest names for some sites `among` others; what is of no layer has two words."""
    every = {site.ours for site in among}
    inside = [site.ours for site in chosen if site.inside]
    outside = [site.ours for site in chosen if not site.inside]
    return (*shortest(inside, every), *shortest(outside, every, least=2))


def unknown_module(fields: Fields, module: str, names: Names, count: int) -> CheckpointError:
    """An adapter of another model, or on what is no linear layer here: a table, a convolution."""
    if names.find(module, names.modules) is not None:
        return CheckpointError(
            f"{fields.file.parent} changes {module}, which is no linear layer of this "
            f"{names.architecture} here, but a table, a convolution or what scores tokens; merge "
            f"it with PEFT (merge_and_unload)"
        )
    here = ", ".join(list(names.sites)[:2])
    return CheckpointError(
        f"{fields.file.parent} changes {module}, which is no linear layer of this "
        f"{names.architecture} ({count} such; it has {here}, …): the adapter is of another model; "
        f"give the one that it was trained on"
    )


def check_shape(fields: Fields, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """A tensor of another shape is of a model of another size."""
    if tuple(tensor.shape) != shape:
        raise CheckpointError(
            f"{fields.file.parent}: {name} is {tuple(tensor.shape)}, but this model needs {shape}: "
            f"the adapter is of a model of another size; give the one that it was trained on"
        )
