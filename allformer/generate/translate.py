"""Text in, text out: one line for each line, in order.

translator = Translator(load_run("runs/multi30k"), beams=5)
translator("A man is riding a bicycle.")
for line in translator.lines(open("input.txt")): print(line)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch

from allformer.checkpoint.run import Run
from allformer.errors import LengthError
from allformer.generate.search import search

_CHUNK = 1024  # lines read ahead, so that lines of like length can go together


@dataclass
class Translator:
    """A run and how to search with it. `batch_tokens` bounds the padded source of one batch."""

    run: Run
    beams: int = 4
    length_penalty: float = 1.0
    max_new_tokens: int | None = None  # None: 2 × the source's length + 20
    batch_tokens: int = 2048
    dtype: torch.dtype | None = None

    def __call__(self, text: str) -> str:
        """Translate one sentence."""
        return next(self.lines([text]))

    def lines(self, lines: Iterable[str], number: int = 0) -> Iterator[str]:
        """Translate a stream: line n out belongs to line n in; an empty line stays empty.

        `number` is how many lines came before, for what is said of a line.
        """
        lines = iter(lines)
        while chunk := [line.strip() for line in islice(lines, _CHUNK)]:
            yield from self._chunk(chunk, number)
            number += len(chunk)

    def _chunk(self, texts: list[str], first: int) -> list[str]:
        tokenizer = self.run.tokenizer
        sources = [[*ids, tokenizer.eos_id] for ids in tokenizer.encode_batch(texts)]
        self._check_lengths(sources, first)
        out = [""] * len(texts)
        filled = [i for i, text in enumerate(texts) if text]
        for batch in self._batches(sorted(filled, key=lambda i: len(sources[i])), sources):
            found = self._search([sources[i] for i in batch], first, batch)
            for i, ids in zip(batch, found, strict=True):
                out[i] = tokenizer.decode(ids)
        return out

    def _batches(self, order: list[int], sources: list[list[int]]) -> Iterator[list[int]]:
        batch: list[int] = []
        for i in order:  # shortest first, so the newcomer is the longest
            if batch and (len(batch) + 1) * len(sources[i]) > self.batch_tokens:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def _search(self, rows: list[list[int]], first: int, lines: list[int]) -> list[list[int]]:
        model, tokenizer = self.run.model, self.run.tokenizer
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), tokenizer.pad_id)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        ids, limits = ids.to(model.device), [self._limit(len(row)) for row in rows]
        found = search(
            model,
            ids,
            ids != tokenizer.pad_id,
            max_new_tokens=limits,
            num_beams=self.beams,
            length_penalty=self.length_penalty,
            dtype=self.dtype,
        )
        for line, limit, ended in zip(lines, limits, found.ended, strict=True):
            if not ended:
                warnings.warn(
                    f"line {first + line + 1}: no end after {limit} tokens; the translation may "
                    f"be cut short; raise max_new_tokens",
                    stacklevel=2,
                )
        return found.ids

    def _limit(self, source: int) -> int:
        limit = self.max_new_tokens or 2 * source + 20
        longest = self.run.model.config.decoder.longest
        return limit if longest is None else min(limit, longest)

    def _check_lengths(self, sources: list[list[int]], first: int) -> None:
        longest = self.run.model.config.encoder.longest
        if longest is None:
            return  # sinusoids go on for ever
        for i, source in enumerate(sources):
            if len(source) > longest:
                raise LengthError(
                    f"line {first + i + 1} has {len(source)} tokens, but the model has learned "
                    f"{longest} positions; split the line"
                )
