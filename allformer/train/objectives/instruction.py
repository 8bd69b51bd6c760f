"""Instructions: the answers of conversations are said, from all that stands before them.

    objective: {is: instruction, system: "You are a helpful assistant."}
    data: {path: alpaca.json.gz, max_length: 1024}

A conversation is written in the model's chat template, or in a default one (`text.chat_default`).
Every answer of it is learnt with the token that ends it, and nothing else; conversations lie end to
end, and none sees another.

Legend: N tokens of a batch, M of them to be said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.config import DecoderOnly
from allformer.core.inputs import Side
from allformer.core.layout import Packed
from allformer.core.loss import IGNORE
from allformer.core.model import DecoderOnlyModel
from allformer.data.conversations import read_conversation, shape_of, told_apart
from allformer.data.encoded import Rows
from allformer.data.records import Record
from allformer.data.table import Table, build_table
from allformer.errors import ConfigError, DataError
from allformer.text.answers import Answers
from allformer.text.chat_default import DEFAULT, HEADINGS, with_chat
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, Frame, lay_rows
from allformer.train.objectives.objective import Lengths, Objective, Say, register
from allformer.train.objectives.replies import ROWS, Samples, first_answers, replies
from allformer.train.objectives.words import SaysWords, check_words
from allformer.train.predictions import Prediction, Predictions
from allformer.train.room import within
from allformer.train.sections.recipe import Recipe
from allformer.train.sections.section import Section, at_least
from allformer.train.sections.vocabulary import Vocabulary
from allformer.train.shown_batch import ShownRow, shown_rows
from allformer.train.supervised.data import Held, RecordData, fingerprint, open_labelled, read_each
from allformer.train.supervised.encode_chats import BLANK, BROKEN, GOOD, EncodeChats
from allformer.train.supervised.encode_texts import tokenizer_key
from allformer.train.supervised.supervised import counted


@dataclass(frozen=True)
class ChatData(RecordData):
    """A conversation a record: messages, ShareGPT's, Alpaca's, or prompt and completion."""

    max_length: Annotated[int, at_least(4)] = 1024  # tokens of a conversation, the template's too
    truncate: bool = False  # one that is longer is cut, instead of left out


@dataclass(frozen=True)
class InstructionOptions(Section, section="objective"):
    """How conversations are written."""

    template: str | None = None  # a file with a chat template, instead of the model's own
    system: str | None = None  # what stands before conversations that have no system message


class AnswerBatch(NamedTuple):
    """What is read, where something has to be said, and what."""

    ids: Tensor  # N
    layout: Packed
    places: Tensor | None  # M: among the N states; None: each has a label
    labels: Tensor  # M, or N where all have one; −100: nothing is said
    tokens: int  # labels that count


@register("instruction")
class Instruction(SaysWords, Objective[Table, AnswerBatch]):
    """`Instruction(make_recipe({"objective": "instruction", "data": {"path": "a.json"}, …}))`."""

    shape = "decoder"
    compares = True
    Data: ClassVar[type[Section]] = ChatData
    Options = InstructionOptions

    def __init__(self, recipe: Recipe | None = None) -> None:
        super().__init__(recipe)
        self.records = Held((), ())
        self._tables: dict[str, Table] = {}
        self._tokenizer: Tokenizer | None = None
        self._before: list[str] | None = None

    # --- data -----------------------------------------------------------------------------------

    def open(self, corpus: Any = None) -> None:
        """Training and validation records; where no validation is named, some are held out."""
        self.records = open_labelled(
            self.recipe.data, {}, corpus, by=lambda record: told_apart(shape_of(record))
        )

    def texts(self) -> Iterable[str]:
        """All that anybody says, and the headings of the default template, whose letters may be in
        none of it."""

        def read(record: Record) -> list[str]:
            return [message["content"] for message in read_conversation(record).messages]

        said = chain.from_iterable(read_each(self.records.train, read))
        return chain(HEADINGS, said)

    def fingerprint(self) -> str:
        """Of the training records."""
        return fingerprint(self.records.train)

    def tokenizer(self, trained: Tokenizer) -> Tokenizer:
        """With the template that conversations are written in, which the run keeps."""
        path = self.recipe.options.template
        if path is None:
            return with_chat(trained)
        try:
            return with_chat(trained, Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"objective.template={path!r} cannot be read ({error}); give a file with a "
                f"template in jinja2, or leave it out"
            ) from None

    def encode(self, tokenizer: Tokenizer, say: Say) -> None:
        """Both splits as ids; what is cut or left out is said."""
        self._tokenizer = tokenizer
        if tokenizer.settings.chat_template == DEFAULT:
            say("chat template: the default one, as the model came without")
        for name, records in zip(("training", "validation"), self.records, strict=True):
            self._tables[name] = self._fitting(self._table(records, name), name, say)
        if not self.ends:
            say(
                "chat template: no special token ends an answer, so that the model does not learn "
                "to stop; one can be put into objective.template: {{ eos_token }}"
            )

    def _table(self, records: Iterable[Record], name: str) -> Table:
        data, system = self.recipe.data, self.recipe.options.system
        encode = EncodeChats(self.pieces, system, data.skip_bad)
        if data.cache is None:
            return build_table(records, encode)
        settings = self.pieces.settings
        said = (self.name, fingerprint(records), tokenizer_key(self.pieces), settings.chat_template,
                system, data.skip_bad)  # fmt: skip
        return build_table(records, encode, Path(data.cache) / name, key="/".join(map(str, said)))

    def _fitting(self, table: Table, name: str, say: Say) -> Table:
        """The conversations of which something can be learnt within `longest` tokens."""
        ids, fault, longest = table["ids"], np.asarray(table["fault"]), self.longest
        data, good, long = self.recipe.data, fault == GOOD, ids.lengths > longest
        short = good & ~long
        if data.truncate:
            short |= good & (_first_places(table["learnt"]) < longest)
        limit = "data.max_length" if longest == data.max_length else "train.batch_tokens"
        said = f"longer than {limit}={longest} (the longest has {ids.lengths.max():,})"
        broken = np.flatnonzero(fault == BROKEN)
        first = table["question"][broken[0]] if len(broken) else ""
        counts = {
            f"{said}: cut": int((short & long).sum()),
            f"{said}: left out": int((good & ~short).sum()),
            "without a word in the answers: left out": int((fault == BLANK).sum()),
            f"broken: left out (the first: {first})": len(broken),
        }
        kept = table.take(np.flatnonzero(short))
        lengths = np.minimum(kept["ids"].lengths, longest)
        columns = {key: _cut(kept[key], lengths) for key in ("ids", "learnt")}
        learnt = int(columns["learnt"].flat().sum())
        what = f"{len(kept):,} conversations, {lengths.sum():,} tokens, {learnt:,} of answers"
        say(counted(name, what, counts))
        if not len(kept):
            raise DataError(
                f"nothing is left of the {name} data; {counted('all of it', 'left out', counts)}: "
                f"raise {limit} if the model has room, or set data.truncate=true"
            )
        return Table({**kept.columns, **columns})

    @property
    def pieces(self) -> Tokenizer:
        """The tokeniser, after `encode`."""
        assert self._tokenizer is not None
        return self._tokenizer

    @cached_property
    def ends(self) -> list[int]:
        """The special tokens that answers end with, of the first conversations."""
        special = set(Answers(self.pieces).specials.values())
        rows = self._tables["training"]["ids"]
        last = {int(rows[i][-1]) for i in range(min(len(rows), 1000))}
        return sorted(last & special)

    def examples(self, epoch: int) -> Table:
        """Each time the same."""
        return self._tables["training"]

    @property
    def validation(self) -> Table:
        """The held-out conversations."""
        return self._tables["validation"]

    def lengths(self, examples: Table) -> tuple[Lengths, Lengths]:
        """Tokens that are read: all but the last."""
        read = examples["ids"].lengths - 1
        return read, read

    # --- model ----------------------------------------------------------------------------------

    def config(self, vocabulary: Vocabulary) -> DecoderOnly:
        """A decoder with a head over the vocabulary.

        Where it has fewer positions than `data.max_length`, the recipe says so from then on.
        """
        tree = super().config(vocabulary)
        check_words(tree, DecoderOnly, "a DecoderOnly", self.name)
        self.recipe = within(self.recipe, tree)
        found: DecoderOnly = tree
        return found

    def generation(self, config: Any) -> dict[str, Any]:
        """The ids that begin, end an answer, and fill."""
        tokens, ends = config.decoder.source, self.ends
        end = (ends[0] if len(ends) == 1 else ends) if ends else tokens.eos_id
        fill = tokens.pad_id if tokens.pad_id is not None else (ends or [tokens.eos_id])[0]
        said = {"bos_token_id": tokens.bos_id, "eos_token_id": end, "pad_token_id": fill}
        return {name: i for name, i in said.items() if i is not None}

    # --- batches and losses -----------------------------------------------------------------------

    def collate(self, examples: Table, index: Array, frame: Frame | None = None) -> AnswerBatch:
        """Conversations end to end: what is read, and one place further what is said."""
        ids, learnt = (examples[name].take(index) for name in ("ids", "learnt"))
        laid = lay_rows(ids.lengths - 1, frame)
        row, place = laid.row[: laid.real], laid.place[: laid.real]
        at = ids.starts[row] + place
        read, said = (np.full(len(laid.row), fill, np.int64) for fill in (0, IGNORE))
        read[: laid.real] = ids.ids[at]
        count = learnt.ids[learnt.starts[row] + place + 1] > 0
        said[: laid.real][count] = ids.ids[at[count] + 1]
        places = None
        if frame is None:  # else one size for all: a compiled step meets no new shape
            where = np.flatnonzero(said != IGNORE)
            said, places = said[where], torch.from_numpy(where)
        labels = torch.from_numpy(said)
        return AnswerBatch(torch.from_numpy(read), laid.packed(), places, labels, int(count.sum()))

    def _hidden(
        self, model: DecoderOnlyModel, batch: AnswerBatch, dtype: torch.dtype | None
    ) -> Tensor:
        sides = {"decoder": Side(batch.layout, {"input_ids": batch.ids})}
        hidden = model.hidden(sides, dtype=dtype)["decoder"].flatten(0, -2)  # N dim
        return hidden if batch.places is None else hidden.index_select(0, batch.places)  # M dim

    def shown(self, batch: AnswerBatch) -> tuple[ShownRow, ...]:
        """The conversations of a batch, with what is learnt of them."""
        labels = batch.labels
        if batch.places is not None:
            labels = torch.full_like(batch.ids, IGNORE).index_copy(0, batch.places, batch.labels)
        return shown_rows(self.pieces, batch.ids, labels, batch.layout.starts)

    # --- before and after ------------------------------------------------------------------------

    def compare(self, model: Any) -> None:
        """The model answers some held-out questions, for the report."""
        self._before = replies(model, self.pieces, self.samples(model), self.ends)

    @property
    def asked(self) -> Table:
        """The table of the questions that are shown."""
        return self.validation

    def samples(self, model: Any, count: int = ROWS) -> Samples:
        """The questions that are shown, so many of them."""
        return first_answers(self.asked, model.config.decoder.longest, count)

    def state(self) -> dict[str, Any]:
        """What was said before the first step."""
        return {"before": self._before}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave."""
        self._before = state.get("before")

    def predictions(self, model: Any, examples: Table, count: int = 50) -> Predictions:
        """Held-out questions: the answer of before, that of now, and that of the data."""
        samples = self.samples(model)
        said = replies(model, self.pieces, samples, self.ends)
        before: list[Any] = self._before or [None] * len(said)
        wanted = self.pieces.decode_batch(samples.answers)
        asked = [examples["question"][i] for i in samples.rows]
        rows = zip(asked, wanted, said, before, strict=True)
        return Predictions(tuple(Prediction(q, w, now, before=then) for q, w, now, then in rows))


def _first_places(learnt: Rows) -> Array:
    """Of each row the number of its first learnt token; its length where there is none."""
    found = [np.flatnonzero(learnt[i]) for i in range(len(learnt))]
    return np.array([x[0] if len(x) else len(learnt[i]) for i, x in enumerate(found)], np.int64)


def _cut(rows: Rows, lengths: Array) -> Rows:
    return Rows(rows.ids, lengths, rows.starts)
