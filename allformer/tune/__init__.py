"""Tuning: what is trained of a model that is there, and how it is put on and taken off.

    from allformer import tune

    tune.apply(model, tune.Lora(rank=8), name="tales")   # everything else is frozen
    print(tune.trainable(model))                         # the share that is trained, by part
    tune.switch(model, None)                             # the base again
    tune.switch(model, ["tales", None])                  # row by row of a batch
    tune.merge(model)                                    # into the weights; tune.unmerge takes out

Each method is one file; a new file registers itself.
"""

from __future__ import annotations

from allformer.core.registry import import_all
from allformer.tune.apply import DEFAULT, active, apply, remove, switch, using
from allformer.tune.bitfit import BitFit
from allformer.tune.bottleneck import Bottleneck
from allformer.tune.full import Full
from allformer.tune.ia3 import Ia3
from allformer.tune.lora import Lora
from allformer.tune.merge import merge, merged, unmerge
from allformer.tune.method import METHODS, Method, find_method, register
from allformer.tune.prefix import Prefix
from allformer.tune.prompt import Prompt
from allformer.tune.state import adapter_state, load_adapter_state
from allformer.tune.trainable import Trainable, trainable

__all__ = [
    "DEFAULT",
    "METHODS",
    "BitFit",
    "Bottleneck",
    "Full",
    "Ia3",
    "Lora",
    "Method",
    "Prefix",
    "Prompt",
    "Trainable",
    "active",
    "adapter_state",
    "apply",
    "find_method",
    "load_adapter_state",
    "merge",
    "merged",
    "register",
    "remove",
    "switch",
    "trainable",
    "unmerge",
    "using",
]

import_all(__name__, __path__)
