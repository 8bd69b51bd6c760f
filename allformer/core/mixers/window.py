"""A sliding window: a query looks a few places back and ahead, and no further."""

from __future__ import annotations

from allformer import config
from allformer.core.mixers.full import Full
from allformer.core.registry import implements
from allformer.core.states import Growing, Ring, State


@implements(config.Window)
class Window(Full):
    """No more than `left` keys before the query and `right` after it, and itself; dilated, the keys
    are `dilation` places apart."""

    def __init__(self, attention: config.Attention, dim: int, path: str) -> None:
        super().__init__(attention, dim, path)
        self.reach, self.dilation = self.config.reach, self.config.dilation

    def new_state(self, causal: bool) -> State:
        """Looking back alone, what is out of reach need not be kept."""
        return Ring(self.config.reach[0]) if causal else Growing()
