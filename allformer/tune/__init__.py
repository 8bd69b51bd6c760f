"""Tuning: what is trained of a model that is there, and how it is put on and taken off.

    from allformer import tune

    tune.apply(model, tune.Lora(rank=8), name="tales")
    tune.trainable(model)                       # the share that is trained, part by part
    tune.switch(model, None)                    # the base again

Each method is one file; a new file registers itself.
"""

from __future__ import annotations

from allformer.core.registry import import_all
from allformer.tune.apply import DEFAULT, active, apply, remove, switch, using
from allformer.tune.lora import Lora
from allformer.tune.method import METHODS, Method, find_method, register
from allformer.tune.state import adapter_state, load_adapter_state

__all__ = [
    "DEFAULT",
    "METHODS",
    "Lora",
    "Method",
    "active",
    "adapter_state",
    "apply",
    "find_method",
    "load_adapter_state",
    "register",
    "remove",
    "switch",
    "using",
]

import_all(__name__, __path__)
