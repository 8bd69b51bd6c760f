"""What a layer remembers between calls: state that is handed in, never stored on a module.

cache = model.new_cache()
model.step(first_ids, cache, memory, mask)     # computes and remembers
model.step(next_ids, cache, None, mask)        # only the new tokens are computed
"""

from __future__ import annotations

from allformer.core.states.growing import Growing
from allformer.core.states.hashed import Hashed, Hashes
from allformer.core.states.int8 import Int8, in_int8
from allformer.core.states.paths import Paths
from allformer.core.states.recurrent import Recurrent, StaticRecurrent
from allformer.core.states.ring import Ring
from allformer.core.states.segment import SegmentMemory
from allformer.core.states.state import Cache, LayerState, State
from allformer.core.states.static import Static
from allformer.core.states.static_ring import StaticRing

__all__ = [
    "Cache", "Growing", "Hashed", "Hashes", "Int8", "LayerState", "Paths", "Recurrent", "Ring",
    "SegmentMemory", "State", "Static", "StaticRecurrent", "StaticRing", "in_int8",
]  # fmt: skip
