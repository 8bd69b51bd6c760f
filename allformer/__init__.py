"""Allformer: the whole Transformer family from one small core.

import allformer as af

model = af.build(af.preset("original-base"))
out = model(input_ids=..., attention_mask=..., labels=...)
out.logits, out.loss
"""

from allformer.config import config_from_json
from allformer.core.model import Output, build
from allformer.core.trace import Trace, trace
from allformer.count import Count, count
from allformer.errors import AllformerError
from allformer.families import preset, presets
from allformer.version import __version__

__all__ = [
    "AllformerError",
    "Count",
    "Output",
    "Trace",
    "__version__",
    "build",
    "config_from_json",
    "count",
    "preset",
    "presets",
    "trace",
]
