"""What a search has to do, settled to the last detail, and what it gives back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from allformer.generate.processors import Processor, Suppress
from allformer.generate.rows import Rows, steps_between
from allformer.generate.stepper import State, Stepper
from allformer.generate.stop import Stop
from allformer.generate.warp import Warp


class Streamer(Protocol):
    """transformers' protocol: the prompt, then each new token of all rows, then the end."""

    def put(self, value: Tensor) -> None: ...
    def end(self) -> None: ...


@dataclass
class Speculation:
    """How guessing went (`generate/speculative.py`), by row of the batch."""

    rounds: int = 0  # steps of the model, the reading of the prompt included
    proposed: int = 0  # tokens that were guessed
    accepted: int = 0  # of those, what the model would have said itself

    @property
    def rate(self) -> float:
        """The share of guesses that were right; 0 where there was none."""
        return self.accepted / self.proposed if self.proposed else 0.0

    def add(self, proposed: int, accepted: int) -> None:
        """One round more."""
        self.rounds += 1
        self.proposed += proposed
        self.accepted += accepted

    def __iadd__(self, other: Speculation) -> Speculation:
        """Several calls together."""
        self.rounds += other.rounds
        self.proposed += other.proposed
        self.accepted += other.accepted
        return self

    def __str__(self) -> str:
        each = 1 + self.accepted / self.rounds if self.rounds else 0.0
        return (
            f"guessed {self.proposed:,} tokens, {self.rate:.0%} right · {self.rounds:,} steps of "
            f"{each:.2f} tokens"
        )


@dataclass
class Generated:
    """Result of `generate` with `return_dict_in_generate=True`, by transformers' names."""

    sequences: Tensor  # rows L
    sequences_scores: Tensor | None = None  # rows: of beams
    scores: tuple[Tensor, ...] | None = None  # of each step, processed: running rows V
    logits: tuple[Tensor, ...] | None = None  # of each step, as the model gave them
    beam_indices: Tensor | None = None  # which beam each token was chosen from; −1: none
    speculation: Speculation | None = None  # how many guessed tokens were right


@dataclass
class Request:
    """The work of one call. `limit` (rows, on the CPU) is how many new tokens each row may get."""

    limit: Tensor
    stop: Stop
    pad: int = 0
    processors: Sequence[Processor] = ()
    warps: Sequence[Warp] = ()
    renormalise: bool = False
    parts: bool = True  # whether rows that have ended may leave the others
    draw: Draw | None = None  # None: the likeliest
    copies: int = 1  # sequences that start from each row of the caller's: beams, or draws
    back: int = 1  # how many of a row's beams come back
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    streamer: Streamer | None = None
    keep_scores: bool = False
    keep_logits: bool = False
    keep_trail: bool = False

    def process(self, ids: Tensor, scores: Tensor, rows: Tensor, own: bool = False) -> Tensor:
        """All that is done to the scores before a token is taken; `own`: nobody else has them."""
        for process in self.processors:
            if own and isinstance(process, Suppress):  # those of others stand behind ours
                process.put(ids, scores)
            else:
                scores = process(ids, scores, rows)
        for warp in self.warps:
            scores = warp(scores)
        return scores.log_softmax(-1) if self.renormalise else scores

    def rows(self, limit: Tensor, device: torch.device, together: bool = False) -> Rows:
        """The rows of a search, none of which has said anything yet."""
        # Streamers and strings need the tokens on the host, and time is the host's.
        each = self.streamer is not None or self.stop.needs_host
        every = 1 if each else steps_between(device)
        if self.draw is not None and not self.draw.remember(every - 1, device):
            every = 1
        return Rows(limit, device, every, together, self.parts)


class Kept:
    """The scores of each step, if asked for, spread over all rows: −∞ for those that are over."""

    def __init__(self, request: Request, rows: Rows, beams: int = 1) -> None:
        self.rows, self.beams = rows, beams
        self.scores: list[Tensor] | None = [] if request.keep_scores else None
        self.logits: list[Tensor] | None = [] if request.keep_logits else None

    def add(self, logits: Tensor, scores: Tensor) -> None:
        """What `beams` sequences of each row in the batch were given."""
        for steps, new in ((self.logits, logits), (self.scores, scores)):
            if steps is not None:
                seen = new.view(-1, self.beams, new.shape[-1])  # B K V
                seen = seen.masked_fill(self.rows.over[:, None, None], float("-inf"))
                if not self.rows.whole:
                    spread = new.new_full((self.rows.total, *seen.shape[1:]), float("-inf"))
                    seen = spread.index_copy(0, self.rows.here, seen)
                steps.append(seen.flatten(0, 1))

    def put(self, found: Generated, steps: int) -> Generated:
        """Hand over what was kept of the first `steps`."""
        found.scores = None if self.scores is None else tuple(self.scores[:steps])
        found.logits = None if self.logits is None else tuple(self.logits[:steps])
        return found


class Draw:
    """Draws as `torch.multinomial` does, with the same random numbers.

    Noise is made for all rows, those that have left too, so that what a row draws does not depend
    on when its neighbours end. With the same seed transformers draws the same tokens.
    """

    def __init__(self, rows: int, generator: torch.Generator | None = None) -> None:
        self.rows, self.generator = rows, generator
        self.before: deque[Tensor] = deque(maxlen=0)  # the generator's states, the latest last

    def remember(self, draws: int, device: torch.device) -> bool:
        """From now on up to `draws` draws can be taken back; False: not on this device."""
        self.before = deque(maxlen=draws)
        if draws and self.generator is None:
            self.generator = _default_generator(device)
        return not draws or self.generator is not None

    def take_back(self, draws: int) -> None:
        """As if the last `draws` had never been: the next call draws what it would have drawn."""
        if draws:
            assert self.generator is not None
            self.generator.set_state(self.before[-draws])

    def __call__(self, scores: Tensor, alive: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """`scores` (running rows N) → `count` columns of each, no two alike, and how they ranked.

        The largest p/E with E exponential is a draw from p; the next one is a draw from the rest.
        """
        ranked = scores.softmax(-1) / self.noise(scores)[alive]
        rank, where = ranked.max(-1, keepdim=True) if count == 1 else ranked.topk(count)
        return where, rank

    def noise(self, scores: Tensor) -> Tensor:
        """E for each of all rows and each column of `scores` (… N): the next numbers there are."""
        if self.before.maxlen and self.generator is not None:
            self.before.append(self.generator.get_state())  # of the host: nothing is waited for
        noise = torch.empty(self.rows, scores.shape[-1], device=scores.device)
        return noise.exponential_(generator=self.generator).clamp_min_(_TINY)  # 0/0 is no number


_TINY = torch.finfo(torch.float32).tiny


def _default_generator(device: torch.device) -> torch.Generator | None:
    """The one that draws on a device where none is given, if it can be got at."""
    if device.type == "cpu":
        return torch.default_generator
    there = getattr(torch.get_device_module(device), "default_generators", ())
    at = 0 if device.index is None else device.index
    return there[at] if at < len(there) else None


def first_step(
    stepper: Stepper, state: State, ids: Tensor, copies: int, moves: bool = False
) -> Tensor:
    """The first logits. The prompt is read once for all copies of a row, which then part; `moves`:
    they are beams, which go on from one another."""
    logits = stepper.prefill(ids, state)
    if copies == 1:
        return logits
    rows = torch.arange(len(ids), device=ids.device).repeat_interleave(copies)
    state.spread(rows, copies, moves)
    return logits[rows]
