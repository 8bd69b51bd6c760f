"""How the next tokens are chosen: the likeliest, drawn, or by beams.

    search = make_search(options, windows, longest, vocabulary, device)
    tokens, rows = search.take(logits)        # what each text says next, and whom it goes on from
    search.done()                             # have all ended? Asked of the device now and then
    search.texts()                            # of each window its texts, with their log-probability

Legend: A windows, G texts of each, R = A·G rows, V vocabulary, L tokens so far, C candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from allformer.generate.rows import steps_between
from allformer.speech.options import DecodingOptions

T = TypeVar("T")


class Text(NamedTuple):
    """Tokens without the end, and the sum of the log-probabilities of all of them and the end."""

    tokens: list[int]
    logprob: float


class Likeliest:
    """The likeliest token each time; at a temperature above 0, one that is drawn."""

    def __init__(
        self,
        options: DecodingOptions,
        windows: int,
        longest: int,
        end: int,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> None:
        self.copies, self.end = options.copies, end
        self.temperature, self.generator = options.temperature, generator
        rows = windows * self.copies
        self.said = torch.full((rows, longest), end, device=device)  # R L
        self.sums = torch.zeros(rows, device=device)
        self.over = torch.zeros(rows, dtype=torch.bool, device=device)
        self.count, self.every = 0, steps_between(device)

    def take(self, logits: Tensor) -> tuple[Tensor, None]:
        """logits R V → tokens R; nobody moves."""
        token = self._choose(logits)
        logprob = logits.log_softmax(-1).gather(1, token[:, None])[:, 0]
        self.sums += logprob.masked_fill(self.over, 0.0)
        token = token.masked_fill(self.over, self.end)
        self.said[:, self.count] = token
        self.over = token == self.end
        self.count += 1
        return token, None

    def _choose(self, logits: Tensor) -> Tensor:
        if self.temperature == 0:
            return logits.argmax(-1)
        chances = (logits / self.temperature).softmax(-1)
        return torch.multinomial(chances, 1, replacement=True, generator=self.generator)[:, 0]

    def done(self) -> bool:
        """Whether all have ended, as far as is known: those that have run on unseen."""
        return self.count % self.every == 0 and bool(self.over.all())

    def texts(self) -> list[list[Text]]:
        """Of each window, in order."""
        said, sums = self.said[:, : self.count].tolist(), self.sums.tolist()
        found = [Text(_until(row, self.end), x) for row, x in zip(said, sums, strict=True)]
        return _grouped(found, self.copies)


class Beams:
    """Beam search as openai-whisper's, step for step.

    Of each beam its G+1 likeliest tokens are candidates. In order of their sums, those that end are
    set aside, until G others are found, which go on. A window is finished when patience · G have
    been set aside; it goes on, unseen, while others are not.
    """

    def __init__(
        self, options: DecodingOptions, windows: int, longest: int, end: int, device: torch.device
    ) -> None:
        beams = options.copies
        patience = options.patience or 1.0
        self.copies, self.end, self.room = beams, end, round(beams * patience)
        self.said = torch.full((windows * beams, longest), end, device=device)  # R L
        self.sums = torch.zeros(windows, beams, device=device)
        # One place more than there is room for: what is too much is written there.
        self.ended = torch.full((windows, self.room + 1, longest), end, device=device)
        self.scores = torch.zeros(windows, self.room + 1, device=device)
        self.found = torch.zeros(windows, dtype=torch.long, device=device)
        self.first = torch.arange(windows, device=device)[:, None] * beams  # A 1: its first row
        # With less patience than beams those that still run are among the results: none may go on.
        self.count, self.every = 0, 1 if self.room < beams else steps_between(device)

    def take(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """logits R V → tokens R, and rows R: the beams that they go on from."""
        score, token, beam = self._candidates(logits)  # A C
        score, order = score.sort(dim=1, descending=True, stable=True)
        token, beam = token.gather(1, order), beam.gather(1, order)
        ends = token == self.end
        others = (~ends).cumsum(1)  # how many that go on stand up to here
        self._set_aside(ends & (others < self.copies), score, beam)
        # Exactly G: of each beam's G+1 candidates at most one ends.
        go = (~ends & (others <= self.copies)).to(torch.int8)
        picked = go.sort(dim=1, descending=True, stable=True).indices[:, : self.copies]
        self.sums, token = score.gather(1, picked), token.gather(1, picked)  # A G
        rows = (self.first + beam.gather(1, picked)).flatten()
        self.said = self.said.index_select(0, rows)
        self.said[:, self.count] = token.flatten()
        self.count += 1
        return token.flatten(), rows

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The sums, tokens and beams of those that may go on, A C."""
        beams = self.copies
        best = logits.log_softmax(-1).topk(beams + 1, dim=-1)
        score = self.sums.flatten()[:, None] + best.values  # R G+1
        score, token = (x.view(len(self.first), beams, -1) for x in (score, best.indices))
        beam = torch.arange(beams, device=score.device)[None, :, None].expand_as(score)
        if self.count == 0:  # all beams are alike
            score, token, beam = score[:, :1], token[:, :1], beam[:, :1]
        return score.flatten(1), token.flatten(1), beam.flatten(1)

    def _set_aside(self, ends: Tensor, score: Tensor, beam: Tensor) -> None:
        """Those that end (A C), the best first, as long as there is room."""
        if ends.device.type == "cpu" and not ends.any():  # elsewhere that would be a wait
            return
        slot = self.found[:, None] + ends.cumsum(1) - 1
        slot = slot.masked_fill(~ends, self.room).clamp_max(self.room)
        self.scores.scatter_(1, slot, score)
        said = self.said.index_select(0, (self.first + beam).flatten()).view(*beam.shape, -1)
        where = slot[..., None].expand_as(said)
        self.ended.scatter_(1, where, said)
        self.found = (self.found + ends.sum(1)).clamp_max(self.room)

    def done(self) -> bool:
        """Whether all windows have as many texts as patience asks for."""
        return self.count % self.every == 0 and bool((self.found >= self.room).all())

    def texts(self) -> list[list[Text]]:
        """Of each window those that ended; if fewer than the beams, the best that did not."""
        out = []
        running = _grouped(self.said[:, : self.count].tolist(), self.copies)
        for window, count in enumerate(self.found.tolist()):
            ended = self.ended[window, :count].tolist()
            scores = self.scores[window, :count].tolist()
            texts = [Text(_until(x, self.end), s) for x, s in zip(ended, scores, strict=True)]
            sums = self.sums[window].tolist()
            best = sorted(range(self.copies), key=lambda i: sums[i], reverse=True)
            missing = max(0, self.copies - count)
            texts += [Text(running[window][i], sums[i]) for i in best[:missing]]
            out.append(texts)
        return out


Search = Likeliest | Beams


def make_search(
    options: DecodingOptions,
    windows: int,
    longest: int,
    end: int,
    device: torch.device,
    generator: torch.Generator | None = None,
) -> Search:
    """The search that the options ask for."""
    if options.beam_size is not None:
        return Beams(options, windows, longest, end, device)
    return Likeliest(options, windows, longest, end, device, generator)


def best_text(texts: Sequence[Text], length_penalty: float | None) -> Text:
    """The text with the best log-probability for its length, or for ((5 + length) / 6)^penalty
    (Wu et al., 2016, equation 14)."""

    def score(text: Text) -> float:
        length = max(1, len(text.tokens))
        divisor = length if length_penalty is None else ((5 + length) / 6) ** length_penalty
        return text.logprob / divisor

    return max(texts, key=score)


def _until(tokens: list[int], end: int) -> list[int]:
    return tokens[: tokens.index(end)] if end in tokens else tokens


def _grouped(rows: Sequence[T], size: int) -> list[list[T]]:
    return [list(rows[i : i + size]) for i in range(0, len(rows), size)]
