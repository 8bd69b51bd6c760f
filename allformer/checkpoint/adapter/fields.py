"""A file's adapter_config.json, field by field: each is read, checked, or known to change nothing.

A field that nobody asked for and that says something is refused by name: it might change the
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allformer.errors import CheckpointError
from allformer.families.kinds import FLAG, OBJECT, TEXT, TEXTS, Kind, check_kind, short

NOTHING: tuple[Any, ...] = (None, False, {}, [], "")
# What every kind of adapter has and what changes no number, or is read elsewhere.
COMMON = {
    "auto_mapping": OBJECT, "base_model_name_or_path": TEXT, "inference_mode": FLAG,
    "peft_type": TEXT, "peft_version": TEXT, "revision": TEXT, "task_type": TEXT,
    "modules_to_save": TEXTS, "quantised": TEXT,
}  # fmt: skip


class Fields:
    """`fields.take("r", 8, SIZE)`; afterwards `fields.close()` refuses what nobody took."""

    def __init__(self, raw: Mapping[str, Any], file: Path) -> None:
        self.raw, self.file = raw, file
        self.taken: set[str] = set(COMMON)
        for name, kind in COMMON.items():
            check_kind(name, raw.get(name), kind, str(file))

    def take(self, name: str, default: Any, kind: Kind) -> Any:
        """The field's value; null counts as absent."""
        self.taken.add(name)
        value = self.raw.get(name)
        check_kind(name, value, kind, str(self.file))
        return default if value is None else value

    def inert(self, *names: str) -> None:
        """Fields that change nothing, whatever they say."""
        self.taken.update(names)

    def among(self, name: str, allowed: tuple[Any, ...], why: str) -> None:
        """Refuse any value but these, or none."""
        self.taken.add(name)
        value = self.raw.get(name)
        if value is not None and value not in allowed:
            raise CheckpointError(
                f"{self.file} has {name}={short(value)}, which is not supported: {why}"
            )

    def close(self) -> None:
        """Refuse what nobody took and what says something."""
        for name, value in self.raw.items():
            if name not in self.taken and not any(value is x or value == x for x in NOTHING):
                raise CheckpointError(
                    f"{self.file} has {name}={short(value)}, which is not supported and might "
                    f"change the numbers; merge the adapter with PEFT (merge_and_unload) and load "
                    f"what it writes"
                )
