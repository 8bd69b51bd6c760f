"""A sliding window: a query looks a few places back and ahead, and no further."""

from __future__ import annotations

from allformer import config
from allformer.core.mixers.full import Full
from allformer.core.registry import implements
from allformer.core.states import Growing, Ring, State


@implements(config.Window)
class Window(Full):
    """No more than `left` keys before the query and `right` after it, and itself."""

    def __init__(self, attention: config.Attention, dim: int, path: str) -> None:
        super().__init__(attention, dim, path)
        self.reach = self.config.left, self.config.right

    def new_state(self, causal: bool) -> State:
        """Looking back alone, what is out of reach need not be kept."""
        return Ring(self.config.left) if causal else Growing()
