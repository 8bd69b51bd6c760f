"""One request's side of an engine: its tokens as they are made, and how it stands.

reply = engine.add(ids, max_new_tokens=50)
for token in reply:                      # the engine steps while one waits; others go on too
    …
reply.result()                           # prompt and answer, as `generate` gives them
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from allformer.generate.request import Request


class Worker(Protocol):
    """What makes the tokens: an `Engine`."""

    def step(self) -> object: ...
    def cancel(self, reply: Reply) -> None: ...


class Reply:
    """`ids` are the prompt's and those said so far, `prompt` is how many came first. When `done`,
    it has ended by itself, was `cancelled`, or has failed: then `error` says why."""

    def __init__(
        self, engine: Worker, number: int, ids: list[int], request: Request, source: tuple[int, ...]
    ) -> None:
        self.engine, self.number = engine, number  # by which they came
        self.ids, self.prompt = ids, len(ids)
        self.request, self.limit = request, int(request.limit)
        self.source = source  # what an encoder reads
        self.done = self.cancelled = False
        self.error: Exception | None = None
        self.seat = Seat()

    def __repr__(self) -> str:
        how = "cancelled" if self.cancelled else "failed" if self.error else "done"
        how = how if self.done else "running" if self.seat.pages else "waiting"
        return f"<Reply {self.number}: {how}, {len(self.new)} of {self.limit} tokens>"

    @property
    def new(self) -> list[int]:
        """The tokens said so far."""
        return self.ids[self.prompt :]

    def __iter__(self) -> Iterator[int]:
        """Each new token once it is there; an error of this request is raised here."""
        at = self.prompt
        while True:
            while at < len(self.ids):
                yield self.ids[at]
                at += 1
            if self.done:
                break
            self.engine.step()
        if self.error is not None:
            raise self.error

    def result(self) -> Tensor:
        """Wait for the end: prompt (or start token) and answer, 1 L, on the CPU; of one that was
        cancelled, what there is."""
        for _ in self:
            pass
        return torch.tensor([self.ids])

    def cancel(self) -> None:
        """Say no more; its memory is free at once."""
        self.engine.cancel(self)

    def say(self, token: int) -> bool:
        """The engine's: one token more; True: it was the last."""
        self.ids.append(token)
        stop = self.request.stop
        return len(self.ids) - self.prompt >= self.limit or token in stop.eos or stop.late

    def end(self, error: Exception | None = None) -> None:
        """The engine's: no more will come."""
        self.done, self.error = True, error


class Seat:
    """What a request has in an engine while it runs: pages, and how much of its text is in them."""

    def __init__(self) -> None:
        self.pages: list[int] = []
        self.read = 0  # tokens whose keys and values are there
        self.told = 0  # pages that others may find
        self.node: Hashable = None  # of the last of those
        self.sources: list[int] = []  # pages for the encoder's keys and values
        self.encoded = False  # they are written
