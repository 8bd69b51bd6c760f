"""Guesses at what a model will say: by a smaller model, or by what followed the same words before.

A guess costs little and binds nobody: the model reads all of it at once and keeps what it would
have said itself (`generate/speculative.py`).

Legend: B rows in the batch, L tokens so far, N guessed ones, S tokens to look in, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel
from allformer.errors import ConfigError
from allformer.generate.fixed import quickest
from allformer.generate.options import GenerationConfig
from allformer.generate.request import first_step
from allformer.generate.stepper import State
from allformer.generate.written import Written

AnyModel = EncoderDecoderModel | DecoderOnlyModel
NGRAM = 2  # tokens to find again, where nobody says how many: as in transformers
GUESSING = ("num_assistant_tokens", "num_assistant_tokens_schedule",
            "assistant_confidence_threshold")  # fmt: skip
FARTHEST = 64  # guesses at a time that a schedule goes up to by itself


class Draft(Protocol):
    """`most` is the largest number of guesses there will be at a time."""

    most: int

    def propose(self, written: Written, count: int, noise: Tensor | None) -> Tensor:
        """Up to `count` tokens that may follow, B N; none where nothing comes to mind.

        `noise` (B ≥count V) is what the model will draw each of them with, None where it takes the
        likeliest: who draws with the same noise is likelier to draw the same.
        """

    def told(self, right: int, guessed: int) -> None:
        """How many of the guesses stay."""

    def select(self, rows: Tensor) -> None:
        """Only these rows of the batch go on."""


class Ngrams:
    """What followed the last `size` tokens (or fewer, down to one) where they last stood.

    `source` (caller's rows S) is looked in too: what an encoder has read. Where the text ends
    before `count` tokens are found it is taken to go round: what repeats goes on repeating. Where
    all guesses were right there are twice as many the next time, and else one more than were right:
    a text that does not repeat is not made slower by long guesses.
    """

    def __init__(self, count: int, size: int = NGRAM, source: Tensor | None = None) -> None:
        self.most, self.size, self.source = count, size, source
        self.count = count  # now

    def propose(self, written: Written, count: int, noise: Tensor | None) -> Tensor:
        text = written.ids
        if self.source is not None:
            text = torch.cat([self.source[written.whose], text], dim=1)
        start, found = after_ngrams(text, self.size)
        if not bool(found.any()):
            return text[:, :0]
        turn = torch.arange(min(self.count, count), device=text.device)
        return text.gather(1, start[:, None] + turn % (text.shape[1] - start)[:, None])

    def told(self, right: int, guessed: int) -> None:
        if guessed:
            self.count = min(self.most, 2 * guessed if right == guessed else right + 1)

    def select(self, rows: Tensor) -> None:
        """Nothing is remembered."""


def after_ngrams(text: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Where to go on in each row of `text` (B S): behind the latest place that has its last `size`
    tokens, or else as many fewer as there must be; and whether there is such a place.

    `after_ngrams(torch.tensor([[5, 6, 7, 8, 5, 6]]), 2)` → 2, True
    """
    width = text.shape[1]
    start = text.new_full((len(text),), width - 1)  # where nothing is found: the last token
    found = torch.zeros_like(start, dtype=torch.bool)
    for n in range(min(size, width - 1), 0, -1):
        spans = text[:, :-1].unfold(1, n, 1)  # B W n: those that something follows
        alike = (spans == text[:, None, -n:]).all(-1)  # B W
        places = torch.arange(n, n + alike.shape[1], device=text.device)
        latest = (alike * places).amax(1)
        start = torch.where(found | (latest == 0), start, latest)
        found = found | (latest > 0)
    return start, found


class Smaller:
    """The guesses of a smaller model, which reads what was said and goes on from there.

    It stops where it is less sure of a guess than `confidence`. By "heuristic" it guesses two more
    when all were right, and else one less.
    """

    def __init__(
        self, model: AnyModel, count: int, confidence: float, schedule: str, dtype: Any = None
    ) -> None:
        self.model, self.count, self.confidence = model, count, confidence
        self.heuristic = schedule.startswith("heuristic")
        self.most = max(count, FARTHEST) if self.heuristic else count
        self.dtype = dtype
        self.room = model.config.decoder.longest
        self.read = 0  # columns of the text that its cache has

    def open(
        self,
        prompt: int,
        ahead: int,
        copies: int,
        source: Tensor,
        mask: Tensor | None,
        **inputs: Any,
    ) -> None:
        """Before a prompt of so many tokens is read, behind which there may come `ahead`, in so
        many copies; the rest is for a stepper's `open`."""
        where = self.model.device
        # Two: its last guess, which it has not read, and what the model said behind that.
        self.stepper = quickest(self.model, prompt, ahead, 2, copies, self.dtype)
        inputs = {name: x.to(where) for name, x in inputs.items()}
        mask = None if mask is None else mask.to(where)
        self.state: State = self.stepper.open(source.to(where), mask, **inputs)
        assert self.state.cache is not None
        self.state.cache.spare(self.most + 1)

    def propose(self, written: Written, count: int, noise: Tensor | None) -> Tensor:
        request, ids = written.request, written.ids
        length = ids.shape[1]
        count = min(count, self.count, self._room(length))
        if count < 1:
            return ids[:, :0]
        logits = self._catch_up(written)
        for i in range(count):
            scores = request.process(ids, logits.to(ids.device), written.whose)
            p = scores.softmax(-1)
            token = (p if noise is None else p / noise[:, i]).argmax(-1, keepdim=True)  # B 1
            ids = torch.cat([ids, token], dim=1)
            if i + 1 == count or self._unsure(p.gather(1, token)[:, 0], written):
                break
            logits = self._step(token)
        self.read = ids.shape[1] - 1
        return ids[:, length:]

    def _room(self, length: int) -> int:
        """How many it has positions for, behind so many tokens."""
        return self.most if self.room is None else self.room - length + 1

    def _catch_up(self, written: Written) -> Tensor:
        """Read what was said meanwhile: B V."""
        ids = written.ids.to(self.model.device)
        if not self.read:
            # Rows that have left by now are read too, once, and go.
            whole = written.out[:: written.request.copies, : written.prompt].to(self.model.device)
            first_step(self.stepper, self.state, whole, written.request.copies)
            if not written.rows.whole:
                self.state.select(written.rows.here.to(self.model.device), sources=True)
            self.read = written.prompt
        return self._step(ids[:, self.read :])

    def _step(self, tokens: Tensor) -> Tensor:
        return self.stepper.step(tokens.to(self.model.device), self.state)

    def _unsure(self, p: Tensor, written: Written) -> bool:
        if not self.confidence:
            return False
        least = p.masked_fill(written.rows.over, 1.0).min()
        return bool(least < self.confidence)

    def told(self, right: int, guessed: int) -> None:
        if self.read and guessed > right + 1:  # its last guess it has not read itself
            wrong = guessed - 1 - right
            self.stepper.forget(wrong, self.state)
            self.read -= wrong
        if self.heuristic and guessed:
            more = self.count + 2 if right == guessed else self.count - 1
            self.count = min(max(1, more), self.most)

    def select(self, rows: Tensor) -> None:
        if self.read:
            self.state.select(rows.to(self.model.device), sources=True)


def check_forgets(model: AnyModel, name: str) -> None:
    """Refuse a model whose layers cannot be taken back to before a guess."""
    fresh = model.new_cache()
    if not fresh.cuts(0):
        kinds = {type(layer.own).__name__ for layer in fresh.layers if not layer.own.cuts(0)}
        raise ConfigError(
            f"{name}: what {' and '.join(sorted(kinds))} has read cannot be taken back, so nothing "
            f"can be tried out; leave it out, or use a model with full attention or windows"
        )


def make_draft(
    model: AnyModel,
    assistant: AnyModel | None,
    g: GenerationConfig,
    source: Tensor | None,
    dtype: torch.dtype | None = None,
) -> Ngrams | Smaller | None:
    """Who guesses, as settled options say, if anybody is asked to.

    `source` is what an encoder has read, where its tokens are the decoder's.
    """
    if assistant is not None:
        _check_assistant(model, assistant)
        check_forgets(model, "assistant_model")
        check_forgets(assistant, "assistant_model")
        count, confidence = g.num_assistant_tokens or 1, g.assistant_confidence_threshold or 0.0
        schedule = g.num_assistant_tokens_schedule or "constant"
        return Smaller(assistant, count, confidence, schedule, dtype)
    if g.prompt_lookup_num_tokens:
        check_forgets(model, "prompt_lookup_num_tokens")
        return Ngrams(g.prompt_lookup_num_tokens, g.max_matching_ngram_size or NGRAM, source)
    return None


def own_guessing(assistant: AnyModel) -> list[GenerationConfig]:
    """What the checkpoint of an assistant says of how it is used, as transformers has it there."""
    told = assistant.provenance.generation
    if told is None:
        return []
    said = told.set() if isinstance(told, GenerationConfig) else told
    return [GenerationConfig.from_dict({name: said[name] for name in GUESSING if name in said})]


def _check_assistant(model: AnyModel, assistant: AnyModel) -> None:
    kinds = (EncoderDecoderModel, DecoderOnlyModel)
    if not any(isinstance(model, kind) and isinstance(assistant, kind) for kind in kinds):
        raise ConfigError(
            f"assistant_model={type(assistant).__name__}, but the model is a "
            f"{type(model).__name__}; use a smaller one of the same kind"
        )
    mine, its = (each.config.decoder.source.vocab for each in (model, assistant))
    if mine != its:
        raise ConfigError(
            f"assistant_model has a vocabulary of {its}, the model one of {mine}; use a smaller "
            f"model with the same tokeniser"
        )
