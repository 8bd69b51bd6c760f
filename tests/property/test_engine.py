"""An engine under requests that come, go and make room for each other in any order.

Whatever happens, a request says what `generate` says to it alone, one that was cancelled a part of
it, no page is lost or owned by the wrong number of requests, and nobody waits for ever.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from allformer.generate.engine import Engine
from allformer.generate.reply import Reply
from tests.engines import Ask, ask, check_empty, writer

PAGE = 3
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"max_new_tokens": 11},
    {"eos_token_id": (9, 20, 22, 28), "max_new_tokens": 12},
    {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    {"do_sample": True, "top_k": 0, "temperature": 2.0},
)


@cache
def asked(kind: str, begin: int, width: int, how: int) -> Ask:
    """One of a few requests: three texts, cut at any length, and how to go on from them."""
    options = OPTIONS[how]
    whole = ask(writer(kind), 13, begin, draw=how if "top_k" in options else None, **options)
    return whole._replace(ids=whole.ids[:width])


@cache
def alone(kind: str, request: Ask) -> list[int]:
    said: list[int] = request.alone(writer(kind))[0].tolist()
    return said


class Life(RuleBasedStateMachine):
    """What may happen to an engine."""

    kind = "decoder modern"

    @initialize(pages=st.integers(9, 16), chunk=st.integers(1, 9), rows=st.integers(1, 5))
    def open(self, pages: int, chunk: int, rows: int) -> None:
        model = writer(self.kind)
        self.engine = Engine(model, pages=pages, page=PAGE, chunk=chunk, rows=rows)
        self.asked: list[tuple[Ask, Reply]] = []

    @rule(begin=st.integers(0, 2), width=st.integers(1, 13), how=st.integers(0, len(OPTIONS) - 1))
    def add(self, begin: int, width: int, how: int) -> None:
        request = asked(self.kind, begin, width, how)
        self.asked.append((request, request.put(self.engine)))

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            for reply, token in self.engine.step():
                assert reply.ids[-1] == token

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 100))
    def cancel(self, which: int) -> None:
        self.asked[which % len(self.asked)][1].cancel()

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 100))
    def wait(self, which: int) -> None:
        """For one of them; the others go on meanwhile."""
        self.asked[which % len(self.asked)][1].result()

    @invariant()
    def pages_are_owned(self) -> None:
        pool, running = self.engine.pool, self.engine.running
        owned = Counter(p for x in running for p in (*x.seat.pages, *x.seat.sources))
        assert [owned[page] for page in range(pool.pages + 1)] == pool._owners
        assert self.engine.free == pool.pages - len(owned)
        assert not any(x.seat.pages for x in self.engine.waiting)
        assert len(running) <= self.engine.rows

    @invariant()
    def nothing_else_is_said(self) -> None:
        for request, reply in self.asked:
            assert alone(self.kind, request)[: len(reply.ids)] == reply.ids

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.run()
        for request, reply in self.asked:
            assert reply.done
            assert reply.cancelled or reply.ids == alone(self.kind, request)
        check_empty(self.engine)


@pytest.mark.parametrize("kind", ["decoder modern", "seq2seq buckets"])
def test_any_life_of_an_engine(kind: str, thorough: bool) -> None:
    machine = type("Life", (Life,), {"kind": kind})
    examples, steps = (150, 60) if thorough else (12, 30)
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None),
    )
