"""What a method of tuning is: settings, and what it puts into a model where.

    @register("lora")
    @dataclass(frozen=True)
    class Lora(Method): ...

    tune.apply(model, Lora(rank=8), name="tales")

One file each; a new file in this package registers itself. A method puts modules into slots
(`Tuning.slot`), or takes tensors of the model for its own (`Tuning.own`), or both; switching,
removing, saving and counting know nothing else of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch

from allformer.errors import ConfigError, did_you_mean
from allformer.tune.tuning import Tuning

METHODS: dict[str, type[Method]] = {}
M = TypeVar("M", bound="type[Method]")


@dataclass(frozen=True)
class Method(ABC):
    """Settings of one way of tuning.

    `whole`: parts of the model that are trained whole beside it, by their paths (`("head",)`).
    None: a head that is new to its task (of labels, spans, boxes), and none that says words.
    """

    name: ClassVar[str]

    whole: tuple[str, ...] | None = field(default=None, kw_only=True)

    def ahead(self, tree: Any) -> dict[str, int]:
        """Of each stack of a tree, the positions that stand before those of the tokens."""
        return {}

    @abstractmethod
    def put(self, model: Any, tuning: Tuning, adapter: str, generator: torch.Generator) -> None:
        """Put what is trained into `model`, under the adapter's name; `generator` starts it.

        What cannot be done is refused with a `ConfigError`; what was put by then is taken out.
        """


def register(name: str) -> Callable[[M], M]:
    """Make a method known by its name: `@register("lora")`."""

    def put(method: M) -> M:
        method.name = name
        METHODS[name] = method
        return method

    return put


def find_method(name: str) -> type[Method]:
    """`find_method("lora")`; an error that says which there are."""
    if name not in METHODS:
        raise ConfigError(
            f"method={name!r} is not known; {did_you_mean(name, METHODS)}there is "
            f"{', '.join(sorted(METHODS))}"
        )
    return METHODS[name]
