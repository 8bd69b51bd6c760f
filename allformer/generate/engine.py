"""Continuous batching: requests come and go, each with its own options, and share every step.

    engine = Engine(model, memory=8 << 30)
    one = engine.add(ids, max_new_tokens=200)
    two = engine.add(other, do_sample=True, top_p=0.9, generator=g)
    for token in one: …                        # tokens as they are made; `two` goes on meanwhile
    engine.run()                               # or: until all are done
    two.result()                               # the tokens that `generate` gives

A step reads one token of each text that is being written, and up to `chunk` tokens of prompts, so
that a long prompt does not hold up the others. Keys and values lie in pages. Texts that begin alike
have them together, also after the first has gone. When there are no more, whoever came last waits,
and is read again when there is room: nothing that it said is lost.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import count
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel
from allformer.core.states.pool import Pool
from allformer.errors import ConfigError
from allformer.generate.admit import Work, admit
from allformer.generate.line import Line
from allformer.generate.options import GenerationConfig
from allformer.generate.pick import pick
from allformer.generate.processors import Processor
from allformer.generate.reader import Reader, shapes
from allformer.generate.reply import Reply, Seat
from allformer.generate.stepper import check_dtype

_by_number = attrgetter("number")
_SHARE, _USUAL = 0.8, 1 << 30  # of a GPU's free memory; bytes elsewhere
_SOURCE, _NONE = "source", -1  # a page of the encoder's, and no id


class Engine:
    """`memory` in bytes or `pages` is what keys and values may take (default: 80 % of what is free
    on a GPU, 1 GiB on a CPU); `page` tokens stand in a page. At most `rows` requests run at a time,
    and at most `chunk` tokens of prompts are read in a step. `dtype` is what is computed in.

    One thread calls it, and the model stays as it is while it lives.
    """

    def __init__(
        self,
        model: DecoderOnlyModel | EncoderDecoderModel,
        *,
        memory: int | None = None,
        pages: int | None = None,
        page: int = 16,
        rows: int = 256,
        chunk: int = 512,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check(pages=pages, memory=memory, page=page, rows=rows, chunk=chunk)
        check_dtype(dtype)
        if pages is None:
            pages = _pages(model, memory, page, dtype)
        elif memory is not None:
            raise ConfigError(f"Engine.pages={pages} and memory={memory} say the same; give one")
        self.model, self.rows, self.chunk = model, rows, chunk
        self.pool = Pool(pages, page)
        self.reader = Reader(model, pages, page, dtype)
        self.waiting: list[Reply] = []  # in the order in which they came
        self.running: list[Reply] = []
        self.preempted = 0  # how often a request had to make room
        self.reused = 0  # tokens that were found and not read again
        self._numbers = count()
        self._busy = False  # in a step

    def add(
        self,
        ids: Sequence[int] | Tensor,
        generation: GenerationConfig | None = None,
        *,
        generator: torch.Generator | None = None,
        decoder_input_ids: Sequence[int] | Tensor | None = None,
        processors: Sequence[Processor] = (),
        **options: Any,
    ) -> Reply:
        """A request: `engine.add([1, 5, 7], max_new_tokens=20)`. It is read when a step has room.

        `ids` are one prompt, without padding, or what an encoder reads. Options and the rest are
        those of `generate`, but for beams and what comes back besides tokens; `stop_strings` are
        the caller's, who has the text, and cancels. What cannot work is refused here.
        """
        work = admit(self.model, ids, generation, generator, decoder_input_ids, processors, options)
        new = int(work.request.limit)
        # The last token is said, not read.
        need = self._count(len(work.ids) + new - 1) + self._count(len(work.source))
        if need > self.pool.pages:
            raise ConfigError(
                f"{_text(work)} and max_new_tokens={new} need {need} pages of "
                f"{self.pool.size} tokens, but Engine.pages={self.pool.pages}; ask for fewer "
                f"tokens, or give the engine more memory"
            )
        reply = Reply(self, next(self._numbers), work.ids, work.request, work.source)
        self.waiting.append(reply)
        return reply

    def cancel(self, reply: Reply) -> None:
        """Say no more to this request; its pages are free at once. One that is done stays so."""
        if reply.engine is not self:
            raise ConfigError(f"{reply} is another engine's; call reply.cancel()")
        if not reply.done:
            reply.cancelled = True
            self._end(reply)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Do now what the first steps of each size would do while requests wait: on a GPU compile
        kernels, and capture the graphs. Before the first request, or between two steps."""
        self._enter("warm_up")
        try:
            self.reader.warm_up(self.rows, self.chunk)
        finally:
            self._busy = False

    @property
    def idle(self) -> bool:
        """Whether nobody waits or runs."""
        return not self.waiting and not self.running

    @property
    def free(self) -> int:
        """Pages that can be had at once."""
        return self.pool.available

    def run(self) -> None:
        """Steps until all requests are done. A request's error is raised where its tokens are asked
        for."""
        while not self.idle:
            self.step()

    def stream(self) -> Iterator[tuple[Reply, int]]:
        """Every token of every request as it is made, until all are done; of one that is cancelled
        meanwhile no more."""
        while not self.idle:
            for reply, token in self.step():
                if not reply.cancelled:
                    yield reply, token

    @torch.inference_mode()
    def step(self) -> list[tuple[Reply, int]]:
        """One step for all: the tokens that were made in it.

        One that is broken off (Ctrl-C, no memory) loses no request: they are read again.
        """
        self._enter("step")
        try:
            self._seat_waiting()
            # Both are on their way before anything is waited for: while a GPU goes on with texts,
            # the host prepares what is to be read of prompts.
            texts = self._read(self._texts(), self.reader.step)
            prompts = self._read(self._prompts(), self.reader.read)
            return self._answer([x for x in (texts, prompts) if x is not None])
        except BaseException:
            for reply in list(self.running):  # what its pages hold may be half a step's
                self._preempt(reply)
            raise
        finally:
            self._busy = False

    def _enter(self, name: str) -> None:
        """One at a time."""
        if self._busy:
            raise ConfigError(
                f"Engine.{name}() was called inside a step, by a processor or from another thread; "
                f"let one thread call it, and read replies between steps"
            )
        self._busy = True

    def _prompts(self) -> list[tuple[Reply, int]]:
        """Who has more than one token to read, oldest first, and how many of them now."""
        left, found = self.chunk, []
        for reply in self.running:
            unread = len(reply.ids) - reply.seat.read
            if unread > 1 and left:
                found.append((reply, min(unread, left)))
                left -= found[-1][1]
        return found

    def _texts(self) -> list[tuple[Reply, int]]:
        """Who has one token to read, with a page for it: the youngest make room for the others."""
        for reply in list(self.running):
            seat = reply.seat  # of one that has been sent away meanwhile it is another, and empty
            if seat.read + 1 != len(reply.ids):
                continue
            while seat.read == len(seat.pages) * self.pool.size and reply in self.running:
                if self.pool.available:
                    seat.pages.append(self.pool.take())
                else:
                    self._preempt(max(self.running, key=_by_number))
                    self.preempted += 1
        return [(x, 1) for x in self.running if x.seat.read + 1 == len(x.ids)]

    def _read(
        self, work: list[tuple[Reply, int]], read: Callable[[list[Line]], Tensor]
    ) -> tuple[list[Reply], Tensor] | None:
        """Read so many tokens of each; those who have no more to read, and their logits."""
        if not work:
            return None
        lines = []
        for reply, new in work:
            seat = reply.seat
            ids = reply.ids[seat.read : seat.read + new]
            lines.append(Line(ids, seat.read, seat.pages, seat.sources, len(reply.source)))
        logits = read(lines)
        for reply, new in work:
            reply.seat.read += new
            self._tell(reply)
        ready = [i for i, (x, _) in enumerate(work) if x.seat.read == len(x.ids)]
        if not ready:
            return None
        return [work[i][0] for i in ready], logits if len(ready) == len(work) else logits[ready]

    def _answer(self, asked: list[tuple[list[Reply], Tensor]]) -> list[tuple[Reply, int]]:
        """Let them say a token each; an error ends the request whose it is."""
        if not asked:
            return []
        made = []
        replies = [reply for some, _ in asked for reply in some]
        logits = asked[0][1] if len(asked) == 1 else torch.cat([x for _, x in asked])
        for reply, found in zip(replies, pick(logits, replies), strict=True):
            if reply.done:  # cancelled by a processor of its own
                continue
            if found.error is not None:
                self._end(reply, found.error)
                continue
            made.append((reply, found.token))
            if reply.say(found.token):
                self._end(reply)
        return made

    # --- seats and pages --------------------------------------------------------------------------

    def _count(self, tokens: int) -> int:
        """The pages that so many tokens need."""
        return -(-tokens // self.pool.size)

    def _seat_waiting(self) -> None:
        """Let in who waits, in order, as long as there is room for all that they have to read."""
        unread: list[Reply] = []  # sources that no page holds
        while self.waiting and len(self.running) < self.rows and self._seat(self.waiting[0]):
            reply = self.waiting.pop(0)
            self.running.append(reply)
            if reply.source and not reply.seat.encoded:
                unread.append(reply)
        if unread:
            self.reader.encode([x.source for x in unread], [x.seat.sources for x in unread])
        for reply in unread:
            reply.seat.encoded = True
            node: Hashable = _SOURCE, reply.source
            for page, ids in zip(reply.seat.sources, self._source(reply), strict=True):
                node = self.pool.tell(page, node, ids)

    def _seat(self, reply: Reply) -> bool:
        """Pages for a request, as far as possible those that hold its beginning already."""
        seat, pool = Seat(), self.pool
        seat.pages, seat.node = pool.find(reply.source, reply.ids[:-1])
        source = self._source(reply)
        seat.sources, _ = pool.find((_SOURCE, reply.source), [i for page in source for i in page])
        seat.encoded = len(seat.sources) == len(source)
        own, across = self._count(len(reply.ids)) - len(seat.pages), len(source) - len(seat.sources)
        # With others at work one page more: else the first to go on would send it away again.
        if pool.available < own + across + bool(self.running):
            pool.release(seat.pages)
            pool.release(seat.sources)
            return False
        seat.told = len(seat.pages)
        seat.read = seat.told * pool.size
        self.reused += seat.read
        seat.pages += [pool.take() for _ in range(own)]
        seat.sources += [pool.take() for _ in range(across)]
        reply.seat = seat
        return True

    def _source(self, reply: Reply) -> list[tuple[int, ...]]:
        """What an encoder reads by pages; the last one is filled up, for nothing more comes."""
        size, ids = self.pool.size, reply.source
        filled = (*ids, *[_NONE] * (-len(ids) % size))
        return [filled[at : at + size] for at in range(0, len(filled), size)]

    def _tell(self, reply: Reply) -> None:
        """Pages that have become full can be found by others."""
        seat, size = reply.seat, self.pool.size
        while (seat.told + 1) * size <= seat.read:
            ids = reply.ids[seat.told * size : (seat.told + 1) * size]
            seat.node = self.pool.tell(seat.pages[seat.told], seat.node, ids)
            seat.told += 1

    def _leave(self, reply: Reply) -> None:
        """Give back all pages."""
        self.pool.release(reply.seat.pages)
        self.pool.release(reply.seat.sources)
        reply.seat = Seat()

    def _preempt(self, reply: Reply) -> None:
        """Back to those who wait, at its place among them."""
        self.running.remove(reply)
        self._leave(reply)
        insort(self.waiting, reply, key=_by_number)

    def _end(self, reply: Reply, error: Exception | None = None) -> None:
        (self.running if reply in self.running else self.waiting).remove(reply)
        self._leave(reply)
        reply.end(error)


def _check(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"Engine.{name}={value!r} must be a whole number; give one")
        if value < 1 and name != "memory":  # of which a page takes so much
            raise ConfigError(f"Engine.{name}={value} must be at least 1; try 16 or more")


def _text(work: Work) -> str:
    source = f"a source of {len(work.source)} tokens, " if work.source else ""
    return f"{source}a prompt of {len(work.ids)} tokens"


def _pages(
    model: DecoderOnlyModel | EncoderDecoderModel,
    memory: int | None,
    page: int,
    dtype: torch.dtype | None,
) -> int:
    """How many pages that memory holds."""
    width = sum(heads * size for heads, size in shapes(model))  # refuses what pages do not serve
    size = 2 * page * (dtype or next(model.parameters()).dtype).itemsize * width
    if memory is None and model.device.type == "cuda":
        memory = int(_SHARE * torch.cuda.mem_get_info(model.device)[0])
    memory = _USUAL if memory is None else memory
    if memory < 2 * size:
        raise ConfigError(
            f"Engine.memory={memory} holds no page of {page} tokens, which takes {size} bytes; "
            f"try {100 * size}"
        )
    return memory // size - 1  # one is nobody's
