"""For test suites: `pytest -p allformer.auditor.pytest_plugin` gives the fixture `sound`.

def test_my_model(sound):
    sound(MyModel(), kind="decoder", vocab=100)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from allformer.auditor import assert_sound


@pytest.fixture
def sound() -> Callable[..., Any]:
    """`allformer.auditor.assert_sound`: fails with the report of every finding."""
    return assert_sound
