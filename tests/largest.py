"""How large the tensors are that a call makes; on the meta device nothing is computed."""

from __future__ import annotations

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """`with Largest() as largest: …; largest.numbers`: of the largest tensor made inside."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor):
                self.numbers = max(self.numbers, x.numel())
        return out
