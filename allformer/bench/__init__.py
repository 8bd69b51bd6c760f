"""Measured on this machine: `compare` says which mechanism serves a model at a length."""

from __future__ import annotations

from allformer.bench.long import Comparison, compare
from allformer.bench.row import Row

__all__ = ["Comparison", "Row", "compare"]
