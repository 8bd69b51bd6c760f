"""A step that is taken again and again: by hand at first, then as a graph.

The first steps are the warm-up (libraries make their handles, kernels are compiled) and real steps
at once, so that nothing is computed for nothing; then one is captured, which computes nothing
either, and replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor

from allformer.core.fused import capturing
from allformer.core.graph import Captured

WARM = 2  # steps by hand before one is captured
CAPTURES: dict[str, Callable[..., Any]] = {"cuda": Captured}  # by the type of the device


def loosely(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method as a call that does not keep its owner: `Graph(loosely(self._read), …)`.

    Who owns graphs of his own methods would live until Python looks for circles, which goes by the
    number of objects; his gigabytes on the device are wanted at once.
    """
    weak = WeakMethod(method)

    def call(*args: Any) -> Any:
        owner = weak()
        assert owner is not None, "its owner runs a graph"
        return owner(*args)

    return call


class Graph:
    """`Graph(call, device)()`: what `call()` gives. `call` reads and writes tensors that stay where
    they are, and no number of the host that changes; its result stands until the next call.
    `pool()` is whose memory it takes for what lies in between."""

    def __init__(
        self, call: Callable[[], Tensor], device: torch.device, pool: Callable[[], Any]
    ) -> None:
        self.call, self.pool, self.device = call, pool, device
        self._capture = CAPTURES.get(device.type)
        self._warm = 0
        self.captured: Any = None
        self.refused: str | None = None  # why it cannot be captured

    def __call__(self) -> Tensor:
        # What is captured, and where it is replayed, is a stream of the current device.
        here = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        result: Tensor
        with here:
            if self.captured is None and not self._record():
                with capturing():  # the kernels that the graph has
                    return self.call()
            result = self.captured.replay()
        return result

    def _record(self) -> bool:
        """Capture, where it is time: nothing is computed by that."""
        self._warm += 1
        if self._capture is None or self.refused is not None or self._warm <= WARM:
            return False
        try:
            with capturing():
                self.captured = self._capture(self.call, self.pool())
        except RuntimeError as error:  # something in it waits for the device
            self.refused = str(error).splitlines()[0]
        return self.captured is not None
