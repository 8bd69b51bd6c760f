"""Whole models: EncoderDecoder, EncoderOnly, DecoderOnly, with Hugging Face's names for inputs.

    model = build(preset("original-base"))
    out = model(input_ids=src, attention_mask=mask, labels=tgt)      # mask: 1 = keep
    out.logits, out.loss

Legend: B batch, S source length, T target length, N packed tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.cache import Cache
from allformer.core.head import (
    AnyHead,
    Classifier,
    Pooler,
    Pretrainer,
    SpanScores,
    VocabHead,
    make_head,
)
from allformer.core.init import initialise
from allformer.core.layout import Grid, Layout, Packed, cross_look, pack
from allformer.core.loss import IGNORE, class_loss, cross_entropy, span_loss
from allformer.core.provenance import Provenance
from allformer.core.replay import Replay
from allformer.core.stack import TokenStack
from allformer.core.taps import listening, tap
from allformer.errors import ConfigError


@dataclass
class Output:
    """What a model call gives back; what does not apply is None."""

    last_hidden_state: Tensor | None = None  # B T dim
    logits: Tensor | None = None  # B T V, B T labels or B labels
    loss: Tensor | None = None
    encoder_last_hidden_state: Tensor | None = None  # B S dim
    pooler_output: Tensor | None = None  # B dim
    start_logits: Tensor | None = None  # B T
    end_logits: Tensor | None = None  # B T
    prediction_logits: Tensor | None = None  # B T V, of BERT's pair of heads
    seq_relationship_logits: Tensor | None = None  # B 2

    @property
    def sop_logits(self) -> Tensor | None:
        """ALBERT's name for the second of the pair: sentence order."""
        return self.seq_relationship_logits


C = TypeVar("C", config.EncoderDecoder, config.EncoderOnly, config.DecoderOnly)


class Model(nn.Module, Generic[C]):
    """What the three shapes have in common."""

    path = ""

    def __init__(self, model: C) -> None:
        super().__init__()
        self.config: C = model
        self.head: AnyHead | None = None
        self.provenance = Provenance()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def vocab_head(self) -> VocabHead:
        """The head over the vocabulary; an error that says how to get one."""
        if isinstance(self.head, VocabHead):
            return self.head
        head = "None" if self.head is None else type(self.config.head).__name__
        raise ConfigError(
            f"{type(self.config).__name__}.head={head} gives no logits over the vocabulary; "
            f"build it with LMHead()"
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states → scores over the vocabulary."""
        head = self.vocab_head
        return tap(head, "logits", head(hidden))

    def generate(self, input_ids: Tensor | None = None, **options: Any) -> Any:
        """Ids that go on from `input_ids`: `model.generate(ids, max_new_tokens=20, num_beams=4)`.

        The arguments are those of `allformer.generate.generate`, with transformers' names.
        """
        # The one import that points up: a word for the user, which nothing in the core calls.
        from allformer.generate.generate import generate

        return generate(self, input_ids, **options)  # type: ignore[arg-type]

    def _finish(
        self,
        hidden: Tensor,
        layout: Layout,
        labels: Tensor | None,
        ids: Tensor | None = None,
        pooled: Tensor | None = None,
        spans: tuple[Tensor | None, Tensor | None] = (None, None),
        pair: Tensor | None = None,
    ) -> Output:
        """Head, loss, and back to the caller's grid; `ids` are the grid's, for finding tokens."""

        def grid(x: Tensor) -> Tensor:
            return layout.to_grid(x) if isinstance(layout, Packed) else x

        head = self.head
        out = Output(grid(hidden), pooler_output=pooled)
        if isinstance(head, VocabHead):
            out.logits = grid(self.logits(hidden))
            out.loss = None if labels is None else cross_entropy(out.logits, labels)
        elif isinstance(head, Classifier):
            out.logits = self._classify(head, hidden, grid, ids, pooled)
            if labels is not None and head.config.at == "token":
                out.loss = cross_entropy(out.logits, labels)
            elif labels is not None:
                out.loss = class_loss(out.logits, labels, head.config.problem)
        elif isinstance(head, SpanScores):
            out.start_logits, out.end_logits = grid(head(hidden)).unbind(-1)
            first, last = spans
            if first is not None and last is not None:
                out.loss = span_loss(out.start_logits, out.end_logits, first, last)
        elif isinstance(head, Pretrainer):
            assert pooled is not None  # the config refuses it
            out.prediction_logits = grid(tap(head.words, "logits", head.words(hidden)))
            out.seq_relationship_logits = head.pair(pooled)
            if labels is not None and pair is not None:
                out.loss = cross_entropy(out.prediction_logits, labels)
                out.loss = out.loss + cross_entropy(out.seq_relationship_logits, pair)
        elif labels is not None:
            self.vocab_head  # noqa: B018  (raises, and says how to get a head)
        return out

    def _classify(
        self, head: Classifier, hidden: Tensor, grid: Any, ids: Tensor | None, pooled: Tensor | None
    ) -> Tensor:
        if head.config.at == "token":
            out: Tensor = grid(head(hidden))
            return out
        if head.config.at != "pool":
            assert ids is not None
            pooled = head.pick(grid(hidden), ids, self._tokens())
        scores: Tensor = head(pooled)
        return scores

    def _tokens(self) -> config.Tokens:
        """The vocabulary that the head's texts are written in."""
        if isinstance(self.config, config.DecoderOnly):
            return self.config.decoder.source
        return self.config.encoder.source


def _lay_out(ids: Tensor, mask: Tensor | None, whole: bool = False) -> tuple[Tensor, Layout]:
    """Leave the padding out where that is possible: the numbers are the same, the work is less.

    A trace shows the grid that the caller gave; a compiled graph cannot have a size that depends
    on the mask's values. `whole` keeps the grid.
    """
    rows, width = ids.shape
    if mask is None or whole or listening() or torch.compiler.is_compiling():
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
        self.head = make_head(model.head, self.decoder.embedding, model.decoder.dim)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
    ) -> Output:
        """input_ids B S, decoder_input_ids B T (or labels, which are shifted) → logits B T V.

        With a head that classifies or finds answers, the decoder reads the input again (BART).
        """
        if decoder_input_ids is None:
            again = isinstance(self.head, Classifier | SpanScores)
            if labels is None and not again:
                raise ConfigError(
                    "decoder_input_ids=None and labels=None: the decoder has nothing to read; "
                    "give one of them, or use model.generate"
                )
            assert labels is not None or again
            decoder_input_ids = self.shift_right(input_ids if again or labels is None else labels)
        memory = self.encode(input_ids, attention_mask, dtype=dtype, kernel=kernel)
        hidden, layout = self._decode_grid(
            decoder_input_ids, decoder_attention_mask, memory, attention_mask, dtype, kernel
        )
        spans = (start_positions, end_positions)
        out = self._finish(hidden, layout, labels, input_ids, spans=spans)
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
        return self.vocab_head.loss(hidden.flatten(0, -2), labels.flatten(), smoothing)

    def shift_right(self, labels: Tensor) -> Tensor:
        """What the decoder reads while it predicts `labels`: the start token, then labels[:-1]."""
        start, pad = self.config.start, self.config.decoder.source.pad_id
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


class EncoderOnlyModel(Model[config.EncoderOnly]):
    """Every token sees every token."""

    def __init__(self, model: config.EncoderOnly) -> None:
        super().__init__(model)
        self.encoder = TokenStack(model.encoder, "encoder")
        self.pool = None if model.pool is None else Pooler(model.pool, model.encoder.dim)
        self.head = make_head(model.head, self.encoder.embedding, model.encoder.dim)
        self._replay: Replay | None = None

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        sentence_order_label: Tensor | None = None,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
    ) -> Output:
        """input_ids B T → last_hidden_state B T dim and what the head gives.

        `labels` are not shifted: B T for tokens (−100 ignored), B for the sequence.
        """
        pair = next_sentence_label if sentence_order_label is None else sentence_order_label
        asked = (labels, position_ids, start_positions, end_positions, pair, dtype)
        plain = kernel == "fast" and not listening() and all(x is None for x in asked)
        if self._replay is not None and plain and self._replay.fits(input_ids):
            return Output(**self._replay(input_ids, attention_mask, token_type_ids))
        whole = start_positions is not None or self._reads_padding(attention_mask)
        ids, layout = _lay_out(input_ids, attention_mask, whole)
        hidden, pooled = self._run(
            ids, layout, input_ids, token_type_ids, position_ids, dtype, kernel
        )
        spans = (start_positions, end_positions)
        return self._finish(hidden, layout, labels, input_ids, pooled, spans, pair)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """`model.compile()`: as torch has it, in place. Inference on a GPU becomes CUDA graphs of
        batches without their padding; see `core.replay`."""
        if self.device.type == "cuda" and not args and not kwargs:
            self._replay = Replay(self.infer, self.reads_first)
        else:
            super().compile(*args, **kwargs)

    def infer(
        self, ids: Tensor, layout: Layout, grid: Tensor, types: Tensor | None
    ) -> dict[str, Tensor]:
        """What the model gives for ids in a layout; `grid` holds the same ids, R W."""
        hidden, pooled = self._run(ids, layout, grid, types)
        out = self._finish(hidden, layout, None, grid, pooled)
        return {f.name: x for f in fields(out) if (x := getattr(out, f.name)) is not None}

    def _run(
        self,
        ids: Tensor,
        layout: Layout,
        grid: Tensor,
        types: Tensor | None,
        position_ids: Tensor | None = None,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
    ) -> tuple[Tensor, Tensor | None]:
        if isinstance(layout, Packed):
            layout = self.encoder.numbered(layout, grid)
        hidden = self.encoder(
            ids,
            layout,
            dtype=dtype,
            kernel=kernel,
            position_ids=_lay_out_more(position_ids, layout),
            token_type_ids=_lay_out_more(types, layout),
        )
        if self.pool is None:
            return hidden, None
        return hidden, self.pool(layout.to_grid(hidden) if isinstance(layout, Packed) else hidden)

    @property
    def reads_first(self) -> bool:
        """Whether the first column is read, padding or not (as the reference does)."""
        first = isinstance(self.head, Classifier) and self.head.config.at == "first"
        return first or self.pool is not None

    def _reads_padding(self, mask: Tensor | None) -> bool:
        """Whether a head reads the first column where it is padding: then that is computed too."""
        if mask is None or torch.compiler.is_compiling() or not self.reads_first:
            return False
        return not bool(mask[:, 0].all())


class DecoderOnlyModel(Model[config.DecoderOnly]):
    """Each token sees the ones before it."""

    def __init__(self, model: config.DecoderOnly) -> None:
        super().__init__(model)
        self.decoder = TokenStack(model.decoder, "decoder")
        self.head = make_head(model.head, self.decoder.embedding, model.decoder.dim)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        cache: Cache | None = None,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
    ) -> Output:
        """input_ids B T → logits B T V; `labels` are unshifted: position t predicts label t+1.

        With a cache, `attention_mask` covers cached and new tokens together.
        """
        if cache is None:
            ids, layout = _lay_out(input_ids, attention_mask, start_positions is not None)
        else:
            rows, width = input_ids.shape
            keep = None if attention_mask is None else attention_mask.bool()
            if keep is not None and keep.shape[1] != cache.length + width:
                raise ConfigError(
                    f"attention_mask covers {keep.shape[1]} tokens, but there are {cache.length} "
                    f"in the cache and {width} new ones; give a mask over all of them"
                )
            ids, layout = input_ids, Grid(rows, width, keep, cache.length)
        where = _lay_out_more(position_ids, layout)
        hidden = self.decoder(
            ids, layout, cache=cache, dtype=dtype, kernel=kernel, position_ids=where
        )
        if labels is not None and isinstance(self.head, VocabHead):
            labels = torch.cat([labels[:, 1:], labels.new_full((labels.shape[0], 1), IGNORE)], 1)
            if attention_mask is not None:  # left padding does not predict the first token
                labels = labels.masked_fill(attention_mask[:, -labels.shape[1] :] == 0, IGNORE)
        spans = (start_positions, end_positions)
        return self._finish(hidden, layout, labels, input_ids, spans=spans)

    def step(
        self,
        ids: Tensor,
        cache: Cache,
        attention_mask: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
    ) -> Tensor:
        """Read the new tokens only, ids B T → logits of the last one B V.

        `attention_mask` covers cached and new tokens together.
        """
        keep = None if attention_mask is None else attention_mask.bool()
        layout = Grid(ids.shape[0], ids.shape[1], keep, cache.length)
        hidden = self.decoder(
            ids, layout, cache=cache, dtype=dtype, kernel=kernel, position_ids=position_ids
        )
        return self.logits(hidden[:, -1])


def _lay_out_more(ids: Tensor | None, layout: Layout) -> Tensor | None:
    """Positions or token types in the layout of the ids."""
    if ids is None or isinstance(layout, Grid):
        return ids
    return layout.to_packed(ids.expand(layout.keep.shape))


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
        for buffer in model.buffers():  # what is added to the logits
            buffer.zero_()
