"""How likely a long text is to a model that reads so many tokens at once: a sliding window.

    ids     0 1 2 3 4 5 6 7 8 9        length 6, stride 2
    first   0[1 2 3 4 5]
    then        2 3 4 5[6 7]           in brackets: what is scored
    then            4 5 6 7[8 9]

Each token is scored once, all but the first window's with at least length − stride tokens before
it. The windows are those of transformers' page on perplexity. (Its loop weighs each window after
the first with one token less than it scores; here all tokens weigh the same.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from allformer.core.precision import widen
from allformer.errors import ConfigError

LOGITS = 2**25  # scores over the vocabulary that are in memory at a time


class Window(NamedTuple):
    """Read tokens `begin` … `end` − 1, score those from `first` on."""

    begin: int
    first: int
    end: int


def windows(count: int, length: int, stride: int) -> Iterator[Window]:
    """`list(windows(10, 6, 2))[1]` → `Window(begin=2, first=6, end=8)`."""
    if length < 2:
        raise ConfigError(f"length={length} must be at least 2: a token, and one that it foretells")
    if not 1 <= stride < length:
        raise ConfigError(
            f"stride={stride} must be 1 … {length - 1}, less than length={length}, so that each "
            f"token has another before it; try {length // 2}"
        )
    first = 1  # nothing foretells the first token
    for begin in range(0, count, stride):
        end = min(begin + length, count)
        if first < end:
            yield Window(begin, first, end)
        first = end
        if end == count:
            return


@torch.inference_mode()
def text_nll(
    model: Any,
    ids: Sequence[int],
    *,
    length: int,
    stride: int,
    batch_tokens: int = 4096,
    advance: Callable[[int], object] = lambda tokens: None,
) -> Tensor:
    """−ln p of each token but the first, in fp64: `text_nll(model, ids, length=1024, stride=512)`.

    `advance` is told of the tokens that were scored, for progress.
    """
    text = torch.tensor(ids, dtype=torch.long)
    found = torch.zeros(max(0, len(text) - 1), dtype=torch.float64)
    rows = max(1, batch_tokens // length)
    for group in _alike(windows(len(text), length, stride), rows):
        read = torch.stack([text[w.begin : w.end] for w in group]).to(model.device)
        *_, hidden = model.states(input_ids=read).values()  # R T dim
        for w, states in zip(group, hidden, strict=True):
            before = states[w.first - w.begin - 1 : w.end - w.begin - 1]
            nll, _ = token_scores(model, before, text[w.first : w.end])
            found[w.first - 1 : w.end - 1] = nll
            advance(w.end - w.first)
    return found


def token_scores(model: Any, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Of each state (N dim) and the token after it (N): −ln p in fp64, and whether it is the
    likeliest of all. Never all logits at once; on the host."""
    vocab = model.vocab_head.vocab
    nlls, best = [], []
    rows = max(1, LOGITS // vocab)
    for states, wanted in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
        logits = widen(model.logits(states))
        wanted = wanted.to(logits.device)
        own = logits.gather(-1, wanted[:, None])[:, 0]
        nlls.append((logits.logsumexp(-1) - own).double().cpu())
        best.append((logits.argmax(-1) == wanted).cpu())
    if not nlls:
        return torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.bool)
    return torch.cat(nlls), torch.cat(best)


def _alike(found: Iterator[Window], rows: int) -> Iterator[list[Window]]:
    """At most `rows` windows at a time, of one width."""
    group: list[Window] = []
    for window in found:
        width = window.end - window.begin
        if group and (len(group) == rows or group[0].end - group[0].begin != width):
            yield group
            group = []
        group.append(window)
    if group:
        yield group
