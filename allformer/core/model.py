"""Whole models: EncoderDecoder, EncoderOnly, DecoderOnly, with Hugging Face's names for inputs.

    model = build(preset("original-base"))
    out = model(input_ids=src, attention_mask=mask, labels=tgt)      # mask: 1 = keep
    out.logits, out.loss

Legend: B batch, S source length, T target length, N packed tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.cache import Cache
from allformer.core.head import VocabHead
from allformer.core.init import initialise
from allformer.core.layout import Grid, Layout, Packed, cross_look, pack
from allformer.core.loss import IGNORE, cross_entropy
from allformer.core.stack import TokenStack
from allformer.core.taps import listening, tap
from allformer.errors import ConfigError


@dataclass
class Output:
    """What a model call gives back; what does not apply is None."""

    last_hidden_state: Tensor | None = None  # B T dim
    logits: Tensor | None = None  # B T V
    loss: Tensor | None = None
    encoder_last_hidden_state: Tensor | None = None  # B S dim


C = TypeVar("C", config.EncoderDecoder, config.EncoderOnly, config.DecoderOnly)


class Model(nn.Module, Generic[C]):
    """What the three shapes have in common."""

    path = ""

    def __init__(self, model: C) -> None:
        super().__init__()
        self.config: C = model
        self.head: VocabHead | None = None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states → scores over the vocabulary."""
        if self.head is None:
            raise ConfigError(
                f"{type(self.config).__name__}.head=None gives no logits; build it with LMHead()"
            )
        return tap(self.head, "logits", self.head(hidden))

    def _finish(self, hidden: Tensor, layout: Layout, labels: Tensor | None) -> Output:
        """Head, loss, and back to the caller's grid."""
        logits = None if self.head is None else self.logits(hidden)
        if isinstance(layout, Packed):
            hidden = layout.to_grid(hidden)
            logits = None if logits is None else layout.to_grid(logits)
        loss = None
        if labels is not None:
            if logits is None:
                self.logits(hidden)  # raises, and says how to get a head
            assert logits is not None
            loss = cross_entropy(logits, labels)
        return Output(hidden, logits, loss)


def _lay_out(ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Layout]:
    """Leave the padding out where that is possible: the numbers are the same, the work is less.

    A trace shows the grid that the caller gave; a compiled graph cannot have a size that depends
    on the mask's values.
    """
    rows, width = ids.shape
    if mask is None or listening() or torch.compiler.is_compiling():
        return ids, Grid(rows, width, None if mask is None else mask.bool())
    keep = mask.bool()
    if bool(keep.all()):
        return ids, Grid(rows, width)
    packed = pack(keep)
    return packed.to_packed(ids), packed


class EncoderDecoderModel(Model[config.EncoderDecoder]):
    """The original Transformer's shape."""

    def __init__(self, model: config.EncoderDecoder) -> None:
        super().__init__(model)
        self.encoder = TokenStack(model.encoder, "encoder")
        shared = self.encoder.embedding if model.shared else None
        self.decoder = TokenStack(model.decoder, "decoder", shared)
        if model.head is not None:
            self.head = VocabHead(model.head, self.decoder.embedding)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
    ) -> Output:
        """input_ids B S, decoder_input_ids B T (or labels, which are shifted) → logits B T V."""
        if decoder_input_ids is None:
            if labels is None:
                raise ConfigError(
                    "decoder_input_ids=None and labels=None: the decoder has nothing to read; "
                    "give one of them, or use allformer.generate"
                )
            decoder_input_ids = self.shift_right(labels)
        memory = self.encode(input_ids, attention_mask, dtype=dtype, kernel=kernel)
        hidden, layout = self._decode_grid(
            decoder_input_ids, decoder_attention_mask, memory, attention_mask, dtype, kernel
        )
        out = self._finish(hidden, layout, labels)
        out.encoder_last_hidden_state = memory
        return out

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
    ) -> Tensor:
        """input_ids B S → memory B S dim (zeros at padding)."""
        ids, layout = _lay_out(input_ids, attention_mask)
        memory: Tensor = self.encoder(ids, layout, dtype=dtype, kernel=kernel)
        return layout.to_grid(memory) if isinstance(layout, Packed) else memory

    def _decode_grid(
        self,
        ids: Tensor,
        mask: Tensor | None,
        memory: Tensor,
        memory_mask: Tensor | None,
        dtype: torch.dtype | None,
        kernel: str,
    ) -> tuple[Tensor, Layout]:
        source = Grid(
            memory.shape[0], memory.shape[1], None if memory_mask is None else memory_mask.bool()
        )
        ids, layout = _lay_out(ids, mask)
        across: Layout = source
        if isinstance(layout, Packed):
            keep = source.keep if source.keep is not None else memory.new_ones(memory.shape[:2])
            across = pack(keep)
            memory = across.to_packed(memory)
        look = cross_look(layout, across, kernel)
        hidden = self.decoder(
            ids, layout, memory=memory, memory_look=look, dtype=dtype, kernel=kernel
        )
        return hidden, layout

    def step(
        self,
        ids: Tensor,
        cache: Cache,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
    ) -> Tensor:
        """Decode the new tokens only, ids B T → logits of the last one B V.

        The first call computes the memory's keys and values into the cache; later calls need
        `memory_mask` alone.
        """
        layout = Grid(ids.shape[0], ids.shape[1], past=cache.length)
        sources = 0 if memory_mask is None else memory_mask.shape[1]
        keep = None if memory_mask is None else memory_mask.bool()
        look = cross_look(layout, Grid(ids.shape[0], sources, keep), kernel)
        hidden = self.decoder(
            ids, layout, memory=memory, memory_look=look, cache=cache, dtype=dtype, kernel=kernel
        )
        return self.logits(hidden[:, -1])

    def loss(
        self,
        source: tuple[Tensor, Layout],
        target: tuple[Tensor, Layout],
        labels: Tensor,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Summed loss and NLL from ids and layouts: what training calls, packed or not."""
        source_ids, source_layout = source
        target_ids, target_layout = target
        memory = self.encoder(source_ids, source_layout, dtype=dtype)
        look = cross_look(target_layout, source_layout)
        hidden = self.decoder(
            target_ids, target_layout, memory=memory, memory_look=look, dtype=dtype
        )
        if self.head is None:
            self.logits(hidden)  # raises, and says how to get a head
        assert self.head is not None
        return self.head.loss(hidden.flatten(0, -2), labels.flatten(), smoothing)

    def shift_right(self, labels: Tensor) -> Tensor:
        """What the decoder reads while it predicts `labels`: the start token, then labels[:-1]."""
        tokens = self.config.decoder.source
        if tokens.bos_id is None or tokens.pad_id is None:
            raise ConfigError(
                "Tokens.bos_id and Tokens.pad_id are needed to shift labels; "
                "set them in the decoder's Tokens, or give decoder_input_ids"
            )
        shifted = labels.roll(1, dims=-1)
        shifted[..., 0] = tokens.bos_id
        return shifted.masked_fill(shifted == IGNORE, tokens.pad_id)


class EncoderOnlyModel(Model[config.EncoderOnly]):
    """Every token sees every token."""

    def __init__(self, model: config.EncoderOnly) -> None:
        super().__init__(model)
        self.encoder = TokenStack(model.encoder, "encoder")
        if model.head is not None:
            self.head = VocabHead(model.head, self.encoder.embedding)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
    ) -> Output:
        """input_ids B T → last_hidden_state B T dim, logits B T V; labels are not shifted."""
        ids, layout = _lay_out(input_ids, attention_mask)
        where = _lay_out_positions(position_ids, layout)
        hidden = self.encoder(ids, layout, dtype=dtype, kernel=kernel, position_ids=where)
        return self._finish(hidden, layout, labels)


class DecoderOnlyModel(Model[config.DecoderOnly]):
    """Each token sees the ones before it."""

    def __init__(self, model: config.DecoderOnly) -> None:
        super().__init__(model)
        self.decoder = TokenStack(model.decoder, "decoder")
        if model.head is not None:
            self.head = VocabHead(model.head, self.decoder.embedding)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
    ) -> Output:
        """input_ids B T → logits B T V; `labels` are unshifted: position t predicts label t+1.

        With a cache, `attention_mask` covers cached and new tokens together.
        """
        if cache is None:
            ids, layout = _lay_out(input_ids, attention_mask)
        else:
            rows, width = input_ids.shape
            keep = None if attention_mask is None else attention_mask.bool()
            if keep is not None and keep.shape[1] != cache.length + width:
                raise ConfigError(
                    f"attention_mask covers {keep.shape[1]} tokens, but there are {cache.length} "
                    f"in the cache and {width} new ones; give a mask over all of them"
                )
            ids, layout = input_ids, Grid(rows, width, keep, cache.length)
        where = _lay_out_positions(position_ids, layout)
        hidden = self.decoder(
            ids, layout, cache=cache, dtype=dtype, kernel=kernel, position_ids=where
        )
        if labels is not None:
            labels = torch.cat([labels[:, 1:], labels.new_full((labels.shape[0], 1), IGNORE)], 1)
            if attention_mask is not None:  # left padding does not predict the first token
                labels = labels.masked_fill(attention_mask[:, -labels.shape[1] :] == 0, IGNORE)
        return self._finish(hidden, layout, labels)

    def step(
        self,
        ids: Tensor,
        cache: Cache,
        attention_mask: Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
    ) -> Tensor:
        """Read the new tokens only, ids B T → logits of the last one B V.

        `attention_mask` covers cached and new tokens together.
        """
        keep = None if attention_mask is None else attention_mask.bool()
        layout = Grid(ids.shape[0], ids.shape[1], keep, cache.length)
        hidden = self.decoder(ids, layout, cache=cache, dtype=dtype, kernel=kernel)
        return self.logits(hidden[:, -1])


def _lay_out_positions(position_ids: Tensor | None, layout: Layout) -> Tensor | None:
    if position_ids is None or isinstance(layout, Grid):
        return position_ids
    return layout.to_packed(position_ids.expand(layout.keep.shape))


AnyModel = EncoderDecoderModel | EncoderOnlyModel | DecoderOnlyModel


def build(
    model: config.Model, *, device: torch.device | str | None = None, seed: int | None = None
) -> AnyModel:
    """Fresh weights for a config: `build(preset("original-base"))`.

    `device="meta"` gives shapes without memory, for counting; `seed` fixes the weights without
    touching the global random state.
    """
    shapes: dict[type, type[AnyModel]] = {
        config.EncoderDecoder: EncoderDecoderModel,
        config.EncoderOnly: EncoderOnlyModel,
        config.DecoderOnly: DecoderOnlyModel,
    }
    shape = shapes.get(type(model))
    if shape is None:
        names = ", ".join(cls.__name__ for cls in shapes)
        raise ConfigError(f"build got {type(model).__name__}; it takes {names}")
    with torch.device("meta"):
        built = shape(model)  # type: ignore[arg-type]
    if str(device) == "meta":
        return built
    built = built.to_empty(device=device or "cpu")
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        _norms_and_biases(built)
        initialise(built)
    return built


def _norms_and_biases(model: nn.Module) -> None:
    """`to_empty` leaves garbage where a constructor had written constants: ones and zeros again."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
