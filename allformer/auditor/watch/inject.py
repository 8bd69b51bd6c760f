# mypy: disable-error-code="no-untyped-call"
"""Change the outputs of matmuls, by their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from allformer.auditor.watch.operators import MATMULS, Operator

Changes = dict[int, Callable[[Tensor, Any], Tensor]]


class Inject(TorchDispatchMode):
    """Count the matmuls of a pass, and change the outputs of some: `with Inject({3: change}):`."""

    def __init__(self, inject: Changes) -> None:
        super().__init__()
        self.inject, self.count = inject, 0

    def __enter__(self) -> Any:
        self._kernel = sdpa_kernel(SDPBackend.MATH)
        self._kernel.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._kernel.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {}).out

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Operator:
        """Run one operator."""
        op = Operator(func, args, kwargs, self.count, func(*args, **kwargs))
        if op.name in MATMULS:
            self.count += 1
            if op.number in self.inject:
                op.out = self.inject[op.number](op.out, args)
        return op
