"""Allformer: the whole Transformer family from one small core.

import allformer as af

model = af.build(af.preset("original-base"))     # fresh weights
model = af.load("path/to/a/checkpoint")           # a Hugging Face directory or hub id
out = model(input_ids=..., attention_mask=..., labels=...)
out.logits, out.loss
af.save(model, "path")                            # which transformers opens
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allformer.config import config_from_json
from allformer.core.model import Output, build
from allformer.core.trace import Trace, trace
from allformer.count import Count, count
from allformer.errors import AllformerError
from allformer.families import preset, presets
from allformer.version import __version__

if TYPE_CHECKING:
    from allformer.auditor import audit
    from allformer.checkpoint.load import load
    from allformer.checkpoint.save import save

# Imported when they are first used, so that `import allformer` costs little more than torch.
_LATER = {
    "audit": "allformer.auditor",
    "load": "allformer.checkpoint.load",
    "save": "allformer.checkpoint.save",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'allformer' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


__all__ = [
    "AllformerError",
    "Count",
    "Output",
    "Trace",
    "__version__",
    "audit",
    "build",
    "config_from_json",
    "count",
    "load",
    "preset",
    "presets",
    "save",
    "trace",
]
