"""Triton's interpreter with NumPy 2.4 and later, which makes no number of an array of one.

Kernels are run by it where there is no GPU: TRITON_INTERPRET=1 python -m pytest tests/property
"""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patched(tensor: Any, scope: Any) -> None:
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


interpreter._patch_lang_tensor = _patched
