"""A graph on a CPU: operations are written down once, and done again on the same tensors.

What a CUDA graph would not see, this does not see either: numbers of the host, and what Python does
between the operations. So a step that is right when it is replayed here depends on neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from allformer.generate import graph, static, static_state, stepper

WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select")


class Recorded:
    """In the place of `core.graph.Captured`: `Recorded(call)`, then `replay()`.

    While it is recorded nothing may come of it: what is written in place is put back.
    """

    made: int = 0  # how many there were

    def __init__(self, call: Callable[[], Any], pool: Any = None) -> None:
        Recorded.made += 1
        self.graph, self.replays = self, 0
        self.steps: list[tuple[Any, Any, Any, Any]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        with _Recorder(self):
            self.result = call()
        for tensor, old in self._before.values():
            tensor.copy_(old)

    def pool(self) -> None:
        return None

    def replay(self) -> Any:
        self.replays += 1
        for func, args, kwargs, out in self.steps:
            again = func(*args, **kwargs)
            for old, new in zip(tree_flatten(out)[0], tree_flatten(again)[0], strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
        return self.result

    def note(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal"), (
            f"{func} waits"
        )
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                tensor = args[i] if i < len(args) else kwargs[argument.name]
                self._before.setdefault(tensor.data_ptr(), (tensor, tensor.clone()))
        out = func(*args, **kwargs)
        self.steps.append((func, args, kwargs, out))
        return out


class _Recorder(TorchDispatchMode):
    def __init__(self, onto: Recorded) -> None:
        super().__init__()
        self.onto = onto

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.onto.note(func, args, kwargs or {})


@contextmanager
def by_graphs(worth: int = static_state.WORTH) -> Iterator[None]:
    """Inside, the CPU counts as a device with graphs, for more than `worth` tokens to come."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stepper, "FASTER", [static.static_stepper])  # not the CPU's own way
        patch.setattr(static, "DEVICES", ("cuda", "cpu"))
        patch.setattr(static_state, "WORTH", worth)
        patch.setitem(graph.CAPTURES, "cpu", Recorded)
        yield
