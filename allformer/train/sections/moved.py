"""Keys of older recipes, and where they stand now: old runs and files are still read."""

from __future__ import annotations

from typing import Any

MOVED = {
    "train.rate": "optim.rate", "train.clip": "optim.clip",
    "train.weight_decay": "optim.weight_decay", "train.warmup": "schedule.warmup",
    "train.schedule": "schedule.kind", "train.log_every": "log.every",
}  # fmt: skip


def moved(data: dict[str, Any]) -> dict[str, Any]:
    """The same recipe in today's keys; a new key that stands beside its old one wins."""
    found = {key: dict(x) if isinstance(x, dict) else x for key, x in data.items()}
    for old, new in MOVED.items():
        section, name = old.split(".")
        if isinstance(found.get(section), dict) and name in found[section]:
            value = found[section].pop(name)
            to, key = new.split(".")
            if isinstance(found.setdefault(to, {}), dict):
                found[to].setdefault(key, value)
    return found
