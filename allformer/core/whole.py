"""What all whole models have in common: stacks that run one after the other, and a head.

A call sorts its inputs by stack (`sort`), lays each side out (`Side`), runs the stacks (`hidden`)
and lets the head answer (`finish`). Training and inference graphs enter at `hidden`.

Legend: B batch, S source length, T target length, N packed tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core import heads  # noqa: F401  (registers them)
from allformer.core.choices import fold
from allformer.core.heads.head import Head, Hidden
from allformer.core.heads.words import LMHead
from allformer.core.inputs import Side, check_mask, lay_out, refuse_inputs
from allformer.core.layout import Grid, Layout, Packed, pack
from allformer.core.output import Output
from allformer.core.provenance import Provenance
from allformer.core.recompute import check_mode
from allformer.core.registry import module_for
from allformer.core.stack import Stack
from allformer.core.states import Cache
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
FIRST = "first"  # and that of a row's first token, where this is one that an adapter has learned
_SAME = {"sentence_order_label": "next_sentence_label"}  # ALBERT's name for the pair's label


class Model(nn.Module, Generic[C]):
    """What all shapes have in common: stacks that run one after the other, and a head."""

    path = ""
    by_row = False  # whether rows differ in the adapters that act on them, and so are not packed
    adapters: tuple[str, ...] = ()  # those whose work is beside the weights, not in them

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
    def extended(self) -> bool:
        """Whether a stack has more than its config says (`Stack.extended`): ways that read the
        weights themselves leave such a model to itself."""
        return any(self.stack(name).extended for name in self.prefixes)

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
        choices = None
        if self.head is not None and self.head.chooses:
            choices = fold(next(iter(found.values())))
        if choices is not None:
            choices.check(targets)
        self._complete(found, targets)
        sides = self._lay_out(found, self._whole(found, targets))
        out = self._answer(sides, targets, states, dtype=dtype, kernel=kernel)
        return out if choices is None else choices.apart(out)

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
                rest, mask, whole or self.by_row or not stack.source.per_token,
                f"{prefix}attention_mask", (rows, width),
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
        if self.by_row and any(isinstance(side.layout, Packed) for side in sides.values()):
            raise ConfigError(
                "rows with adapters of their own cannot be packed; give the model padded rows, or "
                "switch to one adapter"
            )
        out: dict[str, Tensor] = {}
        memory: Tensor | None = None
        across: Layout | None = None
        for i, (name, side) in enumerate(sides.items()):
            if i == 0 and self.head is not None:
                side = self.head.complete(side)
            if memory is not None and across is not None:
                memory, across = alike(memory, across, side.layout)
            stack = self.stack(name)
            laid = stack.laid(side, cache)
            x = stack.source(laid, dtype)
            seen, entries = self.watched(name), self.entered(name)
            few = front if i == len(sides) - 1 else None
            states: Tensor = stack(
                x, laid.layout, memory=memory, across=across, cache=cache, kernel=kernel,
                inputs=laid.inputs, head=self.head_of(name), seen=seen, entered=entries,
                front=None if laid.learned else few,
            )  # fmt: skip
            memory, across = states, laid.layout
            own = laid.without(states, side)
            out[name] = own if few is None else own[:, :few]
            if seen is not None:
                out[LAYERS] = laid.stacked(seen, side)
            if entries is not None:
                entries.append(states)
                out[ENTRIES] = laid.stacked(entries, side)
            if laid.learned and not side.learned:
                out[FIRST] = laid.layout.to_grid(states)[:, 0]
                if cache is not None:
                    cache.learn(laid.learned)
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
        first = next(iter(sides))
        seen = grid
        if FIRST in hidden and first == name:  # what reads the first token reads the learned one
            seen = torch.cat([hidden[FIRST][:, None], grid[:, 1:]], 1)
        read = Hidden(hidden[name], layout, seen, given.ids, self.pooled(seen), given.inputs)
        read = read._replace(layers=hidden.get(LAYERS), entries=hidden.get(ENTRIES))
        out: dict[str, Tensor | None] = {"last_hidden_state": grid, "pooler_output": read.pooled}
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


def alike(x: Tensor, layout: Layout, other: Layout) -> tuple[Tensor, Layout]:
    """What is looked at, packed if they who look are packed, else on its grid."""
    if layout.packed == other.packed:
        return x, layout
    if isinstance(layout, Packed):
        return layout.to_grid(x), Grid(layout.rows, layout.total, layout.keep)
    keep = layout.keep if layout.keep is not None else x.new_ones(x.shape[:2])
    packed = pack(keep)
    return packed.lay(x), packed
