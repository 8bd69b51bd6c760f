# mypy: disable-error-code="no-untyped-call,no-any-return"
"""Three small tasks that a sound model of the lab learns in a few hundred steps, in seconds.

decoder: BOS w w w w EOS, go on with a word of three letters · encoder: w w w w with holes, fill
them · seq2seq: w → w reversed EOS. Rows are padded by different amounts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer.auditor.lab.models import EOS, PAD

BOS, HOLE, FIRST, VOCAB = 1, 4, 5, 21
LONGEST, LENGTH, TIMES = 6, 3, 4  # letters: up to 6 for seq2seq, else 3 that stand 4 times


@dataclass
class Curve:
    """The training loss, smoothed over a few steps, and how often the answer is right in the end."""  # noqa: E501

    loss: list[float]
    right: float  # in %, measured as the model is used, not as it is trained


def _words(rows: int, generator: torch.Generator) -> list[Tensor]:
    lengths = torch.randint(4, LONGEST + 1, (rows,), generator=generator)
    return [torch.randint(FIRST, VOCAB, (int(n),), generator=generator) for n in lengths]


def _stack(rows: list[Tensor]) -> Tensor:
    width = max(len(r) for r in rows)
    return torch.stack([F.pad(r, (0, width - len(r)), value=PAD) for r in rows])


def _t(*ids: int) -> Tensor:
    return torch.tensor(ids)


def decoder_batch(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """ids and targets, already shifted; the word's first time is no target."""
    words = torch.randint(FIRST, VOCAB, (rows, LENGTH), generator=generator)
    ends = torch.full((rows, 1), BOS), torch.full((rows, 1), EOS)
    ids = _tails(torch.cat([ends[0], words.repeat(1, TIMES), ends[1]], 1), generator)
    targets = F.pad(ids[:, 1:], (0, 1), value=PAD)
    targets[:, :LENGTH] = PAD  # the first word cannot be foreseen
    return ids, targets


def _tails(ids: Tensor, generator: torch.Generator) -> Tensor:
    """Up to four tokens of padding, as longer rows in the batch would cause."""
    more = int(torch.randint(0, 5, (), generator=generator))
    return F.pad(ids, (0, more), value=PAD)


def train(shape: str, model: nn.Module, steps: int = 400, rows: int = 32, seed: int = 0) -> Curve:
    """Train a model of the lab on the task of its shape."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
        model.train()
        losses = []
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = 3e-3 * min(1.0, (step + 1) / 40) * (1 - 0.9 * step / steps)
            loss = LOSS[shape](model, rows, generator)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            losses.append(float(loss.detach()))
    model.eval()
    with torch.no_grad():
        right = RIGHT[shape](model, torch.Generator().manual_seed(seed + 1))
    return Curve(_smooth(losses), right)


def _smooth(values: list[float], over: int = 10) -> list[float]:
    return [
        sum(values[max(0, i - over + 1) : i + 1]) / len(values[max(0, i - over + 1) : i + 1])
        for i in range(0, len(values), over)
    ]


def _decoder_loss(model: nn.Module, rows: int, generator: torch.Generator) -> Tensor:
    ids, targets = decoder_batch(rows, generator)
    return model(ids, targets)[1]


def _decoder_right(model: nn.Module, generator: torch.Generator, rows: int = 64) -> float:
    """Greedy: the prompt BOS w, then token by token to the end."""
    words = torch.randint(FIRST, VOCAB, (rows, LENGTH), generator=generator)
    ids = torch.cat([torch.full((rows, 1), BOS), words], 1)
    want = torch.cat([words.repeat(1, TIMES - 1), torch.full((rows, 1), EOS)], 1)
    for _ in range(want.shape[1]):
        ids = torch.cat([ids, model(ids)[0][:, -1].argmax(-1, keepdim=True)], 1)
    return 100 * float((ids[:, LENGTH + 1 :] == want).all(1).float().mean())


def _encoder_batch(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """ids with holes, the whole ids, and where the holes are; the word's first time stays."""
    words = torch.randint(FIRST, VOCAB, (rows, LENGTH), generator=generator)
    whole = _tails(words.repeat(1, TIMES), generator)
    holes = torch.rand(whole.shape, generator=generator) < 0.3
    holes &= whole >= FIRST
    holes[:, :LENGTH] = False
    return whole.masked_fill(holes, HOLE), whole, holes


def _encoder_loss(model: nn.Module, rows: int, generator: torch.Generator) -> Tensor:
    ids, whole, holes = _encoder_batch(rows, generator)
    return F.cross_entropy(model(ids, ids != PAD)[holes], whole[holes])


def _encoder_right(model: nn.Module, generator: torch.Generator) -> float:
    """Each row alone: what the model says must not depend on the batch."""
    ids, whole, holes = _encoder_batch(64, generator)
    hits = total = 0
    for row, want, hole in zip(ids, whole, holes, strict=True):
        n = int((row != PAD).sum())
        out = model(row[None, :n], torch.ones(1, n, dtype=torch.bool))[0].argmax(-1)
        hits += int((out == want[:n])[hole[:n]].sum())
        total += int(hole[:n].sum())
    return 100 * hits / total


def _seq2seq_loss(model: nn.Module, rows: int, generator: torch.Generator) -> Tensor:
    words = _words(rows, generator)
    source = _stack(words)
    target = _stack([torch.cat([_t(BOS), w.flip(0), _t(EOS)]) for w in words])
    logits = model(source, target[:, :-1], source != PAD)
    return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)


def _seq2seq_right(model: nn.Module, generator: torch.Generator, rows: int = 64) -> float:
    hits = 0
    for n in (4, LONGEST):
        words = torch.randint(FIRST, VOCAB, (rows // 2, n), generator=generator)
        keep = torch.ones(words.shape, dtype=torch.bool)
        ids = torch.full((rows // 2, 1), BOS)
        for _ in range(n + 1):
            ids = torch.cat([ids, model(words, ids, keep)[:, -1].argmax(-1, keepdim=True)], 1)
        want = torch.cat([words.flip(1), torch.full((rows // 2, 1), EOS)], 1)
        hits += int((ids[:, 1:] == want).all(1).sum())
    return 100 * hits / rows


LOSS = {"decoder": _decoder_loss, "encoder": _encoder_loss, "seq2seq": _seq2seq_loss}
RIGHT = {"decoder": _decoder_right, "encoder": _encoder_right, "seq2seq": _seq2seq_right}
