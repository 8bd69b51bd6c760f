"""The rows of a text while they are written, a token of each at a time.

Legend: R rows in all, B of them in the batch, L tokens so far, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.generate.request import Generated, Kept, Request


class Written:
    """What the rows of a prompt `ids`, each as often as the request has copies, have said so far.

    Rows that are done run on, unseen; without an end token they are seen until all are done, as in
    transformers.
    """

    def __init__(self, ids: Tensor, request: Request) -> None:
        self.request, self.prompt = request, ids.shape[1]
        limit = request.limit.repeat_interleave(request.copies)
        self.rows = request.rows(limit, ids.device, together=not request.stop.eos)
        self.out = ids.new_full((len(limit), self.prompt + self.rows.longest), request.pad)  # R L
        self.out[:, : self.prompt] = ids.repeat_interleave(request.copies, dim=0)
        self.ids = self.out[:, : self.prompt]  # B L: of those in the batch
        self.kept = Kept(request, self.rows)
        if request.streamer is not None:
            request.streamer.put(self.ids.cpu())

    @property
    def whose(self) -> Tensor:
        """B: the row of the caller's that each belongs to."""
        return self.rows.here // self.request.copies

    def say(self, token: Tensor, rank: Tensor, logits: Tensor, scores: Tensor) -> None:
        """The next `token` of each row (B), and a number that is NaN where a score was."""
        rows, length = self.rows, self.prompt + self.rows.steps + 1
        self.kept.add(logits, scores)
        if rows.whole:
            self.out[:, length - 1] = token
            self.ids = self.out[:, :length]
        else:
            self.out[rows.here, length - 1] = token
            self.ids = self.out[rows.here, :length]
        rows.end(self.request.stop(self.ids) | rows.at_limit(), rank)
        if self.request.streamer is not None:
            self.request.streamer.put(self._said()[:, -1].cpu())

    def keep(self, stay: Tensor) -> None:
        """Only these rows of the batch go on."""
        self.rows.keep(stay)
        self.ids = self.ids[stay]

    def finish(self, drawn: int) -> Generated:
        """What all rows have said, when all are done; `drawn`: for how many tokens chance was
        asked, of which those behind the end are taken back."""
        request, steps = self.request, int(self.rows.count.max())
        if request.streamer is not None:
            request.streamer.end()
        if request.draw is not None:
            request.draw.take_back(drawn - steps)
        return self.kept.put(Generated(self._said()[:, : self.prompt + steps]), steps)

    def _said(self) -> Tensor:
        """What was said so far, R L: behind the end of a row stands the filler."""
        columns = torch.arange(self.prompt + self.rows.steps, device=self.out.device)
        over = columns >= self.prompt + self.rows.count[:, None]
        return self.out[:, : len(columns)].masked_fill(over, self.request.pad)
