"""Reward models: of two answers, the better one gets the higher score (Bradley and Terry, 1952).

    objective: {is: reward, center: 0.01}
    data: {path: dpo_en_demo.json.gz, max_length: 1024}

    −log σ(s_w − s_l − margin) + center · (s_w + s_l)²

A record's `margin` says by how much the chosen answer is better, where it is known (LLaMA 2,
section 3.2.2). Scores have no zero of their own; `center` pulls them towards it (Eisenstein et al.,
2023). The head reads the token that ends the answer, the last one of the conversation.

Legend: P pairs, R = 2 P rows: all chosen answers, then all rejected ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.config import DecoderOnly
from allformer.core.loss import IGNORE
from allformer.data.batches import token_batches
from allformer.data.table import Table
from allformer.errors import ConfigError
from allformer.train.batch import Array, Frame, moved
from allformer.train.objectives.instruction import InstructionOptions
from allformer.train.objectives.objective import Objective, register
from allformer.train.predictions import Prediction, Predictions, calibrated
from allformer.train.preferences.preferred import Preferred, gap_figures, half_ties, in_pairs
from allformer.train.preferences.said import without_dropout
from allformer.train.room import within
from allformer.train.sections.head import gives_one_number, one_number
from allformer.train.sections.section import NotNegative
from allformer.train.shown_batch import ShownRow, shown_rows
from allformer.train.supervised.packed import Texts, pack_texts
from allformer.train.supervised.scored import text_scores
from allformer.train.supervised.supervised import judging, telling

LABEL = "reward"  # what the score is called


@dataclass(frozen=True)
class RewardOptions(InstructionOptions, section="objective"):
    """`center`: how much scores far from zero cost; TRL's documentation suggests 0.01."""

    center: NotNegative = 0.0


class RewardBatch(NamedTuple):
    """Conversations with either answer, and by how much one is better."""

    texts: Texts
    learnt: Tensor  # N: whether the token is the answer's
    margin: Tensor  # P
    tokens: int  # of the conversations
    counts: tuple[int, ...]  # P


@register("reward")
class Reward(Preferred):
    """`Reward(make_recipe({"objective": "reward", "data": {"path": "pairs.jsonl"}, …}))`."""

    Options = RewardOptions

    # --- model ----------------------------------------------------------------------------------

    def config(self, vocabulary: Any) -> Any:
        """A decoder whose head gives one number, from its last token."""
        train, asked = self.recipe.train, self.recipe.model
        for name in ("z_loss", "smoothing"):
            if getattr(train, name):
                raise ConfigError(
                    f"train.{name}={getattr(train, name)}: objective={self.name!r} does not know "
                    f"it; remove it"
                )
        tree = Objective.config(self, vocabulary)
        if not isinstance(tree, DecoderOnly):
            raise ConfigError(
                f"model is a {type(tree).__name__}, but objective={self.name!r} needs a "
                f"DecoderOnly, whose last token has read all; choose such a checkpoint"
            )
        self.recipe = within(self.recipe, tree)
        if gives_one_number(tree.head):
            return tree
        if (head := getattr(asked, "head", None)) is not None:
            raise ConfigError(
                f"model.head.kind={head.named} is not what objective={self.name!r} learns; "
                f"leave model.head out"
            )
        return one_number(tree, LABEL)

    def generation(self, config: Any) -> Any:
        """Nothing is written."""
        return None

    def compare(self, model: Any) -> None:
        """Nothing is answered."""

    # --- batches and losses -----------------------------------------------------------------------

    def collate(self, examples: Table, index: Array, frame: Frame | None = None) -> Any:
        """Whole conversations, with either answer."""
        rows = self.pair_rows(np.asarray(index))
        margin = np.asarray(examples["value"])[rows[: len(index)]]
        return RewardBatch(
            pack_texts(examples, rows),
            torch.from_numpy(examples["learnt"].take(rows).flat().astype(bool)),
            torch.from_numpy(margin),
            int(examples["ids"].lengths[rows].sum()),
            (len(index),),
        )

    def lengths(self, examples: Table) -> tuple[Any, Any]:
        """Tokens of either conversation."""
        chosen, rejected = super().lengths(examples)
        return chosen + 1, rejected + 1

    def scores(self, model: Any, batch: RewardBatch, dtype: torch.dtype | None = None) -> Tensor:
        """Of either answer, P 2."""
        with without_dropout(model):
            return text_scores(model, batch.texts, dtype).view(2, -1).T

    def _each(self, scores: Tensor, margin: Tensor) -> tuple[Tensor, Tensor]:
        """Of each pair, P: the loss to go down, and Bradley and Terry's alone."""
        gap = scores[:, 0] - scores[:, 1]
        plain = -F.logsigmoid(gap - margin.to(gap))
        return plain + self.recipe.options.center * scores.sum(1).square(), plain

    def loss(
        self,
        model: Any,
        batch: Any,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Of each pair."""
        scores = self.scores(model, batch, dtype)
        each, plain = self._each(scores, batch.margin)
        gap = (scores[:, 0] - scores[:, 1]).detach()
        self._last = gap_figures(gap)
        return each.sum(), plain.sum().detach()

    def measured(self, model: Any) -> tuple[str, ...]:
        """Of pairs."""
        return ("accuracy", "margin", "chosen", "rejected")

    def appraise(
        self, model: Any, batch: Any, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Sums over pairs: `accuracy` (the better answer has the higher score), `margin` (by how
        much), and the scores themselves."""
        scores = self.scores(model, batch, dtype)
        gap = scores[:, 0] - scores[:, 1]
        found = {
            "accuracy": half_ties(gap),
            "margin": gap,
            "chosen": scores[:, 0],
            "rejected": scores[:, 1],
        }
        _, plain = self._each(scores, batch.margin)
        return plain.sum(), {name: x.sum() for name, x in found.items()}

    def shown(self, batch: Any) -> tuple[ShownRow, ...]:
        """Whole conversations; their answers are what differs."""
        ids, layout = batch.texts.ids, batch.texts.layout
        follows = torch.where(batch.learnt, ids, IGNORE).roll(-1)
        follows[layout.starts[1:].long() - 1] = IGNORE  # the next row's first
        return in_pairs(shown_rows(self.pieces, ids, follows, layout.starts))

    # --- a whole set ------------------------------------------------------------------------------

    def predictions(self, model: Any, examples: Table, count: int = 50) -> Predictions:
        """The answer that it finds better, of some pairs, and how sure it is: σ of the gap."""
        sure = np.zeros(len(examples) // 2)
        sides, budget = self.lengths(examples), self.recipe.train.batch_tokens
        with judging(model):
            for index in token_batches(*sides, budget, seed=0, epoch=0, pool=1000):
                scores = self.scores(model, moved(self.collate(examples, index), model.device))
                sure[index] = (scores[:, 0] - scores[:, 1]).sigmoid().double().cpu().numpy()
        rows = []
        for pair, share in enumerate(sure.tolist()):
            chosen, rejected = (self._answer(examples, 2 * pair + i) for i in (0, 1))
            right = share > 0.5
            given = chosen if right else rejected
            asked = examples["question"][2 * pair]
            rows.append(Prediction(asked, chosen, given, right, max(share, 1 - share)))
        table = calibrated([row.score or 0.0 for row in rows], [bool(row.right) for row in rows])
        return Predictions(telling(rows, count), calibration=table)

    def _answer(self, examples: Table, row: int) -> str:
        ids, learnt = examples["ids"][row], examples["learnt"][row]
        text: str = self.pieces.decode(ids[learnt > 0].tolist())
        return text
