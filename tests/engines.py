"""Requests for engines, and what `generate` says to each alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from allformer.config import LMHead
from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel
from allformer.generate.engine import Engine
from allformer.generate.generate import generate
from allformer.generate.reply import Reply
from tests.models import BOS, SPREAD, loud, tokens


@cache
def writer(kind: str, seed: int = 1) -> Any:
    """A loud model with an output matrix of its own: tied, it would say one token for ever."""
    tree: Any = SPREAD[kind]
    return loud(replace(tree, head=LMHead(tied=False)), seed)


class Ask(NamedTuple):
    """A request that can be made again: `seed` is that of its generator."""

    ids: tuple[int, ...]
    options: tuple[tuple[str, Any], ...]
    seed: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        dice = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        return dict(self.options) | ({} if dice is None else {"generator": dice})

    def put(self, engine: Engine, **more: Any) -> Reply:
        return engine.add(self.ids, **self.given, **more)

    def alone(self, model: Any, **more: Any) -> Tensor:
        """What `generate` says; every id of a prompt is read, as in an engine."""
        ids = torch.tensor([self.ids])
        found: Tensor = generate(model, ids, torch.ones_like(ids), **self.given, **more)
        return found


def ask(model: Any, width: int, seed: int = 0, *, draw: int | None = None, **options: Any) -> Ask:
    """A prompt of random ids; nothing ends it before `max_new_tokens` unless the options say so."""
    assert isinstance(model, DecoderOnlyModel | EncoderDecoderModel)
    vocab = model.config.reader.source.vocab
    ids = tuple(tokens(1, width, seed, vocab)[0].tolist())
    usual: dict[str, Any] = {"max_new_tokens": 7, "eos_token_id": None}
    if isinstance(model, EncoderDecoderModel):
        usual["decoder_start_token_id"] = BOS
    return Ask(ids, tuple((usual | options).items()), draw)


class Heard:
    """A processor that changes nothing and keeps the scores that it is shown."""

    def __init__(self) -> None:
        self.scores: list[Tensor] = []

    def __call__(self, ids: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
        self.scores.append(scores.clone())
        return scores


def check_alone(model: Any, asked: list[Ask], engine: Engine, **within: float) -> None:
    """All at once: the tokens of each are those of `generate`, and so are the scores."""
    heard = [Heard() for _ in asked]
    replies = [x.put(engine, processors=[ear]) for x, ear in zip(asked, heard, strict=True)]
    engine.run()
    for x, reply, ear in zip(asked, replies, heard, strict=True):
        hers = Heard()
        assert torch.equal(reply.result(), x.alone(model, processors=[hers]))
        assert len(ear.scores) == len(hers.scores)
        torch.testing.assert_close(torch.cat(ear.scores), torch.cat(hers.scores), **within)
    check_empty(engine)


def check_empty(engine: Engine) -> None:
    """Nobody has a page."""
    assert engine.idle
    assert engine.free == engine.pool.pages
