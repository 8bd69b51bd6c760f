"""Taps: every intermediate value has a name, and costs nothing when nobody listens.

    with listen(lambda name, x: print(name, tuple(x.shape))):
        model(input_ids=ids)

Each step of the model calls `tap(self, "scores", x)` and goes on with what comes back, so a
listener can look (return None) or patch (return another tensor). The listener is a module global:
`torch.compile` sees None, guards on it, and removes the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor

Listener = Callable[[str, Tensor], Tensor | None]
_listener: Listener | None = None
_exact = True
_renamed: tuple[str, str] | None = None


class Named(Protocol):
    """A part of a model that knows where it stands, e.g. `encoder.3.attention`."""

    path: str


def listening() -> bool:
    """True inside `listen`."""
    return _listener is not None


def listening_exactly() -> bool:
    """Whether what no kernel makes (scores, weights) is worth computing for a listener."""
    return _listener is not None and _exact


def tap(owner: Named, step: str, x: Tensor) -> Tensor:
    """Offer `x` under the name `owner.path.step`; returns `x`, or what the listener puts there."""
    if _listener is None:
        return x
    name = f"{owner.path}.{step}" if owner.path else step
    if _renamed is not None:
        name = name.replace(*_renamed, 1)
    patched = _listener(name, x)
    return x if patched is None else patched


@contextmanager
def speaking_as(module: Named, path: str) -> Iterator[None]:
    """Inside the block, `module` speaks under another path: shared layers run at several depths."""
    global _renamed
    before, _renamed = _renamed, (f"{module.path}.", f"{path}.")
    try:
        yield
    finally:
        _renamed = before


@contextmanager
def listen(listener: Listener, exact: bool = True) -> Iterator[None]:
    """Let `listener(name, tensor)` hear every tap of every model run inside the block.

    Not `exact`: only what the run makes anyway, which leaves out each pair's scores and weights.
    """
    global _listener, _exact
    before, _listener, _exact = (_listener, _exact), listener, exact
    try:
        yield
    finally:
        _listener, _exact = before
