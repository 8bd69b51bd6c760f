"""What a model knows of its adapters: `model.tuning`, from the first `apply` to the last `remove`.

It holds every slot, hung into the model or not, and the tensors of the model that adapters have
for their own: what is in the model at a time is the base's, or that of the adapter which acts.
None of this is in `model.state_dict()` or `model.parameters()` but what acts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from allformer.core.stack import Stack
from allformer.errors import ConfigError, did_you_mean
from allformer.tune.slot import Names, Selection, Slot

S = TypeVar("S", bound=Slot)


@dataclass
class Adapter:
    """One adapter: its methods, and the tensors of the model that it has its own values of."""

    methods: tuple[Any, ...]  # of `Method`
    own: dict[str, nn.Parameter] = field(default_factory=dict)  # by their paths
    in_place: bool = False  # whether it trains the base itself, of which nothing is kept


@dataclass
class Kept:
    """What a layer was before adapters were merged into it: its tensors, or the layer itself."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    layer: nn.Module | None = None


class Tuning(nn.Module):
    """The adapters of a model: `model.tuning.adapters["tales"].methods`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.adapters: dict[str, Adapter] = {}
        self.slots: dict[tuple[str, str], Slot] = {}  # by the module's path and its attribute
        self.base: dict[str, nn.Parameter] = {}  # the model's own of what adapters own
        self.selection = Selection()
        self.is_merged = False
        self.merged: dict[str, Kept] = {}  # by the layer's path
        # What was trained before the first adapter came, for when the last one has gone.
        self.trained = {name for name, p in model.named_parameters() if p.requires_grad}

    # --- for methods ------------------------------------------------------------------------------

    def slot(self, model: nn.Module, path: str, attribute: str, kind: type[S]) -> S:
        """The slot of a place, made when it is first asked for."""
        place = (path, attribute)
        if place not in self.slots:
            self.slots[place] = kind().train(model.training)
        slot = self.slots[place]
        assert isinstance(slot, kind), f"{place} has a {type(slot).__name__}"
        return slot

    def own(self, model: nn.Module, adapter: str, paths: Iterable[str]) -> None:
        """Give an adapter its own values of some of the model's tensors, the base's to begin with.

        Where several modules hold one tensor, one path of it is enough.
        """
        named = dict(model.named_parameters())
        mine = self.adapters[adapter].own
        for path in paths:
            base = self.base.setdefault(path, named[path])
            mine[path] = nn.Parameter(base.detach().clone(), requires_grad=False)

    # --- what acts --------------------------------------------------------------------------------

    def known(self, name: str) -> str:
        """The name of an adapter, or an error that says which there are."""
        if name not in self.adapters:
            there = ", ".join(self.adapters) or "none"
            raise ConfigError(
                f"adapter {name!r} is not there; {did_you_mean(name, self.adapters)}there is "
                f"{there}"
            )
        return name

    def choose(self, model: Any, selection: Selection) -> None:
        """Let some adapters act: hang slots in or take them off, and exchange tensors."""
        own = self._owned(selection)
        self.selection = selection
        for (path, attribute), slot in self.slots.items():
            slot.selection = selection
            setattr(model.get_submodule(path), attribute, slot if slot.acts else None)
        exchange(model, {path: own.get(path, base) for path, base in self.base.items()})
        self.tell(model)

    def tell(self, model: Any) -> None:
        """What the core asks: whether rows differ, whose work is beside the weights, who draws."""
        acting = [] if self.is_merged else [slot for slot in self.slots.values() if slot.acts]
        names = self.selection.every
        model.by_row = self.selection.rows is not None
        model.adapters = tuple(n for n in names if any(n in slot.each for slot in acting))
        draws = any(slot.draws for slot in acting)
        for stack in model.modules():
            if isinstance(stack, Stack):
                stack.adapters_draw = draws

    def _owned(self, selection: Selection) -> dict[str, nn.Parameter]:
        """The tensors that the chosen have for their own; in one batch there is one of each."""
        found: dict[str, nn.Parameter] = {}
        for name in selection.every:
            own = self.adapters[self.known(name)].own
            twice = next((path for path in own if path in found), None)
            if own and selection.rows is not None:
                path = next(iter(own))
                raise ConfigError(
                    f"adapter {name!r} has its own {path}, which the rows of a batch share; give "
                    f"it batches of its own, or train it with whole=()"
                )
            if twice is not None:
                raise ConfigError(
                    f"adapter {name!r} and one before it both have their own {twice}; let one of "
                    f"them act at a time"
                )
            found |= own
        return found

    def parameters_of(self, name: str) -> Iterator[tuple[str, nn.Parameter]]:
        """All that an adapter has trained, by path: what its state is called."""
        for (path, attribute), slot in self.slots.items():
            if name in slot.each:
                for inner, parameter in slot.each[name].named_parameters():
                    yield f"{path}.{attribute}.{inner}", parameter
        yield from self.adapters[name].own.items()

    # --- a module's duties ------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Tuning:
        """As the model: of slots that are off too."""
        super().train(mode)
        for slot in self.slots.values():
            slot.train(mode)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Tuning:
        """`model.to(…)` reaches what is not hung into the model at this time too."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for slot in self.slots.values():
            if not slot.acts or self.is_merged:
                slot._apply(fn)  # type: ignore[no-untyped-call]
        own = self._owned(self.selection)
        away = [p for path, p in self.base.items() if path in own]
        for adapter in self.adapters.values():
            away += [p for path, p in adapter.own.items() if own.get(path) is not p]
        nn.ParameterList(away)._apply(fn)  # type: ignore[no-untyped-call]
        for kept in self.merged.values():
            kept.tensors = {name: fn(tensor) for name, tensor in kept.tensors.items()}
            if kept.layer is not None:
                kept.layer._apply(fn)  # type: ignore[no-untyped-call]
        return self


def tuning_of(model: nn.Module) -> Tuning | None:
    """A model's record of adapters, if it has any."""
    found = getattr(model, "tuning", None)
    return found if isinstance(found, Tuning) else None


def must_be_tuned(model: nn.Module) -> Tuning:
    """A model's record of adapters, or an error that says how to get one."""
    found = tuning_of(model)
    if found is None:
        raise ConfigError("this model has no adapter; put one on it with tune.apply(model, …)")
    return found


def exchange(model: nn.Module, tensors: dict[str, nn.Parameter]) -> None:
    """Put parameters in the place of those at their paths, whoever else holds those too."""
    named = dict(model.named_parameters(remove_duplicate=False))
    new = {id(named[path]): p for path, p in tensors.items() if named[path] is not p}
    if not new:
        return
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) in new:
                module._parameters[name] = new[id(parameter)]


@torch.no_grad()
def freeze(model: nn.Module, tuning: Tuning) -> None:
    """Train what the chosen adapters have, and nothing else; drop gradients of the rest."""
    own: set[int] = set()
    for name in tuning.selection.every:
        own |= {id(p) for _, p in tuning.parameters_of(name)}
        if tuning.adapters[name].in_place:  # what was never trained stays so: stored sinusoids
            own |= {id(p) for path, p in model.named_parameters() if path in tuning.trained}
    every = list(model.parameters()) + list(tuning.base.values())
    for name in tuning.adapters:
        every += [p for _, p in tuning.parameters_of(name)]
    for parameter in every:
        trains = id(parameter) in own and parameter.is_floating_point()
        parameter.requires_grad_(trains)
        if not trains:
            parameter.grad = None


def names_of(chosen: Any) -> Names:
    """`"tales"`, `("tales", "style")` or None, as names."""
    if chosen is None:
        return ()
    return (chosen,) if isinstance(chosen, str) else tuple(chosen)
