"""The original Transformer's shape: an encoder reads, a decoder writes.

Legend: B batch, S source length, T target length, N packed tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer import config
from allformer.core.inputs import Side
from allformer.core.layout import Grid
from allformer.core.loss import IGNORE
from allformer.core.output import Output
from allformer.core.registry import implements
from allformer.core.stack import Stack
from allformer.core.states import Cache
from allformer.core.whole import Model
from allformer.errors import ConfigError


@implements(config.EncoderDecoder)
class EncoderDecoderModel(Model[config.EncoderDecoder]):
    """The original Transformer's shape."""

    encoder: Stack
    decoder: Stack

    def __init__(self, model: config.EncoderDecoder) -> None:
        super().__init__(model)
        self._add_head()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
        **inputs: Any,
    ) -> Output:
        """input_ids B S, decoder_input_ids B T (or labels, which are shifted) → logits B T V."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        own = {
            "decoder_input_ids": decoder_input_ids,
            "decoder_attention_mask": decoder_attention_mask,
        }
        return self.call({**given, **own, **inputs}, dtype=dtype, kernel=kernel)

    def _complete(self, found: dict[str, dict[str, Tensor]], targets: Mapping[str, Tensor]) -> None:
        """What the decoder reads, where it is not given: the labels, one place later. With a head
        that does not write it reads the input again (BART)."""
        inputs = found["decoder"]
        if "input_ids" in inputs or "inputs_embeds" in inputs:
            return
        if self.head is not None and not self.head.writes:
            again = found["encoder"].get("input_ids")
        else:
            again = targets.get("labels")
        if again is None:
            raise ConfigError(
                "decoder_input_ids=None and labels=None: the decoder has nothing to read; "
                "give one of them, or use model.generate"
            )
        inputs["input_ids"] = self.shift_right(again)

    def encode(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
        **inputs: Any,
    ) -> Tensor:
        """input_ids B S, or what else the encoder takes → memory B S dim (zeros at padding)."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask, **inputs}
        found, _ = self.sort(given)
        sides = self._lay_out({"encoder": found["encoder"]})
        side = self.encoder.laid(sides["encoder"])  # learned tokens are looked at too
        hidden = self.hidden({"encoder": side}, dtype=dtype, kernel=kernel)["encoder"]
        return side.layout.to_grid(hidden)

    def new_cache(self) -> Cache:
        """Empty states for `step`."""
        return self.decoder.new_cache()

    def step(
        self,
        ids: Tensor,
        cache: Cache,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
        every: bool = False,
    ) -> Tensor:
        """Decode the new tokens only, ids B T → logits of the last one B V; `every`: of each,
        B T V.

        The first call computes the memory's keys and values into the cache; later calls need
        `memory_mask` alone.
        """
        side = Side(cache.grid(ids.shape[0], ids.shape[1], None), {"input_ids": ids}, ids)
        keep = None if memory_mask is None else memory_mask.bool()
        if keep is not None and self.encoder.source.delta is not None:
            keep = F.pad(keep, (self.encoder.source.delta.count, 0), value=True)
        across = Grid(ids.shape[0], 0 if keep is None else keep.shape[1], keep)
        x = self.decoder.source(side, dtype)
        hidden = self.decoder(
            x, side.layout, memory=memory, across=across, cache=cache, kernel=kernel
        )
        return self.logits(hidden if every else hidden[:, -1])

    def shift_right(self, labels: Tensor) -> Tensor:
        """What the decoder reads while it predicts `labels`: the start token, then labels[:-1]."""
        start, pad = self.config.start, self.config.decoder.tokens.pad_id
        if pad is None or (start is None and not self.config.start_last):
            raise ConfigError(
                "Tokens.bos_id and Tokens.pad_id are needed to shift labels; "
                "set them in the decoder's Tokens, or give decoder_input_ids"
            )
        labels = labels.masked_fill(labels == IGNORE, pad)
        shifted = labels.roll(1, dims=-1)
        if self.config.start_last:  # mBART: the language code that ends the labels comes first
            last = (labels != pad).sum(-1, keepdim=True) - 1
            shifted[..., :1] = labels.gather(-1, last)
        elif start is not None:
            shifted[..., 0] = start
        return shifted
