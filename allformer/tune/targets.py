"""The linear layers that a method changes, by our names or by those of the family's files.

    find_sites(model, ("q", "v"))                  # of every attention, in every layer
    find_sites(model, ("cross.k", "feed.up"))      # the end of our path
    find_sites(model, ("c_attn",))                 # Hugging Face's name: all of a fused matrix
    find_sites(model, "all-linear", layers=(0, 1))

A fused product has a site for each projection in it and one for all of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from allformer.core.attention import Attention
from allformer.core.feed_forward import Feed
from allformer.core.heads.adaptive import AdaptiveHead
from allformer.core.linear import Linear
from allformer.core.quantised import Quantised, QuantisedApart
from allformer.core.relatives.xl import XLPart
from allformer.core.sources.adaptive import Clusters
from allformer.errors import AllformerError, ConfigError, did_you_mean
from allformer.families import FAMILIES
from allformer.families.config_json import write_config
from allformer.families.weights import Same, Stacked, Transposed, names_of

LINEAR = (Linear, Quantised, QuantisedApart)
ALL = "all-linear"
WEIGHT = ".weight"
WHOLE = "whole"  # what modules call a part that is all of a matrix


@dataclass(frozen=True)
class Site:
    """A linear layer, or one projection of a fused one."""

    path: str  # of the layer: "encoder.layers.0.attention.qkv"
    part: str | None = None  # "q"; None: all of it
    theirs: str = ""  # what the family's files call it, where they hold just this as a matrix
    inside: bool = False  # whether it is of an attention or a feed-forward layer

    @property
    def ours(self) -> str:
        """Our name for it: "encoder.layers.0.attention.q"."""
        return self.path if self.part is None else f"{self.path.rpartition('.')[0]}.{self.part}"

    @property
    def layer(self) -> int | None:
        """The number of the layer that it is in."""
        found = re.search(r"\.layers\.(\d+)\.", self.path)
        return None if found is None else int(found[1])

    def called(self, name: str) -> bool:
        """Whether this is our name for it; a single word means parts of layers only."""
        return self.ours == name or (
            self.ours.endswith(f".{name}") and (self.inside or "." in name)
        )

    def called_there(self, name: str) -> bool:
        """Whether this is the files' name for it, as PEFT compares them: by its end."""
        return bool(self.theirs) and f".{self.theirs}".endswith(f".{name}")


def sites(model: nn.Module) -> list[Site]:
    """Every linear layer of a model, every projection of fused ones, in order."""
    theirs = _names_there(model)
    # Matrices that are read without their layer, and a projection of distances, which all rows
    # share.
    never = {
        id(layer)
        for module in model.modules()
        if isinstance(module, Clusters | AdaptiveHead | XLPart)
        for layer in module.modules()
    }
    inside = {
        id(child)
        for module in model.modules()
        if isinstance(module, Attention | Feed)
        for child in module.children()
    }
    found: list[Site] = []
    for path, layer in model.named_modules():
        if isinstance(layer, LINEAR) and id(layer) not in never:
            within, parts = id(layer) in inside, getattr(layer, "parts", {})
            for part in parts:
                found.append(Site(path, part, theirs.get((path, part), ""), within))
            if len(parts) != 1:
                found.append(Site(path, None, theirs.get((path, None), ""), within))
    return found


def find_sites(
    model: nn.Module, targets: str | Sequence[str], layers: Sequence[int] | None = None
) -> list[Site]:
    """Those that `targets` name, of some `layers` or of all; an error where a name fits none."""
    every = sites(model)
    chosen: dict[Site, None] = {}
    for name in (targets,) if isinstance(targets, str) else targets:
        found = _all(every) if name == ALL else [s for s in every if s.called(name)]
        found = found or [site for site in every if site.called_there(name)]
        if not found:
            raise ConfigError(_unknown(every, name))
        chosen |= dict.fromkeys(found)
    if layers is not None:
        numbers = {site.layer for site in chosen}
        odd = next((n for n in layers if n not in numbers), None)
        if odd is not None or not layers:
            last = max((n for n in numbers if n is not None), default=None)
            raise ConfigError(
                f"layers={tuple(layers)}, but the targets are in layers 0 to {last}; give some of "
                f"these, or None for all"
            )
    out = [site for site in chosen if layers is None or site.layer in layers]
    _check_apart(out)
    return out


def by_layer(found: Sequence[Site]) -> dict[str, list[Site]]:
    """Sites by the path of their layer."""
    out: dict[str, list[Site]] = {}
    for site in found:
        out.setdefault(site.path, []).append(site)
    return out


def sizes(layer: Any) -> tuple[int, int]:
    """Inputs and outputs of a linear layer, plain or in few bits."""
    if isinstance(layer, Linear):
        return layer.in_features, layer.out_features
    return layer.inputs, layer.outputs


def rows_of(layer: Any, part: str | None) -> slice:
    """Which outputs a projection has; all, where none is named."""
    if part is None:
        return slice(0, sizes(layer)[1])
    names = list(layer.parts)
    start = sum(layer.parts[n] for n in names[: names.index(part)])
    return slice(start, start + layer.parts[part])


def _all(every: Sequence[Site]) -> list[Site]:
    """The matrices of all layers, as the family's files hold them: fused, or in parts."""
    there = {site.path for site in every if site.part is None and site.theirs}
    cut = {site.path for site in every if site.part is not None}
    return [
        site
        for site in every
        if site.inside and (site.part is None) == (site.path in there or site.path not in cut)
    ]


def _names_there(model: Any) -> dict[tuple[str, str | None], str]:
    """What the files of the model's family call each matrix; nothing where no family fits."""
    try:
        _, known = write_config(model.config, model.provenance, None)
    except (AllformerError, AttributeError):
        return {}
    names: dict[tuple[str, str | None], str] = {}
    modules = dict(model.named_modules())
    for op in FAMILIES[known.family].weights(model.config, known.architecture):
        if not isinstance(op, Same | Stacked | Transposed) or not op.ours.endswith(WEIGHT):
            continue
        path = op.ours.removesuffix(WEIGHT)
        theirs = [name.removesuffix(WEIGHT) for name in names_of(op)]
        layer = modules.get(path)
        if not isinstance(layer, LINEAR):
            continue
        parts: list[str | None] = list(getattr(layer, "parts", {}))
        if len(theirs) == 1 and len(parts) != 1:
            names[path, None] = theirs[0]
        elif len(theirs) == len(parts):
            names |= {(path, part): name for part, name in zip(parts, theirs, strict=True)}
    return names


def _unknown(every: Sequence[Site], name: str) -> str:
    ours = dict.fromkeys(s.ours.rpartition(".")[2] for s in every if s.inside)
    theirs = dict.fromkeys(s.theirs.rpartition(".")[2] for s in every if s.inside and s.theirs)
    hint = did_you_mean(name, [*ours, *theirs])
    also = f", or by its files {', '.join(theirs)}" if theirs else ""
    return (
        f"targets={name!r} is no linear layer of this model; {hint}there is {ALL}, "
        f"{', '.join(ours)}{also}"
    )


def _check_apart(found: Sequence[Site]) -> None:
    """A matrix is changed whole or in parts, not both: which would come first?"""
    whole = {site.path for site in found if site.part is None}
    twice = next((site for site in found if site.part is not None and site.path in whole), None)
    if twice is not None:
        raise ConfigError(
            f"targets name {twice.path} whole and its part {twice.part!r} too; give one of them"
        )
