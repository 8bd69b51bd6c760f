"""A place in a model where adapters sit, and which of them act.

    slot = tuning.slot(model, "encoder.layers.0.attention.qkv", "delta", Deltas)
    slot.add("tales", "lora", module)

A slot is hung into the model while something in it acts and taken off otherwise, so that a model
whose adapters are off runs as if there were none, fast paths included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from allformer.core.linear import Around
from allformer.errors import ConfigError

Names = tuple[str, ...]  # adapters that act together, one after the other


@dataclass(frozen=True)
class Selection:
    """Which adapters act: the same `names` for all rows of a batch, or for each row its own."""

    names: Names = ()
    rows: tuple[Names, ...] | None = None
    _found: dict[tuple[int, torch.device], list[tuple[Names, Tensor]]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def every(self) -> Names:
        """All that act in some row, each once."""
        return tuple(dict.fromkeys(self.names + tuple(n for row in self.rows or () for n in row)))

    def groups(self, count: int, device: torch.device) -> list[tuple[Names, Tensor]]:
        """Rows of a batch of `count` by what acts in them: [(names, their numbers), …].

        A batch may have several rows for each one named, side by side (beams, samples). Worked
        out once for a count and a device.
        """
        rows = self.rows
        assert rows is not None, "asked for rows that are all alike"
        if count % len(rows):
            raise ConfigError(
                f"switch names adapters for {len(rows)} rows, but the batch has {count}; name as "
                f"many as there are rows"
            )
        key = (count, device)
        if key not in self._found:
            by: dict[Names, list[int]] = {}
            for i in range(count):
                by.setdefault(rows[i // (count // len(rows))], []).append(i)
            with torch.inference_mode(False):  # a later call may learn with them
                self._found[key] = [(n, torch.tensor(i, device=device)) for n, i in by.items()]
        return self._found[key]

    def __deepcopy__(self, memo: dict[int, object]) -> Selection:
        return Selection(self.names, self.rows)


class Slot(Around):
    """The modules of one place, by adapter and by method: `slot.each["tales"]["lora"]`."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.ModuleDict()
        self.selection = Selection()

    def add(self, adapter: str, kind: str, module: nn.Module) -> None:
        """Put a module here, for an adapter, by the name of its method."""
        if adapter not in self.each:
            self.each[adapter] = nn.ModuleDict()
        cast(nn.ModuleDict, self.each[adapter])[kind] = module.train(self.training)

    def of(self, names: Names) -> Iterator[nn.Module]:
        """What some adapters have here, in order: `for change in slot.of(("tales",))`."""
        for name in names:
            if name in self.each:
                yield from cast(nn.ModuleDict, self.each[name]).values()

    @property
    def draws(self) -> bool:  # type: ignore[override]
        """Whether something that is chosen drops out: such a module says `draws = True`."""
        return any(getattr(module, "draws", False) for module in self.of(self.selection.every))

    @property
    def acts(self) -> bool:
        """Whether an adapter that is chosen has something here."""
        return any(name in self.each for name in self.selection.every)
