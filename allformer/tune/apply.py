"""Put adapters on a model, let some of them act, take them off.

tune.apply(model, Lora(rank=8), name="tales")     # frozen, but for the adapter, which acts
tune.switch(model, None)                          # the base as it was
tune.switch(model, "tales", "style")              # both
tune.switch(model, ["tales", None, "style"])      # row by row of a batch
tune.remove(model, "tales")
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from allformer import config
from allformer.errors import ConfigError
from allformer.tune.method import Method
from allformer.tune.slot import Selection
from allformer.tune.tuning import Adapter, Tuning, freeze, must_be_tuned, names_of, tuning_of

DEFAULT = "default"


@torch.inference_mode(False)  # inside such a block too: parameters are no inference tensors
def apply(
    model: Any, method: Method | Sequence[Method], name: str = DEFAULT, *, seed: int | None = None
) -> None:
    """Put an adapter on a model, and let it alone act: `apply(model, Lora(rank=8), seed=1)`.

    Everything else is frozen. Several methods make one adapter: `(Lora(), BitFit())`. `seed` says
    how fresh weights start; without one torch's own generator does.
    """
    methods = (method,) if isinstance(method, Method) else tuple(method)
    _check_name(name)
    if not methods:
        raise ConfigError("apply got no method; give one: Lora(rank=8)")
    tuning = tuning_of(model)
    if tuning is None:
        tuning = model.tuning = Tuning(model)
    _check_room(tuning, name)
    was = tuning.selection
    tuning.choose(model, Selection())  # adapters are put on the base
    tuning.adapters[name] = Adapter(methods)
    generator = torch.default_generator
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
    try:
        for one in methods:
            one.put(model, tuning, name, generator)
        if not tuning.adapters[name].in_place:
            tuning.own(model, name, _whole(model, methods, tuning.adapters[name]))
        tuning.choose(model, Selection((name,)))
    except BaseException:
        _drop(model, tuning, name, was)
        raise
    freeze(model, tuning)


def switch(model: Any, *names: str | Sequence[str | Sequence[str] | None] | None) -> None:
    """Let adapters act, and train: `switch(model, "tales")`, `switch(model, None)` for the base.

    Several names act together, one after the other. A list names one for each row of a batch (or
    None, or a tuple of several); rows that come of one, as beams do, have the same.
    """
    tuning = must_be_tuned(model)
    check_free(tuning)
    selection = _selection(tuning, names)
    tuning.choose(model, selection)
    freeze(model, tuning)


@contextmanager
def using(model: Any, *names: str | Sequence[str | Sequence[str] | None] | None) -> Iterator[None]:
    """For a while other adapters act; what is trained stays: `with using(model, None): …`."""
    tuning = must_be_tuned(model)
    check_free(tuning)
    was = tuning.selection
    tuning.choose(model, _selection(tuning, names))
    try:
        yield
    finally:
        tuning.choose(model, was)


def active(model: Any) -> tuple[str, ...]:
    """The adapters that act, in some row at least: `active(model)` → ("default",)."""
    tuning = tuning_of(model)
    return () if tuning is None else tuning.selection.every


def remove(model: Any, name: str = DEFAULT) -> None:
    """Take an adapter off; after the last one the model is as it was before the first."""
    tuning = must_be_tuned(model)
    check_free(tuning)
    adapter = tuning.adapters[tuning.known(name)]
    if adapter.in_place:
        raise ConfigError(
            f"adapter {name!r} has trained the model itself, of which nothing was kept; load it "
            f"again"
        )
    was = tuning.selection
    _drop(model, tuning, name, Selection() if name in was.every else was)


def _drop(model: Any, tuning: Tuning, name: str, selection: Selection) -> None:
    tuning.choose(model, Selection())
    for place, slot in list(tuning.slots.items()):
        if name in slot.each:
            del slot.each[name]
        if not len(slot.each):
            del tuning.slots[place]
    del tuning.adapters[name]
    others = {path for adapter in tuning.adapters.values() for path in adapter.own}
    tuning.base = {path: p for path, p in tuning.base.items() if path in others}
    if tuning.adapters:
        tuning.choose(model, selection)
        freeze(model, tuning)
        return
    forget(model, tuning)


def forget(model: Any, tuning: Tuning) -> None:
    """Leave the model as it stands now, without adapters, trained as before the first came."""
    for path, parameter in model.named_parameters():
        parameter.requires_grad_(path in tuning.trained)
    tuning.slots = {}
    tuning.tell(model)
    del model.tuning


def check_free(tuning: Tuning) -> None:
    """While adapters are merged nothing is exchanged."""
    if tuning.is_merged:
        raise ConfigError("an adapter is merged into this model; tune.unmerge(model) first")


def _selection(tuning: Tuning, names: tuple[Any, ...]) -> Selection:
    if len(names) == 1 and isinstance(names[0], list):
        rows = tuple(names_of(row) for row in names[0])
        if not rows:
            raise ConfigError("switch got an empty list; name an adapter, or None, for each row")
        chosen = Selection(rows=rows)
    else:
        chosen = Selection(tuple(n for given in names for n in names_of(given)))
    for name in chosen.every:
        tuning.known(name)
    kept = next((n for n, a in tuning.adapters.items() if a.in_place), None)
    if kept is not None and set(chosen.every) != {kept}:
        raise ConfigError(
            f"adapter {kept!r} has trained the model itself, of which nothing was kept, so that "
            f"it acts always; load the base apart, as a model of its own"
        )
    return chosen


def _whole(model: nn.Module, methods: Sequence[Method], adapter: Adapter) -> list[str]:
    """Paths of what is trained whole beside the methods."""
    wanted: list[str] = []
    for method in methods:
        wanted += _usual(model) if method.whole is None else method.whole
    paths = [path for path, _ in model.named_parameters()]
    found: dict[str, None] = {}
    for part in dict.fromkeys(wanted):
        inside = [p for p in paths if p == part or p.startswith(f"{part}.")]
        if not inside:
            tops = ", ".join(dict.fromkeys(p.partition(".")[0] for p in paths))
            raise ConfigError(
                f"whole={part!r} is no part of this model; give a path that starts with one of "
                f"{tops}"
            )
        found |= dict.fromkeys(p for p in inside if p not in adapter.own)
    return list(found)


def _usual(model: Any) -> tuple[str, ...]:
    """A head of labels or spans is new to its task; one over words came with the model."""
    head = getattr(model.config, "head", None)
    return ("head",) if isinstance(head, config.SpanHead) or hasattr(head, "labels") else ()


def _check_room(tuning: Tuning, name: str) -> None:
    if name in tuning.adapters:
        raise ConfigError(
            f"adapter {name!r} is there already; give another name, or take it off with "
            f"tune.remove(model, {name!r})"
        )
    if any(adapter.in_place for adapter in tuning.adapters.values()):
        raise ConfigError("this model itself is trained (Full); an adapter wants a frozen one")
    check_free(tuning)


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or hasattr(nn.ModuleDict(), name):
        raise ConfigError(
            f"name={name!r} cannot name an adapter; use letters, digits, - and _, and no word of "
            f"torch's own"
        )
