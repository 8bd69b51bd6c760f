"""Every module below one, quickly: what is asked at each call of `generate` must cost little.

    for path, module in walk(model): ...

torch's `named_modules` hands each module up through all levels above it, and its `parameters` does
so again: of a model of 32 layers that takes longer than reading a short prompt.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn


def walk(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The module itself under "", and each below it, once."""
    seen: set[nn.Module] = set()
    left = [("", module)]
    while left:
        path, here = left.pop()
        if here in seen:
            continue
        seen.add(here)
        yield path, here
        front = f"{path}." if path else ""
        left += [(front + name, x) for name, x in here._modules.items() if x is not None]


def tensors(module: nn.Module) -> Iterator[Tensor]:
    """The module's own parameters and buffers."""
    for held in (module._parameters, module._buffers):
        for x in held.values():
            if x is not None:
                yield x
