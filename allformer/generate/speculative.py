"""Several tokens in one step: a guess is read at once, and what the model would have said stays.

    generate(model, ids, prompt_lookup_num_tokens=10)         # n-grams of the text itself
    generate(model, ids, assistant_model=small)               # a smaller model guesses

A model that reads N guessed tokens says what follows each of them for little more than the price of
one, since its weights are read once. Up to the first guess that differs from the model's own choice
all are right, and the choice there comes on top: between 1 and N + 1 tokens a round (Leviathan et
al., 2023).

The choice is the model's own in every case, so that the tokens are those of `decode`, drawn ones
too: the noise that picks the i-th token is the same whether that token was guessed or not, and a
smaller model guesses with the very noise that will judge it. Equal distributions then always agree,
and others with a probability of at least (1 − d)/(1 + d), d their total variation (Daliri et al.,
2024); the best that any rule has is 1 − d, which depends on the guesser.

Rows of a batch stay side by side: a round keeps what is right in all of them.

Legend: R rows in all, B of them in the batch, L tokens so far, N guessed ones, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from allformer.generate.drafts import Draft
from allformer.generate.request import Draw, Generated, Request, Speculation, first_step
from allformer.generate.stepper import PlainStepper, State
from allformer.generate.written import Written


@dataclass
class Choice:
    """What the model would say after each of N + 1 tokens; `rank` is NaN where a score is."""

    tokens: Tensor  # B N+1
    rank: Tensor  # B N+1
    scores: Tensor  # B N+1 V


def speculate(
    stepper: PlainStepper, state: State, ids: Tensor, request: Request, draft: Draft
) -> Generated:
    """Continue each row of `ids` until it is done, as `decode` does, with the guesses of `draft`.

    The state can be taken back (`drafts.check_forgets`).
    """
    assert state.cache is not None
    state.cache.spare(draft.most + 1)
    written = Written(ids, request)
    rows, count = written.rows, Speculation()
    rows.every = 1  # how much of a guess holds is known on the host
    logits = first_step(stepper, state, ids, request.copies)[:, None]  # B 1 V
    noise = Noise(request.draw, logits, draft.most)
    guess = written.ids[:, :0]
    while True:
        choice = choose(written, logits, guess, noise.ahead(logits.shape[1], rows.here))
        right = _right(choice.tokens, guess, rows.over)
        for i in range(right + 1):
            said = (choice.tokens[:, i], choice.rank[:, i], logits[:, i], choice.scores[:, i])
            written.say(*said)
            if request.streamer is not None and bool(rows.over.all()):
                break  # what follows is not for its ears
        noise.use(right + 1)
        draft.told(right, guess.shape[1])
        count.add(guess.shape[1], right)
        parting = rows.look()
        if rows.ended:
            found = written.finish(noise.drawn)
            found.speculation = count
            return found
        if guess.shape[1] > right:
            stepper.forget(guess.shape[1] - right, state)
        if parting is not None:
            written.keep(parting.stay)
            state.select(parting.stay, sources=True)
            draft.select(parting.stay)
        most = rows.longest - rows.steps - 1  # the model's own choice is the last that may come
        guess = written.ids[:, :0]
        if most:
            guess = draft.propose(written, most, noise.ahead(min(most, draft.most), rows.here))
        logits = stepper.verify(torch.cat([written.ids[:, -1:], guess], dim=1), state)  # B N+1 V


def choose(written: Written, logits: Tensor, guess: Tensor, noise: Tensor | None) -> Choice:
    """The model's own tokens, by its `logits` B N+1 V after the text and each guessed token."""
    request, length = written.request, written.ids.shape[1]
    if request.processors:  # each sees the text up to its own place
        text = torch.cat([written.ids, guess], dim=1)
        steps = [
            request.process(text[:, : length + i], logits[:, i], written.whose)
            for i in range(logits.shape[1])
        ]
        scores = torch.stack(steps, dim=1)
    else:
        scores = request.process(written.ids, logits.flatten(0, 1), written.whose).view_as(logits)
    rank, tokens = (scores if noise is None else scores.softmax(-1) / noise).max(-1)
    return Choice(tokens, rank, scores)


def _right(tokens: Tensor, guess: Tensor, over: Tensor) -> int:
    """How many of the guesses are what every row would have said that is not over."""
    same = (tokens[:, :-1] == guess) | over[:, None]
    return int(same.all(0).long().cumprod(0).sum())


class Noise:
    """What tokens are drawn with, made in the order in which they are said, each once.

    `most`: so many guesses at a time there are at most.
    """

    def __init__(self, draw: Draw | None, like: Tensor, most: int) -> None:
        self.draw, self.like, self.drawn = draw, like, 0
        self.queue: list[Tensor] = []  # R V, of the next tokens
        if draw is not None:
            draw.remember(2 * (most + 1), like.device)  # behind the end, and ahead of it

    def ahead(self, count: int, here: Tensor) -> Tensor | None:
        """Of the next `count` tokens, for the rows `here`: B count V; None: nothing is drawn."""
        if self.draw is None:
            return None
        while len(self.queue) < count:
            self.queue.append(self.draw.noise(self.like))
            self.drawn += 1
        return torch.stack([each[here] for each in self.queue[:count]], dim=1)

    def use(self, count: int) -> None:
        """So many tokens are said."""
        del self.queue[:count]
