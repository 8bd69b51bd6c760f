"""The fast way through a search on a GPU: keys and values in memory of a fixed size, steps as CUDA
graphs. `stepper_for` takes it without being asked; what cannot be captured goes the plain way.

    stepper = static_stepper(model)                # None: `unfit(model)` says why

The prompt is read as on the plain way, and at the first step what is remembered moves into a
`Room`; short prompts of decoders are read there (`Room.read`). The first steps are taken by hand,
then one is captured and replayed; prompts likewise. Nothing in a step waits for the device. Rows
that leave are not looked at any more, and where no more than half stay, they go on in a smaller
room. Beams share what they write (`core/states/paths.py`): no key is copied.

The numbers are those of the plain way up to rounding, for the sums of an attention over a fixed
memory are taken in another order: greedy search takes another token only where two scores lie
closer than that. By hand and replayed they are the same to the last bit, so that a call repeated
says the same.

Legend: R texts (rows of the search), V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from allformer.core.fused import capturing
from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel
from allformer.core.states import Cache, Growing, Paths
from allformer.core.states.paths import MOST
from allformer.core.taps import listening
from allformer.core.walk import tensors, walk
from allformer.generate.room import AnyModel, Room, Size, common, rounded
from allformer.generate.rooms import Rooms, bytes_of, fits, forget
from allformer.generate.static_state import StaticState
from allformer.generate.stepper import FASTER, DecoderStepper, EncoderDecoderStepper, State

DEVICES = ("cuda",)  # where there are graphs; tests add the CPU
# Tokens of prompts that are read in a room: up to about so many, a model of 7B parameters takes
# longer to launch its kernels than to run them. Beyond, attention serves that needs no mask.
SHORT = 1024


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
    if torch.is_autocast_enabled(model.device.type):
        return "autocast is on, which a graph would not ask again"
    if listening():
        return "somebody listens to the values inside"
    return unseen(model) or _of_layers(model) or Rooms.of(model).refused


def unseen(model: AnyModel) -> str | None:
    """What a graph would not see: work of Python that is hung onto the layers."""
    if model.extended:
        return "keys, vectors or sub-layers are learned beside the model's own"
    device = model.device
    for name, part in walk(model):
        if part._forward_hooks or part._forward_pre_hooks:
            return f"{name or 'the model'} has a hook, which a graph would not call"
        if getattr(part, "delta", None) is not None:
            return f"{name} has a delta, whose settings a graph would not see"
        if any(type(x) not in (Tensor, nn.Parameter) or x.device != device for x in tensors(part)):
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
        """The prompt: a short one in a room, where that is all graphs too; else as always."""
        assert isinstance(state, StaticState)
        told = ids[:, state.skip :]
        if told.numel() > SHORT:  # kernels are worth their start, though nobody learns
            with capturing():
                return self.plain.prefill(ids, state)
        if state.settles and self._opens(state):
            room = self._room_for(state, told)
            if room is not None:
                logits = room.read(state.unread(told), state.mask)
                state.room, state.cache, state.mask = room, room.cache, None
                return logits
        return self.plain.prefill(ids, state)

    def _opens(self, state: StaticState) -> bool:
        """Whether nothing is read yet, and a prompt can be read in a room: layers that remember all
        keys can have read too much, for nobody looks at it."""
        cache = state.cache
        fresh = cache is not None and isinstance(cache.length, int) and not cache.length
        own = [] if cache is None else [layer.own for layer in cache.layers]
        alone = isinstance(self.model, DecoderOnlyModel)
        return fresh and alone and all(type(each) is Growing for each in own)

    def _room_for(self, state: StaticState, ids: Tensor) -> Room | None:
        """A room for prompts that are not read yet; None: there is no memory for it."""
        cache, rooms = state.cache, state.rooms
        assert cache is not None
        assert rooms is not None
        state.texts, state.length = ids.shape
        reach, masked = state.reach(self.model), state.mask is not None
        size = Size(common(len(ids)), 1, False, reach, masked, 0, self.dtype)
        room = rooms.find(size)
        if room is None and fits(rooms, self._bytes(size), self.model.device):
            room = Room(self.model, size, cache)
        return room

    def _bytes(self, size: Size) -> int:
        layers: Any = self.model.decoder.layers
        mixers = [layers[i].attention.mixer for i in self.model.decoder.order]
        token: int = 2 * sum(mixer.groups * mixer.size for mixer in mixers)
        dtype = size.dtype or next(self.model.parameters()).dtype
        return size.texts * size.room * token * dtype.itemsize

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
            if not fits(rooms, bytes_of(size, cache), self.model.device):
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
