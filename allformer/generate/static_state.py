"""A state of the fast way: outside of a room while the prompt is read, then in one.

Legend: R texts (rows of the search), B rows that they come from, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from allformer.generate.room import AnyModel, Room, Size, common, rounded
from allformer.generate.rooms import Rooms, bytes_of, fits
from allformer.generate.stepper import State

# Steps that must be to come, or the plain way is taken: capturing costs about three steps by hand
# (one to record, the rest to instantiate and to wait for the device), and a replay saves half of
# one or more. So it has paid after six; ten more, for what ends before its limit.
WORTH = 16
SPARE = 1024  # tokens that room is made for at first; most texts end long before their limit


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
        if self.room is not None:  # the prompt was read there: out, and into one for so many
            self.plainly()
            self.plain = False
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
        room = self.rooms.find(size)
        spend = False
        if room is None:
            need = bytes_of(size, old.cache)
            spend = not fits(self.rooms, need, old.model.device)
            room = Room(old.model, size, old.cache)
        room.follow(old, texts, spend)
        if not spend:
            self.rooms.give(old)
        self.room, self.cache = room, room.cache

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
