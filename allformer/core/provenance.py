"""Where a model comes from: what its checkpoint said beyond the config tree and the weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass
class Provenance:
    """What is needed to write a model back, and to run it as its makers do.

    `model.provenance.family` is "gpt2" after `load("gpt2")`; a fresh model has an empty one.
    """

    family: str = ""  # a name in `families.FAMILIES`; "": none of them
    architecture: str = ""  # transformers' class: "GPT2LMHeadModel"
    extras: dict[str, Any] = field(default_factory=dict)  # config.json beyond the tree
    fields: dict[str, Any] = field(default_factory=dict)  # all of it, as it was read
    fates: dict[str, str] = field(default_factory=dict)  # what became of each key of its file
    generation: Any = None  # generation_config.json, or a GenerationConfig; None: not said
    images: dict[str, str] = field(
        default_factory=dict
    )  # files on how images or sounds are prepared
    quantised: str | None = None  # "int4": it was rounded when it was loaded, not in its file
    source: str = ""  # the directory or hub id that its weights were loaded from
    aside: dict[str, Tensor] = field(default_factory=dict)  # what its file holds and nothing reads
