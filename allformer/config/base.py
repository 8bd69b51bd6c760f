"""What every node of the tree is: checked by its annotations, known by its name, JSON.

@dataclass(frozen=True)
class Decay(Mixer):                   # a class of one's own, wherever it is defined
    rate: Probability = 0.1
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from allformer.config.check import CLASSES, Rule, choice, hints_of
from allformer.config.json import to_dict
from allformer.errors import ConfigError

ACTIVATIONS = (
    "relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh", "sigmoid", "mish", "relu2", "relu6",
    "leaky_relu", "identity",
)  # fmt: skip
LARGEST = 2**31 - 1  # of any size: what is larger is an error, and would first fill the memory

_LIMIT = Rule(lambda n: n <= LARGEST, f"must be at most {LARGEST:,}", "check the number")
Positive = Annotated[
    int, Rule(lambda n: n >= 1, "must be a whole number of at least 1", "try 1 or more"), _LIMIT
]
Natural = Annotated[
    int, Rule(lambda n: n >= 0, "must be a whole number of at least 0", "try 0 or more"), _LIMIT
]
Probability = Annotated[
    float, Rule(lambda p: 0 <= p < 1, "must be a probability, 0 <= p < 1", "try 0.1")
]
Activation = Annotated[str, choice(ACTIVATIONS)]


@dataclass(frozen=True)
class Config:
    """A node of the tree. Classes register themselves by their name, under which JSON finds them.

    `class Mixer(Config, slot=True)` is a slot: what others derive from, and nothing itself.
    """

    _slot: ClassVar[bool] = True

    def __init_subclass__(cls, *, slot: bool = False, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls._slot = slot
        if slot:
            return
        known = CLASSES.get(cls.__name__)
        if known is not None and known.__module__ != cls.__module__:
            raise ConfigError(
                f"{cls.__name__} is defined in {known.__module__} and again in {cls.__module__}, "
                f"and JSON could not tell them apart; rename one"
            )
        CLASSES[cls.__name__] = cls  # defined anew in its own module, it replaces the old one

    def __post_init__(self) -> None:
        if self._slot:
            fits = [name for name, cls in CLASSES.items() if issubclass(cls, type(self))]
            raise ConfigError(f"{type(self).__name__} is a slot; try {', '.join(fits)}")
        own: type = type(self)
        for name, hint in hints_of(own).items():
            if hint is not None:
                hint.check(self, name)

    def to_json(self, indent: int | None = 2) -> str:
        """`preset("original-base").to_json()`: text that `config_from_json` reads back."""
        return json.dumps(to_dict(self), indent=indent, ensure_ascii=False)
