"""A search by itself, against brute force over a tiny vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from allformer.auditor.report import Finding


def search(module: Any, state: Any) -> Iterator[Finding]:
    """With all beams of a tiny vocabulary, beam search is brute force; with one, greedy."""
    vocab, end, longest = 4, 3, 4
    for seed in range(6):
        scores = _Scores(vocab, seed)
        for beams, want in ((1, _greedy(scores, end, longest)),
                            (vocab**longest, _brute(scores, vocab, end, longest))):  # fmt: skip
            got = [
                int(i) for i in torch.as_tensor(module(scores, 0, end, beams, longest)).flatten()
            ]
            got = got[1:] if got[:1] == [0] and len(got) > len(want) else got
            if _total(scores, got) < _total(scores, want) - 1e-9 or not got:
                yield Finding(
                    "search.wrong",
                    "",
                    f"{beams} beams give {got} (log p {_total(scores, got):.3f}); "
                    f"{'greedy' if beams == 1 else 'brute force'} gives {want} "
                    f"({_total(scores, want):.3f})",
                )
                return
            if end in got[:-1]:
                yield Finding("search.wrong", "", f"{beams} beams run past the end: {got}")
                return


class _Scores:
    """log p of the next token for prefixes N T: a fixed random function of the last two."""

    def __init__(self, vocab: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(vocab, vocab, vocab, generator=generator).mul(1.5).log_softmax(-1)

    def __call__(self, prefixes: Tensor) -> Tensor:
        prefixes = torch.as_tensor(prefixes)
        prefixes = prefixes[None] if prefixes.ndim == 1 else prefixes
        last = prefixes[:, -1]
        before = prefixes[:, -2] if prefixes.shape[1] > 1 else torch.zeros_like(last)
        return self.table[before, last]


def _total(scores: _Scores, ids: list[int]) -> float:
    prefix, total = [0], 0.0
    for i in ids:
        total += float(scores(torch.tensor([prefix]))[0, i])
        prefix.append(i)
    return total


def _greedy(scores: _Scores, end: int, longest: int) -> list[int]:
    prefix: list[int] = [0]
    while len(prefix) <= longest and (len(prefix) == 1 or prefix[-1] != end):
        prefix.append(int(scores(torch.tensor([prefix]))[0].argmax()))
    return prefix[1:]


def _brute(scores: _Scores, vocab: int, end: int, longest: int) -> list[int]:
    best: tuple[float, list[int]] = (-1e9, [])
    stack: list[list[int]] = [[]]
    while stack:
        ids = stack.pop()
        if ids and (ids[-1] == end or len(ids) == longest):
            best = max(best, (_total(scores, ids), ids))
            continue
        stack += [[*ids, i] for i in range(vocab)]
    return best[1]
