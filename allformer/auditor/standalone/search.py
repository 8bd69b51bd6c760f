"""A search by itself, against brute force over a tiny vocabulary.

Searches differ on purpose: in whether the start is returned and counts in `longest`, whether the
end is returned, whether a sentence that was cut off may win, and how long ones are made up for.
One is wrong only if no such convention explains all its results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from allformer.auditor.probe import brief
from allformer.auditor.report import Finding
from allformer.errors import AuditError

START, END, VOCAB, LONGEST = 0, 3, 4, 5
MOSTS = (LONGEST, LONGEST - 1, LONGEST + 1)  # new ids: the start counts, or does not
POWERS = (0.0, 0.6, 0.65, 0.7, 0.75, 0.8, 1.0)


@dataclass(frozen=True)
class Convention:
    """How a search may mean it."""

    cut: str = "all"  # "all": what was cut off competes; "ended": only if nothing ended
    power: float = 0.0  # log p is divided by a length to this power
    more: int = 0  # what the length counts beside the ids: the start, not the end, or 5 (GNMT's)
    kept: int = 0  # so many of the longest sentences are looked at; 0 means all

    def worth(self, total: float, ids: list[int]) -> float:
        """What is the largest for the best."""
        return total / math.pow(max(1, len(ids) + self.more), self.power)


def search(module: Any, state: Any) -> Iterator[Finding]:
    """With all beams of a tiny vocabulary, beam search is brute force; with one, greedy."""
    tables = [_Scores(seed) for seed in range(8)]
    greedy = _run(module, tables, 1, LONGEST)
    hits = {m: sum(map(_same, greedy, [_greedy(s, m) for s in tables])) for m in MOSTS}
    most = max(MOSTS, key=lambda m: hits[m])  # the first of those that explain it best
    plain = hits[most] == len(tables)
    longest, beams = LONGEST, VOCAB**LONGEST
    try:
        wide = _run(module, tables, beams, longest)
    except AuditError:  # it takes the best `beams` of the first step: then two steps are exact
        beams, longest, most = VOCAB, longest - most + 2, 2
        wide = _run(module, tables, beams, longest)
    powers = POWERS if plain else POWERS[1:]  # one that weighs lengths need not be greedy
    kept = (0,) if longest == LONGEST else (0, beams, 2 * beams)
    every = [_sentences(scores, most) for scores in tables]
    for choice in product(("all", "ended"), powers, (0, 1, -1, 5), kept):
        best = [_best(sentences, Convention(*choice)) for sentences in every]
        if all(map(_same, wide, best)):
            return
    if plain:
        right = [_best(sentences, Convention()) for sentences in every]
        yield from _wrong(beams, wide, tables, right, "brute force")
    else:
        yield from _wrong(1, greedy, tables, [_greedy(s, most) for s in tables], "greedy")


def _run(module: Any, tables: list[_Scores], beams: int, longest: int) -> list[list[int]]:
    try:
        return [_ids(module(scores, START, END, beams, longest)) for scores in tables]
    except Exception as error:
        text = brief(error, 120)
        raise AuditError(
            f"search(log_probs, start={START}, end={END}, beams={beams}, longest={longest}) raised "
            f"{type(error).__name__}: {text}; log_probs takes prefixes (N, T) and gives (N, V)"
        ) from error


def _ids(raw: Any) -> list[int]:
    """The new ids: of a list, a tensor, or (ids, score); the start is told by its place."""
    if isinstance(raw, tuple) and raw and not isinstance(raw[0], int | float):
        raw = raw[0]
    got = [int(i) for i in torch.as_tensor(raw).flatten()]
    return got[1:] if got[:1] == [START] else got


def _same(got: list[int], want: list[int]) -> bool:
    """The same ids, with the end or without it."""
    return got == want or (want[-1:] == [END] and got == want[:-1])


def _wrong(
    beams: int,
    results: list[list[int]],
    tables: list[_Scores],
    right: list[list[int]],
    name: str,
) -> Iterator[Finding]:
    differ = [c for c in zip(results, tables, right, strict=True) if not _same(c[0], c[2])]
    for got, scores, want in sorted(differ, key=lambda c: END not in c[0][:-1]):
        if END in got[:-1]:
            said = f"{beams} beams run past the end, {END}: {got}"
        else:
            said = f"{beams} beams give {got} (log p {_total(scores, got):.3f})"
        yield Finding("search.wrong", f"{said}; {name} gives {want} ({_total(scores, want):.3f})")
        return


class _Scores:
    """log p of the next token for prefixes N T: a fixed random function of the last two.

    The start is never likely again, so that an answer shows whether it begins with it.
    """

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(VOCAB, VOCAB, VOCAB, generator=generator).mul(1.5)
        scores[..., START] -= 30.0
        self.table = scores.log_softmax(-1)

    def __call__(self, prefixes: Tensor) -> Tensor:
        prefixes = torch.as_tensor(prefixes)
        prefixes = prefixes[None] if prefixes.ndim == 1 else prefixes
        last = prefixes[:, -1]
        before = prefixes[:, -2] if prefixes.shape[1] > 1 else torch.zeros_like(last)
        return self.table[before, last]


def _total(scores: _Scores, ids: list[int]) -> float:
    prefix, total = [START], 0.0
    for i in ids:
        total += float(scores(torch.tensor([prefix]))[0, i])
        prefix.append(i)
    return total


def _greedy(scores: _Scores, most: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < most and ids[-1:] != [END]:
        ids.append(int(scores(torch.tensor([[START, *ids]]))[0].argmax()))
    return ids


def _sentences(scores: _Scores, most: int) -> list[tuple[float, list[int]]]:
    """(log p, ids) of all that end, or are cut off; without the start inside."""
    found: list[tuple[float, list[int]]] = []
    stack: list[tuple[float, list[int]]] = [(0.0, [])]
    while stack:
        total, ids = stack.pop()
        if ids[-1:] == [END] or len(ids) == most:
            found.append((total, ids))
            continue
        steps = scores(torch.tensor([[START, *ids]]))[0].tolist()
        stack += [(total + steps[i], [*ids, i]) for i in range(VOCAB) if i != START]
    return found


def _best(sentences: list[tuple[float, list[int]]], convention: Convention) -> list[int]:
    if convention.kept:
        most = max(len(ids) for _, ids in sentences)
        last = sorted((s for s in sentences if len(s[1]) == most), reverse=True)
        sentences = [s for s in sentences if len(s[1]) < most] + last[: convention.kept]
    ended = [s for s in sentences if s[1][-1] == END]
    competing = ended if ended and convention.cut == "ended" else sentences
    return max(competing, key=lambda s: convention.worth(*s))[1]
