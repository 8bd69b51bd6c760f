"""One vector for a whole text or image.

Legend: B batch, T length, dim model width, W width of the vector.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from allformer import config
from allformer.core.heads.head import Head, Hidden
from allformer.core.heads.probe import Probe
from allformer.core.linear import Linear
from allformer.core.norm import make_norm
from allformer.core.pooling import at
from allformer.core.registry import implements
from allformer.core.taps import tap
from allformer.errors import ConfigError


@implements(config.VectorHead)
class VectorHead(Head):
    """The state that `at` names, normed, and what a matrix makes of it: B dim, B W."""

    targets = ()

    def __init__(
        self, head: config.VectorHead, stack: config.Stack, path: str, **given: Any
    ) -> None:
        super().__init__(head, stack, path)
        self.reads_first, self.reads_padding = head.at == "first", head.at == "last"
        self.front = 1 if self.reads_first else None
        self.probe = None
        if isinstance(head.at, config.Probe):
            self.probe = Probe(head.at, stack.states, f"{path}.probe")
        self.norm = None if head.norm is None else make_norm(head.norm, stack.states)
        self.out = None if head.width is None else Linear(stack.states, head.width, head.bias)
        self.gives = ("pooler_output",) if self.out is None else ("pooler_output", head.output)

    def outputs(self, hidden: Hidden) -> dict[str, Tensor]:
        x = self._read(hidden)
        found = {"pooler_output": tap(self, "pooled", x if self.norm is None else self.norm(x))}
        if self.out is not None:
            found[self.config.output] = tap(self, "vector", self.out(found["pooler_output"]))
        return found

    def _read(self, hidden: Hidden) -> Tensor:
        """The state that speaks for the whole, B dim."""
        if self.probe is not None:
            state: Tensor = self.probe(hidden.grid, hidden.keep)
            return state
        if self.config.at in ("first", "last"):
            return hidden.grid[:, 0 if self.reads_first else -1]
        return at(hidden.grid, self._end(hidden))

    def _end(self, hidden: Hidden) -> Tensor:
        """The place of the text's end, B: the first one, for many fill rows up with end tokens.

        Looked for among tokens that are not padding; with padding on the left, transformers reads
        a column of it. A row without an end is refused on a CPU: a GPU would have to be waited for.
        """
        ids, keep, tokens = hidden.ids, hidden.keep, self.stack.source
        if ids is None:
            raise ConfigError(
                f"VectorHead.at={self.config.at!r} looks for the text's end among input_ids, and "
                f"there are none; give input_ids, not vectors"
            )
        if self.config.at == "largest":
            return (ids if keep is None else ids.masked_fill(~keep, -1)).int().argmax(-1)
        ends = ids.eq(tokens.eos_id or 0)  # the config refuses None
        ends = ends if keep is None else ends & keep
        asks = ids.device.type == "cpu" and not torch.compiler.is_compiling()
        if asks and not bool(ends.any(-1).all()):
            raise ConfigError(
                f"input_ids has a row without the token {tokens.eos_id} (Tokens.eos_id), whose "
                f"state speaks for the text; end every text with it"
            )
        return ends.int().argmax(-1)
