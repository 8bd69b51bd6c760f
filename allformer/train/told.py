"""The figures of a validation in one line."""

from __future__ import annotations

from typing import Any


def told_figures(row: dict[str, Any]) -> str:
    """The figures of a validation, the first few: `validation perplexity 3.2, right 0.81`."""
    found = {k.removeprefix("validation_"): x for k, x in row.items() if k.startswith("validation")}
    nll = found.pop("nll")
    first = f"perplexity {_short(found.pop('perplexity'))}" if "perplexity" in found else ""
    parts = [first or f"nll {nll:.3f}", *(f"{k} {x:.4g}" for k, x in list(found.items())[:4])]
    return "validation " + ", ".join(parts)


def _short(perplexity: float) -> str:
    """Three places, or the power of ten where nobody would count the digits."""
    return f"{perplexity:.3f}" if perplexity < 1e6 else f"{perplexity:.2e}"
