"""What the objectives over preferences have in common: conversations as `instruction` reads them,
answers that are compared, batches of whole pairs.

A row of a table is an answer with all that stands before it. A pair is two rows, the better one
first; a verdict is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from allformer.core.loss import IGNORE
from allformer.data.conversations import told_apart
from allformer.data.encoded import Rows
from allformer.data.preferences import pair_shape, read_pair, read_verdicts
from allformer.data.records import Record
from allformer.data.table import Table, build_table
from allformer.errors import DataError
from allformer.train.batch import Array
from allformer.train.objectives.objective import Lengths, Say
from allformer.train.predictions import Predictions
from allformer.train.preferences.compared import Compared
from allformer.train.preferences.encode import SAME, EncodePreferences
from allformer.train.preferences.said import Said
from allformer.train.shown_batch import ShownRow, shown_rows
from allformer.train.supervised.data import fingerprint, open_labelled, read_each
from allformer.train.supervised.encode_chats import BLANK, BROKEN, GOOD
from allformer.train.supervised.encode_texts import tokenizer_key
from allformer.train.supervised.supervised import counted


class Preferred(Compared):
    """Pairs of answers, or answers with a verdict."""

    pairs: ClassVar[bool] = True  # whether an example is two rows

    def __init__(self, recipe: Any = None) -> None:
        super().__init__(recipe)
        self._last: dict[str, Tensor] = {}

    # --- data -----------------------------------------------------------------------------------

    def open(self, corpus: Any = None) -> None:
        """Training and validation records; where no validation is named, some are held out, all
        pairs of a prompt together."""
        self.records = open_labelled(
            self.recipe.data, {}, corpus, by=lambda record: told_apart(pair_shape(record))
        )

    def texts(self) -> Iterable[str]:
        """All that anybody says."""

        def read(record: Record) -> list[str]:
            if self.pairs:
                pair = read_pair(record)
                messages = pair.chosen.messages + pair.rejected.messages[pair.shared :]
            else:
                messages = [m for each in read_verdicts(record) for m in each.conversation.messages]
            return [message["content"] for message in messages]

        return chain.from_iterable(read_each(self.records.train, read))

    def encode(self, tokenizer: Any, say: Say) -> None:
        """Both splits as ids; rows are numbered through both."""
        super().encode(tokenizer, say)
        first = 0
        for name, table in self._tables.items():
            number = np.arange(first, first + len(table))
            self._tables[name] = Table({**table.columns, "number": number})
            first += len(table)

    @property
    def rows(self) -> int:
        """Of both splits."""
        return sum(map(len, self._tables.values()))

    def _table(self, records: Iterable[Record], name: str) -> Table:
        data, system = self.recipe.data, self.recipe.options.system
        encode = EncodePreferences(self.pieces, self.pairs, system, data.skip_bad)
        if data.cache is None:
            return build_table(records, encode)
        said = ("preferences", self.pairs, fingerprint(records), tokenizer_key(self.pieces),
                self.pieces.settings.chat_template, system, data.skip_bad)  # fmt: skip
        return build_table(records, encode, Path(data.cache) / name, key="/".join(map(str, said)))

    def _fitting(self, table: Table, name: str, say: Say) -> Table:
        """The examples whose answers can be compared within `longest` tokens."""
        ids, fault, longest = table["ids"], np.asarray(table["fault"]), self.longest
        each = 2 if self.pairs else 1
        good = (fault == GOOD).reshape(-1, each).all(1)
        long = ids.lengths > longest
        room = longest if self.recipe.data.truncate else 0
        fits = (~long | (_first_places(table["learnt"]) < room)).reshape(-1, each).all(1)
        data = self.recipe.data
        limit = "data.max_length" if longest == data.max_length else "train.batch_tokens"
        what = f"longer than {limit}={longest} (the longest has {ids.lengths.max():,})"
        longs = long.reshape(-1, each).any(1)
        counts = {
            f"{what}: cut": int((good & fits & longs).sum()),
            f"{what}: left out": int((good & ~fits).sum()),
            "without a word in an answer: left out": int((fault == BLANK).sum()) // each,
            "whose answers are the same: left out": int((fault == SAME).sum()) // each,
            "broken: left out": int((fault == BROKEN).sum()) // each,
        }
        kept = table.take(np.flatnonzero(np.repeat(good & fits, each)))
        lengths = np.minimum(kept["ids"].lengths, longest)
        columns = {key: _cut(kept[key], lengths) for key in ("ids", "learnt")}
        said = f"{len(kept) // each:,} {'pairs' if self.pairs else 'answers'}"
        say(counted(name, f"{said}, {lengths.sum():,} tokens", counts))
        if not len(kept):
            raise DataError(
                f"nothing is left of the {name} data; {counted('all of it', 'left out', counts)}: "
                f"raise {limit} if the model has room, or set data.truncate=true"
            )
        return Table({**kept.columns, **columns})

    def lengths(self, examples: Table) -> tuple[Lengths, Lengths]:
        """Tokens that are read of either answer."""
        read = examples["ids"].lengths - 1
        return (read[0::2], read[1::2]) if self.pairs else (read, read)

    def pair_rows(self, index: Array) -> Array:
        """The rows of some pairs: all chosen answers, then all rejected ones."""
        return np.concatenate([2 * index, 2 * index + 1])

    def better(self, examples: Table) -> Table:
        """The chosen answers, or those that are good."""
        if self.pairs:
            return examples.take(np.arange(0, len(examples), 2))
        found = np.flatnonzero(np.asarray(examples["value"]))
        return examples.take(found if len(found) else np.arange(len(examples)))

    # --- batches and figures ----------------------------------------------------------------------

    def figures(self) -> dict[str, float]:
        """Of the last step: how often the better answer is preferred, and by how much."""
        return {name: float(value) for name, value in self._last.items()}

    def shown(self, batch: Any) -> tuple[ShownRow, ...]:
        """The answers of a batch, with what stands before them; of a pair the better one first."""
        said: Said = batch.said
        labels = torch.full_like(said.ids, IGNORE).index_copy(0, said.places, said.labels)
        rows = shown_rows(self.pieces, said.ids, labels, said.layout.starts)
        return in_pairs(rows) if self.pairs else rows

    @property
    def asked(self) -> Table:
        """The better answers of the held-out pairs."""
        return self.better(self.validation)

    def predictions(self, model: Any, examples: Table, count: int = 50) -> Predictions:
        """Held-out questions: the answer of before, that of now, and the better one of the data."""
        return super().predictions(model, self.better(examples), count)


def rows_of(examples: Table, rows: Array) -> list[tuple[Array, Array]]:
    """Ids of some rows, and which of them are the answer."""
    ids, learnt = examples["ids"], examples["learnt"]
    return [(ids[i], learnt[i]) for i in rows.tolist()]


def in_pairs(rows: tuple[ShownRow, ...]) -> tuple[ShownRow, ...]:
    """Both answers of a pair beside each other: all chosen ones come first, then the others."""
    half = len(rows) // 2
    return tuple(chain.from_iterable(zip(rows[:half], rows[half:], strict=True)))


def half_ties(gap: Tensor) -> Tensor:
    """1 where the first is above, ½ where both are the same, as they are before the first step."""
    return (gap.sign() + 1) / 2


def gap_figures(gap: Tensor) -> dict[str, Tensor]:
    """Of a step, by how much the better answers stand above the others, P."""
    return {"preference_accuracy": half_ties(gap).mean(), "reward_margin": gap.mean()}


def _first_places(learnt: Rows) -> Array:
    """Of each row the number of its first learnt token; its length where there is none."""
    found = [np.flatnonzero(learnt[i]) for i in range(len(learnt))]
    return np.array([x[0] if len(x) else len(learnt[i]) for i, x in enumerate(found)], np.int64)


def _cut(rows: Rows, lengths: Array) -> Rows:
    return Rows(rows.ids, lengths, rows.starts)
