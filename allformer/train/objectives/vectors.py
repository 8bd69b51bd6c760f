"""Sentence vectors by contrast: a text is nearer to its pair than to the other texts of the batch.

    objective: vectors
    data: {path: pairs.jsonl, text_a: question, text_b: answer}

    loss = −log( exp(s·cos(aᵢ, bᵢ)) / Σⱼ exp(s·cos(aᵢ, bⱼ)) )

over all bⱼ of the batch and, with triples, all their hard negatives (Henderson et al., 2017,
section 4.4, with cosines: MultipleNegativesRankingLoss). Where people have scored the pairs,
`objective.loss: order` learns their order instead (Su, 2022, CoSENT): of two pairs of a batch the
one with the higher score has the higher cosine,

    loss = log( 1 + Σ exp(s·(cos(aᵢ, bᵢ) − cos(aⱼ, bⱼ))) )    over all i, j with scoreᵢ < scoreⱼ

A vector is the mean of a text's last
states, as the task `embed` makes it. The larger the micro-batch, the more there is to tell apart:
accumulated micro-batches and data-parallel ranks have negatives of their own alone.

Legend: P pairs (with filler, as many as the frame says), K texts beside the first of each (1 or 2),
R rows, T the longest row, D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.config import EncoderDecoder, EncoderOnly, Head
from allformer.core.loss import IGNORE
from allformer.core.pooling import POOLS
from allformer.core.precision import widen
from allformer.data.records import Record
from allformer.data.table import Table
from allformer.errors import ConfigError
from allformer.metrics import pearson, spearman
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, Frame
from allformer.train.objectives.objective import Lengths, Say, register
from allformer.train.predictions import Prediction, Predictions
from allformer.train.sections.head import HeadRecipe, NoHead
from allformer.train.sections.section import Section, at_least, one_of, positive
from allformer.train.sections.vocabulary import Vocabulary
from allformer.train.supervised.data import (
    Column,
    RecordData,
    open_labelled,
    read_each,
    text_in,
)
from allformer.train.supervised.encode_pairs import EncodePairs
from allformer.train.supervised.encode_texts import tokenizer_key
from allformer.train.supervised.packed import Texts, lay_texts, states
from allformer.train.supervised.supervised import Supervised, counted, judging, telling

SIDES = ("text_a", "text_b", "negative")
_CHUNK = 1024  # texts whose neighbours are looked for at a time


@dataclass(frozen=True)
class VectorData(RecordData):
    """Pairs of texts that mean the same; `negative` is one that does not, though it looks so.

    With `score` the validation file has pairs of any meaning and a number that says how near they
    are (STS); the pairs that are trained on are all taken for the same, unless `objective.loss` is
    order: then they have scores too.
    """

    text_a: Column = "text_a"
    text_b: Column = "text_b"
    negative: Column | None = None
    score: Column | None = None
    max_length: Annotated[int, at_least(4)] = 128


@dataclass(frozen=True)
class VectorOptions(Section, section="objective"):
    """`scale` times the cosine is what the softmax is of: 1 / temperature."""

    loss: Annotated[str, one_of("contrast", "order")] = "contrast"  # order: that of data.score
    scale: Annotated[float, positive("20.0")] = 20.0


class VectorBatch(NamedTuple):
    """Texts, and which rows are whose: the first text of each pair, and all that it may be."""

    texts: Texts
    first: Tensor  # P, rows
    others: Tensor  # K·P, rows; column i is the i-th pair's own
    there: Tensor  # K·P, False: filler
    labels: Tensor  # P, the right column; −100: does not count
    scores: Tensor | None  # P, where their order is learnt
    tokens: int
    counts: tuple[int, ...]  # pairs that count


@register("vectors")
class Vectors(Supervised[Table, VectorBatch]):
    """`train(make_recipe({"objective": "vectors", "data": {"path": "a.jsonl"}}), "runs/a")`"""

    Data, Options = VectorData, VectorOptions
    columns = SIDES

    # --- data -----------------------------------------------------------------------------------

    def open(self, corpus: Any = None) -> None:
        """Pairs or triples; with `data.score`, scored pairs to validate on, or to learn from."""
        scored = None
        if self.data.score is not None and not self.ordered:
            if self.data.validation is None and corpus is None:
                raise ConfigError(
                    f"data.score={self.data.score!r} is a column of the validation file; name it: "
                    f"data.validation=sts.csv"
                )
            scored = {name: getattr(self.data, name) for name in ("text_a", "text_b", "score")}
        self.records = open_labelled(
            self.data, self.named, corpus, by="text_a", validation_columns=scored
        )

    @property
    def ordered(self) -> bool:
        """Whether the order of scores is learnt."""
        found: bool = self.recipe.options.loss == "order"
        return found

    @property
    def sides(self) -> tuple[str, ...]:
        """The texts of a training record."""
        return tuple(name for name in SIDES if name in self.named)

    @property
    def named(self) -> dict[str, Column]:
        """The file's names of the columns that training reads: scores where they are learnt."""
        found = super().named
        return {**found, "score": self.data.score} if self.ordered else found

    def texts(self) -> Iterable[str]:
        """All sides."""

        def read(record: Record) -> list[str]:
            return [text_in(record, name) for name in self.sides]

        return chain.from_iterable(read_each(self.records.train, read))

    def encoded(
        self, records: Iterable[Record], tokenizer: Tokenizer, name: str, say: Say
    ) -> Table:
        """Each side's ids; a text that is too long is cut."""
        scored = self.ordered or (name == "validation" and self.data.score is not None)
        sides = SIDES[:2] if scored else self.sides
        encode = EncodePairs(tokenizer, self.longest, sides, scored)
        table = self.table(records, encode, name, sides, scored, tokenizer_key(tokenizer))
        what = "triples" if len(sides) > 2 else "scored pairs" if scored else "pairs"
        cut = f"texts cut to {self.longest} tokens (data.max_length={self.data.max_length})"
        say(counted(name, f"{len(table):,} {what}", {cut: int(table["cut"].sum())}))
        return table

    def lengths(self, examples: Table) -> tuple[Lengths, Lengths]:
        """Of all sides together: one batch holds them."""
        total = sum(examples[name].lengths for name in SIDES if name in examples)
        return total, total

    # --- model ----------------------------------------------------------------------------------

    @property
    def longest(self) -> int:
        """The most tokens of a text: a pair, or a triple, fits into a batch."""
        return min(super().longest, self.recipe.train.batch_tokens // len(self.sides))

    def fits(self, head: Head | None) -> bool:
        """None at all."""
        return head is None

    def head(self) -> HeadRecipe:
        """The states themselves."""
        return NoHead()

    def config(self, vocabulary: Vocabulary) -> Any:
        """A body whose states are all that there is: no head, no pooler."""
        if self.ordered and (self.data.score is None or self.data.negative is not None):
            raise ConfigError(
                f"objective.loss=order learns from scored pairs, and data.score="
                f"{self.data.score!r}, data.negative={self.data.negative!r}; name the column of "
                f"the scores (data.score=score), and no negatives"
            )
        tree = super().config(vocabulary)
        if isinstance(tree, EncoderDecoder):
            raise ConfigError(
                f"model is an EncoderDecoder, but objective={self.name!r} needs one stack of "
                f"states; choose an encoder, or a decoder"
            )
        return replace(tree, pool=None) if isinstance(tree, EncoderOnly) else tree

    # --- batches and losses -----------------------------------------------------------------------

    def collate(self, examples: Table, index: Array, frame: Frame | None = None) -> VectorBatch:
        """All first texts, all second ones, all negatives, end to end."""
        parts = [examples[name].take(index) for name in SIDES if name in examples]
        count, several = len(index), len(parts) - 1
        room, wide = count, None
        if frame is not None:
            room, wide = frame.sentences, replace(frame, sentences=frame.sentences * len(parts))
        ids = np.concatenate([part.flat() for part in parts])
        texts = lay_texts(np.concatenate([part.lengths for part in parts]), ids, None, wide)
        first = np.zeros(room, np.int64)
        first[:count] = np.arange(count)
        others = np.zeros((several, room), np.int64)
        others[:, :count] = (np.arange(several)[:, None] + 1) * count + np.arange(count)
        there = np.zeros((several, room), bool)
        there[:, :count] = True
        labels = np.full(room, IGNORE, np.int64)
        same = self.ordered or _same(examples, index)
        labels[:count] = np.where(same, np.arange(count), IGNORE)
        scores = np.zeros(room, np.float32)
        scores[:count] = np.asarray(examples["score"])[index] if self.ordered else 0
        return VectorBatch(
            texts,
            torch.from_numpy(first),
            torch.from_numpy(others.ravel()),
            torch.from_numpy(there.ravel()),
            torch.from_numpy(labels),
            torch.from_numpy(scores) if self.ordered else None,
            len(ids),
            (int((labels >= 0).sum()),),
        )

    def vectors(self, model: Any, texts: Texts, dtype: torch.dtype | None = None) -> Tensor:
        """The mean of each text's states, of length 1: R D, in at least fp32."""
        layout = texts.layout
        grid = layout.to_grid(widen(states(model, texts, dtype)))  # R T D
        return F.normalize(POOLS["mean"](grid, layout.keep, layout.keep), dim=-1)

    def loss(
        self,
        model: Any,
        batch: VectorBatch,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy of each pair's own text among all of the batch, or what the order of the
        batch's pairs costs, for each of them; without smoothing."""
        vectors = self.vectors(model, batch.texts, dtype)
        if batch.scores is not None:
            loss = _disorder(vectors, batch, batch.scores, self.recipe.options.scale)
            return loss, loss.detach()
        cosines = vectors[batch.first] @ vectors[batch.others].T  # P K·P
        scores = cosines * self.recipe.options.scale
        scores = scores.masked_fill(~batch.there, torch.finfo(scores.dtype).min)
        loss = F.cross_entropy(scores, batch.labels, ignore_index=IGNORE, reduction="sum")
        return loss, loss.detach()

    # --- figures ----------------------------------------------------------------------------------

    def measured(self, model: Any) -> tuple[str, ...]:
        """Of scored pairs how well they are ranked, else how often the nearest is right."""
        scored = "score" in self.validation
        return ("spearman", "pearson") if scored else ("accuracy",)

    def metrics(
        self,
        model: Any,
        examples: Table,
        *,
        batch_tokens: int = 4096,
        dtype: torch.dtype | None = None,
    ) -> dict[str, float]:
        """spearman and pearson of cosines on scored pairs; on others accuracy: how often the
        nearest of all second texts is the pair's own."""
        first, second = self._all(model, examples, batch_tokens, dtype)
        return _figures(first, second, examples)

    def _all(
        self, model: Any, examples: Table, batch_tokens: int, dtype: torch.dtype | None
    ) -> tuple[Array, Array]:
        """Vectors of the first and the second texts, in their order."""
        out: list[Array | None] = [None, None]
        with judging(model):
            for index, batch in self.batches(model, examples, batch_tokens):
                found = self.vectors(model, batch.texts, dtype).double().cpu().numpy()
                for side in (0, 1):
                    rows = found[side * len(index) : (side + 1) * len(index)]
                    if out[side] is None:
                        out[side] = np.zeros((len(examples), rows.shape[1]))
                    out[side][index] = rows  # type: ignore[index]
        assert out[0] is not None
        assert out[1] is not None
        return out[0], out[1]

    def predictions(self, model: Any, examples: Table, count: int = 50) -> Predictions:
        """Texts beside the nearest of all second ones; of scored pairs, their cosines."""
        first, second = self._all(model, examples, 4096, None)
        a, b = examples["text_a_text"], examples["text_b_text"]
        figures = _figures(first, second, examples)
        if "score" in examples:
            cosines = (first * second).sum(1)
            rows = [
                Prediction(f"{a[i]} ‖ {b[i]}", f"{examples['score'][i]:.4g}", f"{cosines[i]:.3f}")
                for i in range(min(count, len(examples)))
            ]
            return Predictions(tuple(rows), figures=figures)
        near = _nearest(first, second)
        shown = [
            Prediction(a[i], b[i], b[j], b[j] == b[i], float(max(0.0, first[i] @ second[j])))
            for i, j in enumerate(near)
        ]
        return Predictions(telling(shown, count), figures=figures)


def _disorder(vectors: Tensor, batch: VectorBatch, scores: Tensor, scale: float) -> Tensor:
    """log(1 + Σ exp(s·(cosᵢ − cosⱼ))) over scoreᵢ < scoreⱼ, times the pairs: their mean is it."""
    cosines = (vectors[batch.first] * vectors[batch.others]).sum(-1)  # P
    there = batch.labels != IGNORE
    wrong = (scores[:, None] < scores) & there[:, None] & there  # P P, i j
    apart = scale * (cosines[:, None] - cosines)
    apart = apart.masked_fill(~wrong, torch.finfo(apart.dtype).min).flatten()
    return torch.cat([apart.new_zeros(1), apart]).logsumexp(0) * there.sum()


def _same(examples: Table, index: Array) -> Array:
    """Which pairs mean the same: of scored ones those in the upper half of the scale."""
    if "score" not in examples:
        return np.ones(len(index), bool)
    scores = np.asarray(examples["score"])
    same: Array = scores[index] >= (scores.min() + scores.max()) / 2
    return same


def _figures(first: Array, second: Array, examples: Table) -> dict[str, float]:
    if "score" in examples:
        cosines = (first * second).sum(1)
        found = {"spearman": spearman, "pearson": pearson}
        # 0 where nothing varies
        return {k: float(np.nan_to_num(f(examples["score"], cosines))) for k, f in found.items()}
    texts = examples["text_b_text"]
    near = _nearest(first, second)
    right = [i == j or texts[i] == texts[j] for i, j in enumerate(near)]
    return {"accuracy": float(np.mean(right))}


def _nearest(first: Array, second: Array) -> list[int]:
    """Of each of the first, the number of the nearest of the second."""
    found: list[int] = []
    for start in range(0, len(first), _CHUNK):
        found += (first[start : start + _CHUNK] @ second.T).argmax(1).tolist()
    return found
