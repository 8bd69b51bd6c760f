"""The fast way through a search on a GPU: keys and values in memory of a fixed size, steps as CUDA
graphs. `stepper_for` takes it without being asked; what cannot be captured goes the plain way.

    stepper = static_stepper(model)                # None: `unfit(model)` says why

The prompt is read as on the plain way. At the first step what is remembered moves into a `Room`;
the first steps there are taken by hand, then one is captured and replayed. Nothing in a step waits
for the device. Rows that leave are not looked at any more, and where no more than half stay, they
go on in a smaller room. Beams share what they write (`core/states/paths.py`): no key is copied.

The numbers are those of the plain way up to rounding, for the sums of an attention over a fixed
memory are taken in another order: greedy search takes another token only where two scores lie
closer than that. By hand and replayed they are the same to the last bit, so that a call repeated
says the same.

Legend: R texts (rows of the search), V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel
from allformer.core.states import Cache, Growing, Paths, Ring
from allformer.core.states.paths import MOST
from allformer.core.taps import listening
from allformer.generate.room import Room, Size, rounded
from allformer.generate.rooms import Rooms, forget
from allformer.generate.stepper import FASTER, DecoderStepper, EncoderDecoderStepper, State

DEVICES = ("cuda",)  # where there are graphs; tests add the CPU
# Steps that must be to come, or the plain way is taken: capturing costs about three steps by hand
# (one to record, the rest to instantiate and to wait for the device), and a replay saves half of
# one or more. So it has paid after six; ten more, for what ends before its limit.
WORTH = 16
SPARE = 1024  # tokens that room is made for at first; most texts end long before their limit

AnyModel = DecoderOnlyModel | EncoderDecoderModel


def static_stepper(model: AnyModel, dtype: torch.dtype | None = None) -> StaticStepper | None:
    """The stepper of a model whose steps can be captured; None: they cannot."""
    if unfit(model) is None:
        return StaticStepper(model, dtype)
    forget(model)  # it has moved, or learns: memory is wanted for other things
    return None


FASTER.append(static_stepper)


def unfit(model: AnyModel) -> str | None:
    """Why the steps of a model go the plain way; None: they are captured.

    `unfit(model)` → `"the model is on cpu, which has no graphs"`
    """
    if model.device.type not in DEVICES:
        return f"the model is on {model.device.type}, which has no graphs"
    if model.training:
        return "the model is in training mode: dropout draws anew in each step"
    if listening():
        return "somebody listens to the values inside"
    return _of_parts(model) or _of_layers(model) or Rooms.of(model).refused


def _of_parts(model: AnyModel) -> str | None:
    """What a graph would not see: work of Python that is hung onto the layers."""
    for name, part in model.named_modules():
        if part._forward_hooks or part._forward_pre_hooks:
            return f"{name or 'the model'} has a hook, which a graph would not call"
        if getattr(part, "delta", None) is not None:
            return f"{name} has a delta, whose settings a graph would not see"
    for name, x in (*model.named_parameters(), *model.named_buffers()):
        if type(x) not in (Tensor, nn.Parameter) or x.device != model.device:
            return f"{name} lies on other devices too"
    return None


def _of_layers(model: AnyModel) -> str | None:
    """What layers remember must have a form of a fixed size."""
    stack = model.decoder
    for layer in stack.layers:
        parts: Any = layer
        mixers = [parts.attention.mixer, *([parts.cross.mixer] if parts.has_cross else [])]
        for mixer in mixers:
            if not mixer.fixed:
                return f"the mixer {type(mixer).__name__} goes by what the host counts"
    for state in _states(model):
        if state.fixed(1, 1, None) is None:
            return f"{type(state).__name__} has no form of a fixed size"
    return None


def _states(model: AnyModel) -> list[Any]:
    return [layer.own for layer in model.new_cache().layers]


@dataclass
class StaticState(State):
    """As a `State`, in a room once that has been moved into.

    `pending` (0 0 1 1 …): rows that are to become several, and are still one: the room stores what
    they have in common once.
    """

    rooms: Rooms | None = None
    room: Room | None = None
    copies: int = 1  # texts of each row
    moves: bool = False  # they are beams
    pending: Tensor | None = None
    texts: int = 0  # that are running
    at: Tensor | None = None  # which of the room's they are; None: the first ones
    length: int = 0  # tokens read
    plain: bool = False  # it stays outside, for there is no room

    @property
    def settles(self) -> bool:
        """Whether to move into a room at the first step."""
        told = self.ahead is not None and self.ahead > WORTH
        return told and self.cache is not None and not self.plain

    @property
    def left(self) -> int:
        """Tokens that may still be read."""
        return 0 if self.ahead is None else self.ahead - 1

    def spread(self, rows: Tensor, copies: int, moves: bool) -> None:
        if not self.settles:
            super().spread(rows, copies, moves)
        else:
            self.pending, self.copies, self.moves = rows, copies, moves

    def part(self) -> None:
        """Rows that were to become several become so now, each with a memory of its own."""
        if self.pending is not None:
            self.select(self.pending, sources=True)
        self.pending, self.copies = None, 1

    def keep(self, stay: Tensor, together: int = 1) -> None:
        if self.room is not None:
            self._leave(stay, together)
        elif self.pending is not None and together == self.copies:
            self.select(stay, sources=True)
            rows = torch.arange(len(stay), device=stay.device)
            self.pending = rows.repeat_interleave(self.copies)
        else:
            self.part()
            super().keep(stay, together)

    def move(self, beam: Tensor) -> None:
        if self.room is not None:
            self._move(self.room, beam)
            first = torch.arange(len(beam), device=beam.device)[:, None] * self.copies
            self.recall((first + beam).flatten())
        elif self.pending is None:  # else they are still alike
            super().move(beam)

    def _move(self, room: Room, beam: Tensor) -> None:
        rows, copies = room.size.rows, room.size.copies
        if len(beam) < rows:  # the others stay as they are
            whole = torch.arange(copies, device=beam.device).repeat(rows, 1)
            here = self._here()[::copies] // copies
            beam = whole.index_copy_(0, here, beam)
        room.move(beam)

    def recall(self, rows: Tensor) -> None:
        """What was read, where that is recorded, goes with the texts."""
        if self.read is not None:
            self.read = self.read.index_select(0, rows)

    def _here(self) -> Tensor:
        """Which of the room's texts are running, R."""
        if self.at is not None:
            return self.at
        assert self.room is not None
        return torch.arange(self.texts, device=self.room.tokens.device)

    def _leave(self, stay: Tensor, together: int) -> None:
        """The graph runs on with all of its rows; those that leave are not looked at."""
        assert self.room is not None
        each = torch.arange(together, device=stay.device)
        rows = (stay[:, None] * together + each).flatten()
        self.at, self.texts = self._here().index_select(0, rows), len(rows)
        self.recall(rows)
        whole = together == self.room.size.copies
        if whole or not self.room.size.forked:
            self._shrink(self.room, whole)

    def _shrink(self, room: Room, whole: bool) -> None:
        """Into a smaller room, where that is half as large and there is enough to come."""
        copies = room.size.copies if whole else 1
        rows = common(self.texts // copies)
        if 2 * rows * copies <= room.size.texts and self.left > WORTH:
            self._into(room.size._replace(rows=rows, copies=copies), self._here())
            self.at = None

    def _into(self, size: Size, texts: Tensor) -> None:
        """Go on in another room, of which these texts are the first."""
        assert self.room is not None
        assert self.rooms is not None
        old = self.room
        size = size._replace(room=self.reach(old.model))
        self.room = self.rooms.find(size) or Room(old.model, size, old.cache)
        self.room.follow(old, texts)
        self.rooms.give(old)
        self.cache = self.room.cache

    def reach(self, model: AnyModel) -> int:
        """For how many tokens room is made: those to come, but no more than twice what there is
        and some to spare."""
        need = min(self.length + self.left, 2 * self.length + SPARE)
        longest = model.config.decoder.longest
        return rounded(need) if longest is None else min(rounded(need), longest)

    def step(self, tokens: Tensor) -> Tensor:
        """R 1 → R V, which stand until the next step."""
        assert self.room is not None
        assert tokens.shape[1] == 1, "a room is read token by token"
        if self.length + 1 > self.room.size.room:
            every = torch.arange(self.room.size.texts, device=tokens.device)
            self._into(self.room.size, every)
        room, tokens = self.room, self.unread(tokens)
        if self.at is None:
            room.tokens[: self.texts].copy_(tokens)
        else:
            room.tokens.index_copy_(0, self.at, tokens)
        logits = room.step(self.length)
        self.length += 1
        self.ahead = None if self.ahead is None else self.ahead - 1
        if self.at is not None:
            return logits.index_select(0, self.at)
        return logits[: self.texts]

    def plainly(self) -> None:
        if self.room is None or self.rooms is None:
            return
        room, here = self.room, self._here()
        self.cache = room.model.new_cache()
        self.cache.length = self.length
        for mine, other in zip(self.cache.layers, room.cache.layers, strict=True):
            mine.own.resume(other.own, here, self.length)
            if other.cross is not None:
                k, v = (x.index_select(0, here // room.size.copies) for x in other.cross)
                mine.cross = k, v
        self.mask = room.mask(here, self.length)
        self.rooms.give(room)
        self.room, self.at, self.copies, self.plain = None, None, 1, True

    def close(self) -> None:
        if self.room is not None and self.rooms is not None:
            self.rooms.give(self.room)
        self.room = self.cache = None


class StaticStepper:
    """Reads the prompt as the plain stepper does, and each token after it in a room."""

    def __init__(self, model: AnyModel, dtype: torch.dtype | None = None) -> None:
        self.model, self.dtype = model, dtype
        self.plain: DecoderStepper | EncoderDecoderStepper
        if isinstance(model, EncoderDecoderModel):
            self.plain = EncoderDecoderStepper(model, dtype)
        else:
            self.plain = DecoderStepper(model, dtype)

    def open(
        self, input_ids: Tensor, mask: Tensor | None, use_cache: bool = True, **inputs: Any
    ) -> StaticState:
        """As the plain one; graphs that were captured with other weights are dropped."""
        found = self.plain.open(input_ids, mask, use_cache, **inputs)
        rooms = Rooms.of(self.model)
        return StaticState(found.cache, found.mask, found.memory, found.skip, rooms=rooms)

    def prefill(self, ids: Tensor, state: State) -> Tensor:
        """The prompt, by the plain stepper."""
        return self.plain.prefill(ids, state)

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Read the new tokens (rows N) alone: the logits of what follows (rows V), which stand
        until the next step."""
        assert isinstance(state, StaticState)
        if state.room is None:
            if state.settles and tokens.shape[1] == 1:
                self._settle(state, len(tokens))
            if state.room is None:
                state.part()
                return self.plain.step(tokens, state)
        return state.step(tokens)

    def _settle(self, state: StaticState, texts: int) -> None:
        """Move into a room, if there is memory for it."""
        cache, rooms = state.cache, state.rooms
        assert cache is not None
        assert rooms is not None
        assert isinstance(cache.length, int)
        state.texts, state.length = texts, cache.length
        size = self._size(state, cache, texts)
        room = rooms.find(size)
        if room is None:
            if not _fits(rooms, size, cache, self.model.device):
                state.plain = True
                return
            room = Room(self.model, size, cache)
        room.take(cache, state.mask, texts // size.copies)
        state.room, state.cache = room, room.cache
        if state.pending is not None:
            state.recall(state.pending)
        state.pending = state.mask = None

    def _size(self, state: StaticState, cache: Cache, texts: int) -> Size:
        copies = state.copies
        states = [layer.own for layer in cache.layers]
        device = self.model.device
        forked = state.moves and 1 < copies <= MOST
        if forked:
            one = Paths(1, copies, 1, device)
            forked = all(own.fixed(1, 1, one) is not None for own in states)
        source = 0 if cache[0].cross is None else rounded(cache[0].cross[0].shape[1])
        return Size(
            common(texts // copies), copies, forked, state.reach(self.model),
            state.mask is not None and not source, source, self.dtype,
        )  # fmt: skip


def common(rows: int) -> int:
    """The next number of rows that comes often: rows that nobody uses cost little, a graph for
    every number much."""
    step = 1 if rows <= 8 else 8 if rows <= 64 else 32
    return -(-rows // step) * step


def _fits(rooms: Rooms, size: Size, cache: Cache, device: torch.device) -> bool:
    """Whether there is memory for a room, if need be that of rooms that are kept."""
    if device.type != "cuda":
        return True
    need = _bytes(size, cache)
    if need > _free(device):
        rooms.drop()
        torch.cuda.empty_cache()
    return need <= _free(device)


def _bytes(size: Size, cache: Cache) -> int:
    """What layers that remember keys and values will take."""
    total = 0
    for layer in cache.layers:
        if isinstance(layer.own, Growing | Ring):
            keys = layer.own.held()[0]
            slots = size.room
            if isinstance(layer.own, Ring):
                slots = min(slots, layer.own.size + 1)
            token = keys.shape[1] * keys.shape[3] * keys.element_size()
            total += 2 * size.texts * slots * token
        if layer.cross is not None:
            keys = layer.cross[0]
            total += 2 * size.rows * size.source * keys.shape[2] * keys.element_size()
    return total


def _free(device: torch.device) -> int:
    """Bytes, those among them that torch holds and nobody uses."""
    free, _ = torch.cuda.mem_get_info(device)
    spare: int = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free) + spare
