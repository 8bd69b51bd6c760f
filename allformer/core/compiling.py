"""What `torch.compile` is told of a function, without loading it.

`torch.compiler`'s own decorators import the whole compiler, which takes as long as torch itself:
whoever says `import allformer` would wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch._compile import _disable_dynamo

Function = TypeVar("Function", bound=Callable[..., Any])


def constant(function: Function) -> Function:
    """A graph takes the answer as it is, as with `torch.compiler.assume_constant_result`:

    @constant
    def has_cudnn() -> bool: ...
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def uncompiled(function: Function) -> Function:
    """A graph ends before the call and begins anew, as with `torch.compiler.disable`:

    @uncompiled
    def find(marks: Tensor) -> Found: ...
    """
    return _disable_dynamo(function)  # type: ignore[return-value]
