"""Several optimisers of one model as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Together(torch.optim.Optimizer):
    """Groups and state are those of all, so that `state_dict` has torch's own form.

    >>> Together([Orthogonal(matrices, lr=rate), torch.optim.AdamW(rest, lr=rate)]).step()

    `grad_scale` and `found_inf`, where they are set, are handed to each before its step.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = list(parts)
        groups = [group for part in parts for group in part.param_groups]
        self.sizes = [len(part.param_groups) for part in parts]
        super().__init__(groups, {})
        for part in parts:
            self.state.update(part.state)
        self._share()

    def _share(self) -> None:
        """Let each part work on its groups of ours, and on our state."""
        start = 0
        for part, size in zip(self.parts, self.sizes, strict=True):
            part.param_groups = self.param_groups[start : start + size]
            part.state = self.state
            start += size

    def __setstate__(self, state: dict[str, Any]) -> None:  # what load_state_dict ends with
        super().__setstate__(state)
        self._share()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Each part's step; `closure`, if given, is called once, before."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            for name in ("grad_scale", "found_inf"):
                setattr(part, name, getattr(self, name, None))
            part.step()
        return loss
