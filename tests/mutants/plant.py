"""Plant a bug: change a few characters of one function or table of the library, in this process."""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import _lru_cache_wrapper
from typing import Any

import pytest

from allformer.families import FAMILIES

Change = tuple[str, str]  # what stands there, what the bug has instead


@contextmanager
def plant(target: str, changes: Sequence[Change]) -> Iterator[None]:
    """Inside, `target` ("allformer.core.places:mask_of", "…attention:Attention.forward") is
    replaced by itself with `changes` made in its source. The source of a table
    ("allformer.families.llama:LAYER") is its `repr`. What the library has cached is forgotten
    before and after: a right value would hide the bug, a wrong one would outlive it.

    If the source no longer has the text, the mutant is stale and must be moved along: an error.
    """
    try:
        with pytest.MonkeyPatch.context() as patcher:
            _plant(patcher, target, changes)
            _forget()
            yield
    finally:
        _forget()


def _forget() -> None:
    for loaded in list(sys.modules.values()):
        if getattr(loaded, "__name__", "").startswith("allformer"):
            for value in list(vars(loaded).values()):
                if isinstance(value, _lru_cache_wrapper):
                    value.cache_clear()


def _plant(patcher: pytest.MonkeyPatch, target: str, changes: Sequence[Change]) -> None:
    module, owner, name = _place(target)
    original = vars(owner)[name]
    mutated = planted(target, changes)
    if isinstance(original, dict):  # where it lies: others may hold it too
        for key, value in mutated.items():
            patcher.setitem(original, key, value)
        return
    if owner is not module:
        patcher.setattr(owner, name, mutated)
        return
    # A function is known by name wherever it was imported, in the library and in its tests.
    for loaded in list(sys.modules.values()):
        if loaded is module or getattr(loaded, "__name__", "").startswith(("allformer", "tests")):
            for alias, value in list(vars(loaded).items()):
                if value is original:
                    patcher.setattr(loaded, alias, mutated)
                elif type(value) is dict:  # what is chosen from stands in a table
                    for key in [key for key, held in value.items() if held is original]:
                        patcher.setitem(value, key, mutated)
    for family in FAMILIES.values():  # which hold their functions themselves
        for field, value in list(vars(family).items()):
            if value is original:
                patcher.setitem(vars(family), field, mutated)


def planted(target: str, changes: Sequence[Change]) -> Any:
    """The function (or the table's new rows) with the bug in it, which nobody has yet."""
    module, owner, name = _place(target)
    original = vars(owner)[name]
    if isinstance(original, dict):
        return ast.literal_eval(_changed(repr(original), target, changes))
    return _rebuild(module, owner, original, name, target, changes)


def _place(target: str) -> tuple[Any, Any, str]:
    """The module, the module or class in it that owns the target, and its name there."""
    module_name, _, path = target.partition(":")
    module = importlib.import_module(module_name)
    *owners, name = path.split(".")
    owner: Any = module
    for part in owners:
        owner = getattr(owner, part)
    return module, owner, name


def _changed(source: str, target: str, changes: Sequence[Change]) -> str:
    for old, new in changes:
        found = source.count(old)
        if found != 1:
            raise LookupError(
                f"{target} has {old!r} {found} times, not once: the code has moved on; "
                f"write this mutant anew"
            )
        source = source.replace(old, new)
    return source


def _rebuild(
    module: Any, owner: Any, original: Any, name: str, target: str, changes: Sequence[Change]
) -> Any:
    function = getattr(original, "fget", None) or getattr(original, "__func__", original)
    source = _changed(textwrap.dedent(inspect.getsource(function)), target, changes)
    # An enclosing function with a variable `__class__` is what super() without arguments needs.
    text = f"def make(__class__):\n{textwrap.indent(source, '    ')}\n    return {name}\n"
    flags = __future__.annotations.compiler_flag
    made: dict[str, Any] = {}
    exec(compile(text, f"<mutant of {target}>", "exec", flags), vars(module), made)
    return made["make"](owner)
