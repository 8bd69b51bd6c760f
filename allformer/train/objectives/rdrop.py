"""R-Drop (Liang et al., 2021): a sentence is read twice with other dropout, and both must agree.

    loss = ½ (CE₁ + CE₂) + α/4 · (KL(p₁‖p₂) + KL(p₂‖p₁))        per target token

which is half of the paper's equation 4. Small data gains most: dropout is no longer only noise, but
a second opinion.

Legend: N target tokens of both copies, P pairs of a token and its twin, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from allformer.config import EncoderDecoder
from allformer.core.layout import Layout
from allformer.core.loss import IGNORE
from allformer.core.model import EncoderDecoderModel
from allformer.core.precision import widen
from allformer.data.encoded import EncodedPairs
from allformer.errors import ConfigError
from allformer.train.batch import Array, Frame
from allformer.train.objectives.objective import Lengths, register
from allformer.train.objectives.seq2seq import Seq2Seq
from allformer.train.sections.section import Section, at_least
from allformer.train.sections.vocabulary import Vocabulary

_LARGEST = 2**27  # scores that are held at a time


@dataclass(frozen=True)
class Agreement(Section, section="objective"):
    """`alpha` weighs the agreement; the paper has 5 for translation."""

    alpha: Annotated[float, at_least(0.0)] = 5.0


class TwinBatch(NamedTuple):
    """A `PairBatch` in which every pair stands twice, and where each token's twin is."""

    source: Tensor
    source_layout: Layout
    target: Tensor
    target_layout: Layout
    labels: Tensor  # N
    first: Tensor  # P: places of the first copy's tokens
    second: Tensor  # P: those of the second
    tokens: int  # labels that count, both copies


@register("seq2seq-rdrop")
class RDrop(Seq2Seq):
    """Seq2seq whose two readings agree: `objective: {is: seq2seq-rdrop, alpha: 5.0}`."""

    Options = Agreement

    def lengths(self, examples: EncodedPairs) -> tuple[Lengths, Lengths]:
        """Both copies count: a batch holds half as many pairs."""
        source, target = super().lengths(examples)
        return 2 * source, 2 * target

    @property
    def longest(self) -> int:
        """Half a batch, as a sentence stands there twice."""
        longest: int = self.recipe.data.max_length
        return min(longest, self.recipe.train.batch_tokens // 2)

    def config(self, vocabulary: Vocabulary) -> EncoderDecoder:
        """That of seq2seq; what this loss has no place for is refused."""
        if self.recipe.train.z_loss:
            raise ConfigError(
                f"train.z_loss={self.recipe.train.z_loss} has no place in objective={self.name}; "
                f"set it to 0, or use objective: seq2seq"
            )
        return super().config(vocabulary)

    def collate(  # type: ignore[override]
        self, examples: EncodedPairs, index: Array, frame: Frame | None = None
    ) -> TwinBatch:
        """All pairs, and all again; filler is its own twin."""
        if frame is not None:
            frame = replace(frame, sentences=2 * frame.sentences)
        plain = super().collate(examples, np.concatenate([index, index]), frame)
        real, total = plain.tokens // 2, len(plain.labels)
        first = np.arange(total // 2 if frame is not None else real)
        second = np.where(first < real, first + real, total - 1)  # the last is filler, if any is
        first = np.where(first < real, first, total - 1)
        twins = (torch.from_numpy(first), torch.from_numpy(second))
        return TwinBatch(*plain[:5], *twins, plain.tokens)

    def loss(  # type: ignore[override]
        self,
        model: EncoderDecoderModel,
        batch: TwinBatch,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Sums over both copies: what goes down, and the plain NLL."""
        if not model.training:
            return super().loss(model, batch, smoothing=smoothing, dtype=dtype)
        hidden = self._hidden(model, batch, dtype)  # type: ignore[arg-type]
        one, other = hidden[batch.first], hidden[batch.second]
        labels = batch.labels.flatten()[batch.first]
        alpha = self.recipe.options.alpha
        vocab = model.vocab_head.vocab
        rows = max(1, _LARGEST // (2 * vocab))
        whole = rows >= len(labels)
        found = []
        for begin in range(0, len(labels), rows):
            part = slice(begin, begin + rows)
            args = (model.vocab_head, one[part], other[part], labels[part], smoothing, alpha)
            found.append(
                agreement(*args) if whole else checkpoint(agreement, *args, use_reentrant=False)
            )
        loss, nll = (torch.stack(sums).sum() for sums in zip(*found, strict=True))
        return loss, nll


def agreement(
    head: Any, one: Tensor, other: Tensor, labels: Tensor, smoothing: float, alpha: float
) -> tuple[Tensor, Tensor]:
    """Summed loss and NLL of P tokens read twice, from their states P dim."""
    real = labels != IGNORE
    safe = labels.where(real, 0)[:, None]
    logs = [widen(head(states)).log_softmax(-1) for states in (one, other)]  # P V
    nlls = [-logp.gather(1, safe).squeeze(1) for logp in logs]
    loss = nll = nlls[0] + nlls[1]
    if smoothing:
        even = -(logs[0].mean(-1) + logs[1].mean(-1))
        loss = (1 - smoothing) * nll + smoothing * even
    # KL(p₁‖p₂) + KL(p₂‖p₁) = Σ (p₁ − p₂)(log p₁ − log p₂)
    both = ((logs[0].exp() - logs[1].exp()) * (logs[0] - logs[1])).sum(-1)
    loss = (loss + 0.5 * alpha * both) * real
    return loss.sum(), (nll.detach() * real).sum()
