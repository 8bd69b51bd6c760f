"""A stack in which every token sees every token.

Legend: B batch, S source length, T target length, N packed tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from allformer import config
from allformer.core.heads.classes import Pool
from allformer.core.inputs import Side, check_mask
from allformer.core.output import Output
from allformer.core.registry import implements
from allformer.core.replay import Replay, ReplayPixels, ReplayText
from allformer.core.stack import Stack
from allformer.core.taps import listening
from allformer.core.whole import Model


@implements(config.EncoderOnly)
class EncoderOnlyModel(Model[config.EncoderOnly]):
    """Every token sees every token."""

    encoder: Stack

    def __init__(self, model: config.EncoderOnly) -> None:
        super().__init__(model)
        self.pool = None if model.pool is None else Pool(model.pool, model.encoder.states)
        self._add_head()
        self._replay: Replay | None = None

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
        states: bool = True,
        **inputs: Any,
    ) -> Output:
        """input_ids B T → last_hidden_state B T dim and what the head gives.

        `labels`: B T for tokens, B for the sequence. `states=False`: what the head gives alone;
        where it reads the first token (ViT), the last layer computes no other.
        """
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        given = {**given, "token_type_ids": token_type_ids, **inputs}
        if self._replay is not None and dtype is None and kernel == "fast" and not listening():
            there = {name: x for name, x in given.items() if x is not None}
            if self._replay.fits(there):
                rows, width = self.encoder.check(there, self.config.head)
                if attention_mask is not None:
                    check_mask(attention_mask, rows, width)
                return Output(self._replay(there, width, states))
        return self.call(given, dtype=dtype, kernel=kernel, states=states)

    def pooled(self, grid: Tensor) -> Tensor | None:
        return None if self.pool is None else self.pool(grid)

    @property
    def reads_first(self) -> bool:
        return super().reads_first or self.pool is not None

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """`model.compile()`: as torch has it, in place. Inference on a GPU becomes CUDA graphs, of
        texts without their padding; see `core.replay`."""
        source = self.encoder.source
        told = self.encoder.takes != source.takes  # plans depend on what is given
        told |= self.head is not None and self.head.chooses  # its rows may be given in two ways
        plain = self.device.type == "cuda" and not (args or kwargs or told)
        if plain and source.per_token:
            self._replay = ReplayText(self.infer, self.reads_first)
        elif plain and source.takes[0] == "pixel_values":
            self._replay = ReplayPixels(self.infer, next(self.parameters()))
        else:
            super().compile(*args, **kwargs)

    def infer(self, side: Side, states: bool = True) -> Output:
        """What the model gives for one side, without targets."""
        return self._answer({"encoder": side}, {}, states)
