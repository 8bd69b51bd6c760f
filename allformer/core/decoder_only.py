"""A stack in which each token sees the ones before it.

Legend: B batch, S source length, T target length, N packed tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from allformer import config
from allformer.core.inputs import Side, check_mask, check_values
from allformer.core.output import Output
from allformer.core.registry import implements
from allformer.core.stack import Stack
from allformer.core.states import Cache, SegmentMemory
from allformer.core.whole import Model
from allformer.errors import ConfigError


def segments_of(cache: Cache) -> Tensor | None:
    """What the layers remember of the segments so far, layers M B dim; None: another kind."""
    states = [layer.own for layer in cache.layers]
    found = [x.hidden for x in states if isinstance(x, SegmentMemory) and x.hidden is not None]
    return torch.stack(found).transpose(1, 2) if len(found) == len(states) else None


@implements(config.DecoderOnly)
class DecoderOnlyModel(Model[config.DecoderOnly]):
    """Each token sees the ones before it; what is read at t is scored against the label at t+1."""

    decoder: Stack

    def __init__(self, model: config.DecoderOnly) -> None:
        super().__init__(model)
        self._add_head(ahead=True)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        cache: Cache | None = None,
        mems: Tensor | Sequence[Tensor] | None = None,
        mem_len: int | None = None,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
        **inputs: Any,
    ) -> Output:
        """input_ids B T → logits B T V; with a cache, `attention_mask` covers cached tokens too.

        A model that remembers earlier segments takes their `mems` (for each layer M B dim, as it
        gives them) and gives those for the next one; `mem_len` is how many tokens, if not as many
        as its config says.
        """
        given = {"input_ids": input_ids, "labels": labels, **inputs}
        if cache is None and self._remembers(mems, mem_len):
            old = None if mems is None else [x.transpose(0, 1) for x in mems]
            cache = self.new_cache(mem_len, old)
            out = self(
                input_ids, attention_mask, labels, cache=cache, dtype=dtype, kernel=kernel, **inputs
            )
            return Output(out, mems=segments_of(cache))
        if cache is None:
            given["attention_mask"] = attention_mask
            return self.call(given, dtype=dtype, kernel=kernel)
        found, targets = self.sort(given)
        rows, width = self.decoder.source.check(found["decoder"])
        cache.hold(rows)
        past = cache.length if isinstance(cache.length, int) else None
        if attention_mask is not None and past is not None:
            if attention_mask.shape[1] != past + width:
                raise ConfigError(
                    f"attention_mask covers {attention_mask.shape[1]} tokens, but there are {past} "
                    f"in the cache and {width} new ones; give a mask over all of them"
                )
            check_mask(attention_mask, rows, past + width)
            check_values(attention_mask)
        keep = None if attention_mask is None else attention_mask.bool()
        sides = {"decoder": Side(cache.grid(rows, width, keep), found["decoder"], input_ids)}
        hidden = self.hidden(sides, dtype=dtype, kernel=kernel, cache=cache)
        return self.finish(hidden, sides, targets)

    def _remembers(self, mems: Any, mem_len: int | None) -> bool:
        """Whether this call has a memory of earlier segments."""
        relative = self.config.decoder.relative
        usual = 0 if relative is None else relative.memory
        return mems is not None or bool(usual if mem_len is None else mem_len)

    def new_cache(
        self, memory: int | None = None, mems: Tensor | Sequence[Tensor] | None = None
    ) -> Cache:
        """Empty states for `step` and for calls with `cache=`.

        Of a model that remembers earlier segments: `memory` tokens, if not as many as its config
        says, at first `mems`, B M dim for each layer.
        """
        return self.decoder.new_cache(memory, mems)

    def step(
        self,
        ids: Tensor,
        cache: Cache,
        attention_mask: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
        every: bool = False,
    ) -> Tensor:
        """Read the new tokens only, ids B T → logits of the last one B V; `every`: of each, B T V.

        `attention_mask` covers cached and new tokens together.
        """
        keep = None if attention_mask is None else attention_mask.bool()
        inputs = {"input_ids": ids}
        if position_ids is not None:
            inputs["position_ids"] = position_ids
        grid = cache.grid(ids.shape[0], ids.shape[1], keep)
        sides = {"decoder": Side(grid, inputs, ids, grid.total)}
        hidden = self.hidden(sides, dtype=dtype, kernel=kernel, cache=cache)["decoder"]
        where = grid.columns(ids.device) if self.vocab_head.placed else None
        if every:
            return self.logits(hidden, where)
        return self.logits(hidden[:, -1], None if where is None else where[-1:])
