"""A reward that is a model: a reward run's score of the whole chat, or how sure a classifier is
that the answer has a label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from allformer.checkpoint.load import load
from allformer.config import ClassHead
from allformer.data.batches import token_batches
from allformer.errors import ConfigError, did_you_mean
from allformer.text.load import load_tokenizer
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import moved
from allformer.train.policy.rewards.reward import Answered, Judge, Reward
from allformer.train.preferences.score import score_chats
from allformer.train.sections.section import one_of
from allformer.train.supervised.judging import judging
from allformer.train.supervised.packed import lay_texts, rows_of
from allformer.train.supervised.scored import text_scores

_TOKENS = 8192  # that are read at a time
AUTO, ANSWER, CHAT = "auto", "answer", "chat"


@dataclass(frozen=True)
class ModelReward(Reward, named="model"):
    """`path`: a run. `label`: which of a classifier's. `reads`: the answer alone, or the chat up to
    it; by itself a classifier reads answers, and a reward model chats."""

    needs: ClassVar[str] = "path"

    path: str = ""
    label: str | None = None
    reads: Annotated[str, one_of(AUTO, ANSWER, CHAT)] = AUTO

    @property
    def called(self) -> str:
        return self.label or Path(self.path).name

    def check(self) -> None:
        """Its head gives one number, or has the label."""
        if not Path(self.path).is_dir():
            raise ConfigError(f"{self.told}: there is no such directory; give a run's")
        self._column(load(self.path, device="meta"))

    def open(self, device: torch.device) -> Judge:
        model = load(self.path, device=device).eval().requires_grad_(False)
        column = self._column(model)
        reads = self.reads if self.reads != AUTO else ANSWER if len(_labels(model)) > 1 else CHAT
        tokenizer = load_tokenizer(self.path)
        if reads == CHAT and len(_labels(model)) > 1:
            raise ConfigError(
                f"{self.told}: reads=chat is for a reward model; a classifier reads the answer"
            )
        if reads == CHAT:
            return partial(_chats, model, tokenizer)
        return partial(_answers, model, tokenizer, column)

    def _column(self, model: Any) -> int:
        """Which of its numbers it is."""
        labels = _labels(model)
        if not labels:
            raise ConfigError(
                f"{self.told} has no head that judges texts; tune one: --task reward, or classify"
            )
        if self.label is None:
            if len(labels) > 1:
                raise ConfigError(
                    f"{self.told} knows {', '.join(labels)}; say which is good with label, or "
                    f"{self.path}:{labels[-1]}"
                )
            return 0
        if self.label not in labels:
            hint = did_you_mean(self.label, labels)
            raise ConfigError(
                f"{self.told}: label={self.label!r} is not one of its own; {hint}there is "
                f"{', '.join(labels)}"
            )
        return labels.index(self.label)


def _labels(model: Any) -> tuple[str, ...]:
    head = getattr(model.config, "head", None)
    if not isinstance(head, ClassHead) or head.at not in ("pool", "first", "last", "eos"):
        return ()
    return tuple(map(str, head.labels))


def _chats(model: Any, tokenizer: Tokenizer, answered: Sequence[Answered]) -> Tensor:
    """Scores as the reward model was taught to give them."""
    chats = []
    for each in answered:
        before = each.messages or [{"role": "user", "content": each.prompt}]
        chats.append([*before, {"role": "assistant", "content": each.answer}])
    return score_chats(model, tokenizer, chats, batch_tokens=_TOKENS)


@torch.no_grad()
def _answers(model: Any, tokenizer: Tokenizer, column: int, answered: Sequence[Answered]) -> Tensor:
    """The label's probability, 0 … 1; of a head with one number that number. A text that is longer
    than the model is cut."""
    longest = min((s.longest for s in model.config.stacks.values() if s.longest), default=None)
    texts = [each.answer for each in answered]
    batch = tokenizer(texts, padding_side="right", max_length=longest, truncate=longest is not None)
    found = torch.zeros(len(texts), dtype=torch.float64)
    rows = [np.array(row, np.int64) for row in rows_of(batch)]
    kinds = rows_of(batch, "token_type_ids") if "token_type_ids" in batch else None
    lengths = np.array([len(row) for row in rows], np.int64)
    full = np.flatnonzero(lengths)  # an empty answer, of a tokeniser that puts nothing around it: 0
    if not len(full):
        return found
    sides = lengths[full], lengths[full]
    with judging(model):
        for part in token_batches(*sides, max(_TOKENS, int(lengths.max())), seed=0, epoch=0,
                                  pool=1000):  # fmt: skip
            index = full[part]
            types = None if kinds is None else np.concatenate([kinds[i] for i in index])
            texts_ = lay_texts(lengths[index], np.concatenate([rows[i] for i in index]), types)
            scores = text_scores(model, moved(texts_, model.device))  # type: ignore[type-var]
            found[torch.from_numpy(index)] = _value(model, scores, column).double().cpu()
    return found


def _value(model: Any, scores: Tensor, column: int) -> Tensor:
    """R L → R."""
    if scores.shape[1] == 1:
        return scores[:, 0]
    several = str(model.config.head.problem or "").startswith("multi")
    shares = scores.sigmoid() if several else scores.softmax(-1)
    return shares[:, column]
