"""Whole models: EncoderDecoder, EncoderOnly, DecoderOnly, with Hugging Face's names for inputs.

    model = build(preset("original-base"))
    out = model(input_ids=src, attention_mask=mask, labels=tgt)      # mask: 1 = keep
    out.logits, out.loss

A call sorts its inputs by stack (`sort`), lays each side out (`Side`), runs the stacks (`hidden`)
and lets the head answer (`finish`). Training and inference graphs enter at `hidden`.

Legend: B batch, S source length, T target length, N packed tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core import heads  # noqa: F401  (registers them)
from allformer.core.heads.classes import Pool
from allformer.core.heads.head import Head, Hidden
from allformer.core.heads.words import LMHead
from allformer.core.inputs import Side, check_mask, check_values, lay_out, refuse_inputs
from allformer.core.layout import Grid, Layout, Packed, pack
from allformer.core.loss import IGNORE
from allformer.core.output import Output
from allformer.core.provenance import Provenance
from allformer.core.recompute import check_mode
from allformer.core.registry import implements, module_for
from allformer.core.replay import Replay, ReplayPixels, ReplayText
from allformer.core.stack import Stack
from allformer.core.starts import start
from allformer.core.states import Cache, SegmentMemory
from allformer.core.taps import listening
from allformer.errors import ConfigError

C = TypeVar(
    "C",
    config.EncoderDecoder,
    config.EncoderOnly,
    config.DecoderOnly,
    config.TwoTowers,
    config.SetDecoder,
)
LAYERS = "layers"  # among hidden states: those after each layer, for heads that read them all
ENTRIES = "entries"  # and what each layer reads, with the last states behind
_SAME = {"sentence_order_label": "next_sentence_label"}  # ALBERT's name for the pair's label


class Model(nn.Module, Generic[C]):
    """What all shapes have in common: stacks that run one after the other, and a head."""

    path = ""

    def __init__(self, model: C) -> None:
        super().__init__()
        self.config: C = model
        self.provenance = Provenance()
        # What a caller puts before the names of a stack's inputs: the first stack's go without.
        self.prefixes: dict[str, str] = {
            name: f"{name}_" if i else "" for i, name in enumerate(model.stacks)
        }
        table = None
        for name, stack in model.stacks.items():
            shared: dict[str, Any] = (
                {"table": table} if table is not None and self._shares() else {}
            )
            setattr(self, name, Stack(stack, name, **shared))
            table = getattr(self.stack(name).source, "embedding", None)

    def _shares(self) -> bool:
        return isinstance(self.config, config.EncoderDecoder) and self.config.shared

    def _add_head(self, ahead: bool = False) -> None:
        """Last, so that weights start in reading order."""
        name, stack = list(self.config.stacks.items())[-1]
        self.head: Head | None = None
        if self.config.head is not None:
            table = getattr(self.stack(name).source, "embedding", None)
            make = module_for(self.config.head)
            self.head = make(self.config.head, stack, "head", table=table, ahead=ahead)

    def stack(self, name: str) -> Stack:
        """A stack by its name: `model.stack("encoder")`."""
        stack: Stack = getattr(self, name)
        return stack

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def vocab_head(self) -> LMHead:
        """The head over the vocabulary; an error that says how to get one."""
        if self.head is not None:
            for part in self.head.modules():
                if isinstance(part, LMHead):
                    return part
        head = "None" if self.head is None else type(self.config.head).__name__
        raise ConfigError(
            f"{type(self.config).__name__}.head={head} gives no logits over the vocabulary; "
            f"build it with LMHead()"
        )

    def logits(self, hidden: Tensor, where: Tensor | None = None) -> Tensor:
        """Hidden states → scores over the vocabulary; `where` they stand, for heads that ask."""
        scores: Tensor = self.vocab_head(hidden, where)
        return scores

    def generate(self, input_ids: Tensor | None = None, **options: Any) -> Any:
        """Ids that go on from `input_ids`: `model.generate(ids, max_new_tokens=20, num_beams=4)`.

        The arguments are those of `allformer.generate.generate`, with transformers' names.
        """
        # The one import that points up: a word for the user, which nothing in the core calls.
        from allformer.generate.generate import generate

        return generate(self, input_ids, **options)  # type: ignore[arg-type]

    def recompute(self, mode: str | None) -> None:
        """What the backward pass makes again instead of keeping it: `model.recompute("layers")`.

        "layers": a layer keeps its input alone. "selective": matrix products and attention are
        kept. None: everything is kept. The numbers are the same.
        """
        check_mode(mode)
        for name in self.config.stacks:
            self.stack(name).recompute = mode

    # --- a call, step by step ---------------------------------------------------------------------

    def call(
        self,
        given: Mapping[str, Any],
        *,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
        states: bool = True,
    ) -> Output:
        """What the head gives, and the hidden states of the last stack: what `forward` does.

        Inputs have transformers' names: those that the stacks' sources take (`inputs_embeds`,
        `token_type_ids`, `position_ids`; for a decoder behind an encoder with `decoder_` in front),
        their masks, and the head's targets. `labels` are not shifted, −100 is ignored, and so is
        padding. `dtype` is what is computed in; `kernel="eager"` computes attention as the formula.
        `states=False`: the head's answer alone, for which fewer states may do (`front`).
        """
        found, targets = self.sort(given)
        self._complete(found, targets)
        sides = self._lay_out(found, self._whole(found, targets))
        return self._answer(sides, targets, states, dtype=dtype, kernel=kernel)

    def _answer(
        self, sides: Mapping[str, Side], targets: Mapping[str, Tensor], states: bool, **how: Any
    ) -> Output:
        """Stacks and head, with the hidden states or without."""
        if states:
            return self.finish(self.hidden(sides, **how), sides, targets)
        given, front = self._given(), self.front(sides)
        out = self.finish(self.hidden(sides, front=front, **how), sides, targets, front)
        return Output({name: x for name, x in out.items() if name in given})

    def sort(
        self, given: Mapping[str, Any]
    ) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]:
        """Inputs by stack and targets by name; what nobody takes is refused."""
        left: dict[str, Any] = {_SAME.get(n, n): x for n, x in given.items() if x is not None}
        found: dict[str, dict[str, Tensor]] = {}
        known: list[str] = []
        for key, prefix in self.prefixes.items():
            takes: tuple[str, ...] = self.stack(key).takes
            known += (names := [prefix + take for take in (*takes, "attention_mask")])
            found[key] = {n.removeprefix(prefix): left.pop(n) for n in names if n in left}
        own: tuple[str, ...] = () if self.head is None else self.head.targets
        targets = {name: left.pop(name) for name in own if name in left}
        if "labels" in left and self.head is None:
            self.vocab_head  # noqa: B018  (raises, and says how to get a head)
        if left:
            refuse_inputs(left, (*known, *own))
        return found, targets

    def _complete(self, found: dict[str, dict[str, Tensor]], targets: Mapping[str, Tensor]) -> None:
        """Inputs that follow from others."""

    def _whole(
        self, found: Mapping[str, Mapping[str, Tensor]], targets: Mapping[str, Tensor]
    ) -> bool:
        """Whether padding is computed too: a head scores it, or reads a first column that is it."""
        if self.head is not None and self.head.reads_padding and (targets or not self.head.targets):
            return True
        mask = next(iter(found.values())).get("attention_mask")
        if mask is None or torch.compiler.is_compiling() or not self.reads_first:
            return False
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            return False  # it is refused when it is laid out
        return not bool(mask[:, 0].all())

    @property
    def reads_first(self) -> bool:
        """Whether the first column is read, padding or not (as the reference does)."""
        return self.head is not None and self.head.reads_first

    def _lay_out(
        self, found: Mapping[str, Mapping[str, Tensor]], whole: bool = False
    ) -> dict[str, Side]:
        """The sides of all stacks that are given anything, checked."""
        sides: dict[str, Side] = {}
        for name, inputs in found.items():
            prefix, stack = self.prefixes[name], self.stack(name)
            rows, width = stack.check(inputs, self.head_of(name), prefix)
            if sides and rows != (batch := next(iter(sides.values())).layout.rows):
                first, mine = (next(iter(found[key])) for key in (next(iter(found)), name))
                raise ConfigError(
                    f"{prefix}{mine} has {rows} rows, but {first} {batch}; give as many"
                )
            own = () if stack.source.masked else ("attention_mask",)
            mask = None if own else inputs.get("attention_mask")
            if mask is not None:
                check_mask(mask, rows, width, f"{prefix}attention_mask")
            rest = {key: x for key, x in inputs.items() if key in own or key != "attention_mask"}
            sides[name] = lay_out(
                rest, mask, whole or not stack.source.per_token, f"{prefix}attention_mask",
                (rows, width),
            )  # fmt: skip
        return sides

    def hidden(
        self,
        sides: Mapping[str, Side],
        *,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
        cache: Cache | None = None,
        front: int | None = None,
    ) -> dict[str, Tensor]:
        """The last hidden states of every stack that has a side, each in its side's layout.

        `hidden(encoder=…)`: training, graphs and bare models all come through here. `front`: of the
        last stack each row's first tokens alone, which cost less (see `Model.front`).
        """
        out: dict[str, Tensor] = {}
        memory: Tensor | None = None
        across: Layout | None = None
        for i, (name, side) in enumerate(sides.items()):
            if i == 0 and self.head is not None:
                side = self.head.complete(side)
            if memory is not None and across is not None:
                memory, across = alike(memory, across, side.layout)
            stack = self.stack(name)
            x = stack.source(side, dtype)
            seen = self.watched(name)
            entries = self.entered(name)
            out[name] = stack(
                x, side.layout, memory=memory, across=across, cache=cache, kernel=kernel,
                inputs=side.inputs, head=self.head_of(name), seen=seen, entered=entries,
                front=front if i == len(sides) - 1 else None,
            )  # fmt: skip
            if seen is not None:
                out[LAYERS] = torch.stack(seen)
            if entries is not None:
                entries.append(out[name])
                out[ENTRIES] = torch.stack(entries)
            memory, across = out[name], side.layout
        return out

    def watched(self, name: str) -> list[Tensor] | None:
        """A list for the states after each layer, where the head reads them all."""
        reads = self.head is not None and self.head.reads_layers and self.training
        return [] if reads and name == list(self.prefixes)[-1] else None

    def entered(self, name: str) -> list[Tensor] | None:
        """A list for what each layer reads, where the head reads it."""
        reads = self.head is not None and self.head.reads_entries
        return [] if reads and name == list(self.prefixes)[-1] else None

    def head_of(self, name: str) -> config.Head | None:
        """The head, for the stack whose states it reads: the last one."""
        return self.config.head if name == list(self.prefixes)[-1] else None

    def states(
        self, *, dtype: torch.dtype | None = None, kernel: str = "fast", **inputs: Any
    ) -> dict[str, Tensor]:
        """The hidden states of every stack that is given inputs, B T dim; no head is run.

        `model.states(input_ids=ids, attention_mask=mask)["encoder"]`
        """
        found, _ = self.sort(inputs)
        sides = self._lay_out({name: x for name, x in found.items() if x})
        hidden = self.hidden(sides, dtype=dtype, kernel=kernel)
        return {name: side.layout.to_grid(hidden[name]) for name, side in sides.items()}

    def finish(
        self,
        hidden: Mapping[str, Tensor],
        sides: Mapping[str, Side],
        targets: Mapping[str, Tensor],
        front: int | None = None,
    ) -> Output:
        """Head, loss, and back to the caller's grid; `front` as `hidden` was told."""
        name = list(sides)[-1]
        layout = sides[name].layout
        if front is not None and isinstance(layout, Grid):
            layout = layout.first(front)
        grid = layout.to_grid(hidden[name])
        given = next(iter(sides.values()))
        read = Hidden(hidden[name], layout, grid, given.ids, self.pooled(grid), given.inputs)
        read = read._replace(layers=hidden.get(LAYERS), entries=hidden.get(ENTRIES))
        out: dict[str, Tensor | None] = {"last_hidden_state": grid, "pooler_output": read.pooled}
        first = next(iter(sides))
        if first != name:
            out["encoder_last_hidden_state"] = sides[first].layout.to_grid(hidden[first])
        if self.head is not None:
            answer = self.head.outputs(read)
            out |= answer
            if self.head.learns(targets, read):
                out["loss"] = self.head.loss(answer, targets, read)
        return Output(out)

    def front(self, sides: Mapping[str, Side]) -> int | None:
        """How many of each row's first tokens the head reads, if nothing else is read; else None.

        `model.hidden(sides, front=model.front(sides))` gives the states of those.
        """
        last = list(sides.values())[-1].layout
        if self.head is None or self.head.front is None or not isinstance(last, Grid):
            return None
        return min(self.head.front, last.width)

    def _given(self) -> tuple[str, ...]:
        """The names of what is given when hidden states are not asked for."""
        gives: tuple[str, ...] = () if self.head is None else self.head.gives
        if not gives:
            raise ConfigError(
                f"states=False, but {type(self.config).__name__}.head=None: hidden states are all "
                f"that this model gives; leave it out"
            )
        return (*gives, "loss")

    def pooled(self, grid: Tensor) -> Tensor | None:
        """What the pooler makes of the states, B dim."""
        return None


def segments_of(cache: Cache) -> Tensor | None:
    """What the layers remember of the segments so far, layers M B dim; None: another kind."""
    states = [layer.own for layer in cache.layers]
    found = [x.hidden for x in states if isinstance(x, SegmentMemory) and x.hidden is not None]
    return torch.stack(found).transpose(1, 2) if len(found) == len(states) else None


def alike(x: Tensor, layout: Layout, other: Layout) -> tuple[Tensor, Layout]:
    """What is looked at, packed if they who look are packed, else on its grid."""
    if layout.packed == other.packed:
        return x, layout
    if isinstance(layout, Packed):
        return layout.to_grid(x), Grid(layout.rows, layout.total, layout.keep)
    keep = layout.keep if layout.keep is not None else x.new_ones(x.shape[:2])
    packed = pack(keep)
    return packed.lay(x), packed


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
        return self.states(dtype=dtype, kernel=kernel, **given)["encoder"]

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
    ) -> Tensor:
        """Decode the new tokens only, ids B T → logits of the last one B V.

        The first call computes the memory's keys and values into the cache; later calls need
        `memory_mask` alone.
        """
        side = Side(cache.grid(ids.shape[0], ids.shape[1], None), {"input_ids": ids}, ids)
        keep = None if memory_mask is None else memory_mask.bool()
        across = Grid(ids.shape[0], 0 if keep is None else keep.shape[1], keep)
        x = self.decoder.source(side, dtype)
        hidden = self.decoder(
            x, side.layout, memory=memory, across=across, cache=cache, kernel=kernel
        )
        return self.logits(hidden[:, -1])

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
    ) -> Tensor:
        """Read the new tokens only, ids B T → logits of the last one B V.

        `attention_mask` covers cached and new tokens together.
        """
        keep = None if attention_mask is None else attention_mask.bool()
        inputs = {"input_ids": ids}
        if position_ids is not None:
            inputs["position_ids"] = position_ids
        grid = cache.grid(ids.shape[0], ids.shape[1], keep)
        sides = {"decoder": Side(grid, inputs, ids, grid.total)}
        hidden = self.hidden(sides, dtype=dtype, kernel=kernel, cache=cache)["decoder"]
        placed = self.vocab_head.placed
        return self.logits(hidden[:, -1], grid.columns(ids.device)[-1:] if placed else None)


AnyModel = EncoderDecoderModel | EncoderOnlyModel | DecoderOnlyModel


def build(
    model: config.Model | config.Codec,
    *,
    device: torch.device | str | None = None,
    seed: int | None = None,
) -> AnyModel:
    """Fresh weights for a config: `build(preset("original-base"))`.

    `device="meta"` gives shapes without memory, for counting; `seed` fixes the weights without
    touching the global random state.
    """
    if not isinstance(model, config.Model | config.Codec):
        raise ConfigError(
            f"build got {type(model).__name__}; it takes EncoderDecoder, EncoderOnly, "
            f"DecoderOnly, SetDecoder, TwoTowers, or a codec"
        )
    with torch.device("meta"):
        built: AnyModel = module_for(model)(model)
    if str(device) == "meta":
        return built
    built = built.to_empty(device=device or "cpu")
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        start(built)
    return built
