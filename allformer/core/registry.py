"""Which module does what a config class says: `@implements(config.Window)` above its class.

A class of one's own, defined anywhere, registers in the same way and is built like ours.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

from allformer.config import Config
from allformer.errors import ConfigError

M = TypeVar("M", bound=type)
_MODULES: dict[type[Config], type] = {}


def implements(slot: type[Config]) -> Callable[[M], M]:
    """Register the decorated module for configs of the class `slot`."""

    def register(module: M) -> M:
        _MODULES[slot] = module
        return module

    return register


def module_for(slot: Config) -> Any:
    """The module's class for a config: `module_for(Window(128))`."""
    for kind in type(slot).__mro__:
        if kind in _MODULES:
            return _MODULES[kind]
    name = type(slot).__name__
    raise ConfigError(
        f"{name} has no module; write one and put @implements({name}) above its class "
        f"(docs/design.md has an example)"
    )


def import_all(package: str, path: list[str]) -> None:
    """Import every module of a package, so that a new file there registers itself."""
    for found in iter_modules(path):
        import_module(f"{package}.{found.name}")
