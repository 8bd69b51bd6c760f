"""A model that is asked, not trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def judging(model: Any) -> Iterator[None]:
    """Without dropout and without gradients, and as it was afterwards."""
    was = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was)
