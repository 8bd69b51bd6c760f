"""What objectives share whose model learns from its own answers: prompts, rollouts, rewards.

A batch comes as prompts. Made ready, it is answered (`rollout.draw_answers`), judged (`rewards`)
and a part of that rollout becomes the batch of a step. A rollout may serve several steps: the same
prompts come again, and find it. Its draws are decided by (seed, epoch, number) alone.

What a method adds: `work_out` (advantages, what its loss compares with), `loss`, and `appraise` if
its figures are others.

Legend: P prompts, R answers, W most tokens of one, K rewards.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.data.conversations import told_apart
from allformer.data.prompts import prompt_shape, read_prompt
from allformer.data.records import Record
from allformer.data.table import Table, build_table
from allformer.errors import ConfigError, DataError
from allformer.text.answers import Answers
from allformer.text.chat_default import HEADINGS
from allformer.train.batch import Array, Frame
from allformer.train.objectives.objective import Lengths, Say
from allformer.train.objectives.replies import NEW, ROWS, Samples
from allformer.train.policy.advantages import group_spread
from allformer.train.policy.encode import EncodePrompts
from allformer.train.policy.logps import Logps, answer_logps
from allformer.train.policy.options import PolicyOptions, PromptData
from allformer.train.policy.prompts import HELD_OUT, PromptBatch, Prompts, collate_prompts
from allformer.train.policy.rewards import Answered, Rewards
from allformer.train.policy.rollout import Drawn, Rollout, draw_answers
from allformer.train.policy.running import Running
from allformer.train.predictions import Prediction
from allformer.train.preferences.compared import Compared
from allformer.train.preferences.reference import (
    BASE,
    chosen_reference,
    divergence,
    has_base,
    without_adapters,
)
from allformer.train.preferences.said import Said, without_dropout
from allformer.train.room import room_of
from allformer.train.shown_batch import ShownRow
from allformer.train.supervised.data import fingerprint, open_labelled, read_each
from allformer.train.supervised.encode_chats import BROKEN, GOOD
from allformer.train.supervised.encode_texts import tokenizer_key
from allformer.train.supervised.supervised import counted


class PolicyBatch(NamedTuple):
    """The answers of a step."""

    rollout: Rollout  # R of them
    said: Said
    tokens: int  # of the answers
    counts: tuple[int, ...]


class OnPolicy(Compared):
    """`copies` answers to each prompt, `beta` is what divergence costs."""

    Data, Options = PromptData, PolicyOptions

    def __init__(self, recipe: Any = None) -> None:
        super().__init__(recipe)
        self.copy: Any = None  # of the model as it began, where no adapter can be taken off
        self.rewards = Rewards(getattr(self.recipe.options, "rewards", ()))
        self.rollouts: dict[tuple[int, int], Rollout] = {}  # those in use
        self.running = Running()
        self._checked = False

    @property
    def options(self) -> Any:
        """The objective's own section."""
        return self.recipe.options

    @property
    def copies(self) -> int:
        """Answers to each prompt."""
        return 1

    @property
    def beta(self) -> float:
        """What divergence from the reference costs; 0: nobody is compared with."""
        return 0.0

    @property
    def uses(self) -> int:
        """Steps that one rollout serves."""
        found: int = self.options.iterations * self.options.minibatches
        return found

    # --- data -----------------------------------------------------------------------------------

    def open(self, corpus: Any = None) -> None:
        """Training and validation prompts; where no validation is named, some are held out."""
        self.records = open_labelled(
            self.recipe.data, {}, corpus, by=lambda record: told_apart(prompt_shape(record))
        )

    def texts(self) -> Iterable[str]:
        """All that is asked."""

        def read(record: Record) -> str:
            asked = read_prompt(record)
            return asked.text or "\n".join(m["content"] for m in asked.messages)

        yield from HEADINGS
        yield from read_each(self.records.train, read)

    def _table(self, records: Iterable[Record], name: str) -> Table:
        data, system = self.recipe.data, self.options.system
        encode = EncodePrompts(self.pieces, system, data.skip_bad)
        if data.cache is None:
            return build_table(records, encode)
        said = ("prompts", fingerprint(records), tokenizer_key(self.pieces),
                self.pieces.settings.chat_template, system, data.skip_bad)  # fmt: skip
        return build_table(records, encode, Path(data.cache) / name, key="/".join(map(str, said)))

    def _fitting(self, table: Table, name: str, say: Say) -> Table:
        """The prompts that leave room for an answer."""
        ids, fault = table["ids"], np.asarray(table["fault"])
        longest = self.recipe.data.max_length
        good, long = fault == GOOD, ids.lengths > longest
        broken = np.flatnonzero(fault == BROKEN)
        first = table["question"][broken[0]] if len(broken) else ""
        counts = {
            f"longer than data.max_length={longest} (the longest has {ids.lengths.max():,}): "
            f"left out": int((good & long).sum()),
            f"broken: left out (the first: {first})": len(broken),
        }
        kept = table.take(np.flatnonzero(good & ~long))
        say(counted(name, f"{len(kept):,} prompts, {kept['ids'].lengths.sum():,} tokens", counts))
        if not len(kept):
            raise DataError(
                f"nothing is left of the {name} data; {counted('all of it', 'left out', counts)}: "
                f"raise data.max_length if the model has room, beside "
                f"objective.sampling.length={self.options.sampling.length} tokens of an answer"
            )
        return kept

    @cached_property
    def ends(self) -> list[int]:
        """The tokens that end an answer: the template's own, and the end of text."""
        answers = Answers(self.pieces)
        chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
        last = answers.encode(answers.write(chat)[-1:])[0].ids[-1]
        found = {last} & set(answers.specials.values())
        if (end := self.pieces.special_ids.get("eos")) is not None:
            found.add(end)
        return sorted(found)

    def examples(self, epoch: int) -> Prompts:  # type: ignore[override]
        """In an order that (seed, epoch) decide."""
        table = self._tables["training"]
        draw = np.random.default_rng((self.recipe.train.seed, epoch))
        return Prompts(table, draw.permutation(len(table)), epoch, self.uses)

    @property
    def validation(self) -> Prompts:  # type: ignore[override]
        """The held-out prompts, as many as are answered."""
        table = self._tables["validation"]
        return Prompts(table, np.arange(min(len(table), self.options.validate)))

    def lengths(self, examples: Prompts) -> tuple[Lengths, Lengths]:  # type: ignore[override]
        """Tokens of each prompt and the longest answer that it may get."""
        found = examples.table["ids"].lengths[examples.rows] + self.options.sampling.length
        found = np.tile(found, examples.uses)
        return found, found

    def order(self, examples: Prompts) -> list[Array]:  # type: ignore[override]
        """Prompts of a rollout together, again and again while it serves."""
        found = examples.batches(self._size(examples), self.recipe.train.accumulate)
        if not found:
            raise ConfigError(
                f"train.accumulate={self.recipe.train.accumulate} rollouts of objective.prompts="
                f"{self.options.prompts} are more than the {len(examples.rows)} prompts that there "
                f"are; take fewer"
            )
        return found

    def _size(self, examples: Prompts) -> int:
        """Prompts of a batch; held-out ones have one answer each."""
        size: int = self.options.prompts
        return size * self.copies if examples.epoch == HELD_OUT else size

    def collate(self, examples: Any, index: Array, frame: Frame | None = None) -> Any:
        """Prompts end to end."""
        return collate_prompts(examples, np.asarray(index), self._size(examples))

    def shown(self, batch: Any) -> tuple[ShownRow, ...]:
        """The prompts; nothing of them is learnt, and the answers are not there yet."""
        rows = [ids.tolist() for ids in batch.prompts()]
        texts = [self.pieces.decode(ids, skip_special_tokens=False) for ids in rows]
        return tuple(
            ShownRow(ids, [False] * len(ids), [(text, False)])
            for ids, text in zip(rows, texts, strict=True)
        )

    # --- model ----------------------------------------------------------------------------------

    @property
    def longest(self) -> int:
        """The most tokens of a prompt with its answer."""
        found: int = self.recipe.data.max_length + self.options.sampling.length
        return found

    def config(self, vocabulary: Any) -> Any:
        """Rewards that cannot be found, and settings that would change nothing, are refused."""
        if self.recipe.train.smoothing:
            raise ConfigError(
                f"train.smoothing={self.recipe.train.smoothing}: objective={self.name!r} does not "
                f"know it; remove it"
            )
        if not self.rewards.sections:
            raise ConfigError(
                "objective.rewards is empty: nothing says which answer is good; try "
                "rewards: [words.py:used], a run's directory, or a command (tune has --reward)"
            )
        if not self._checked:
            self.rewards.check()
            self._checked = True
        tree = super().config(vocabulary)
        room, length = room_of(self.recipe, tree), self.options.sampling.length
        if room is not None and room < self.recipe.data.max_length + length:
            if length > room - 4:
                raise ConfigError(
                    f"objective.sampling.length={length} leaves no room for a prompt: the model "
                    f"has {room} positions; try {room // 2}"
                )
            data = replace(self.recipe.data, max_length=room - length)
            self.recipe = replace(self.recipe, data=data)
        return tree

    def meet(self, model: Any, captures: bool) -> None:
        """The model that answers; where no adapter can be taken off, how it began is read again."""
        if self.others is not None:
            raise ConfigError(
                f"objective={self.name!r} draws answers in one process; start it without torchrun"
            )
        super().meet(model, captures)
        self.rewards.open(model.device)
        if self.beta and chosen_reference(model, self.options.reference) != BASE:
            self.copy = self.frozen(model)

    @property
    def refers(self) -> bool:
        """Whether there is a reference: at a price, or for nothing."""
        return self.copy is not None or has_base(self.policy)

    @contextmanager
    def reference(self) -> Iterator[Any]:
        """The base, or the copy of how the model began."""
        if self.copy is not None:
            yield self.copy
        else:
            with without_adapters(self.policy) as base:
                yield base

    # --- rollouts -------------------------------------------------------------------------------

    def ready(self, batch: Any) -> Any:
        """Answered and judged, or the answers of before where they serve again."""
        if self.policy is None or isinstance(batch, PolicyBatch):
            return batch
        if batch.place[0] == HELD_OUT:
            laid = self._laid(self.answer(batch, 1))
            return laid._replace(counts=batch.counts)
        rollout = self.rollouts.get(batch.place)
        if rollout is None:
            rollout = self.answer(batch, self.copies)
            self._note(rollout)
            rollout = self.work_out(rollout)
            while len(self.rollouts) >= self.recipe.train.accumulate:
                del self.rollouts[next(iter(self.rollouts))]
            self.rollouts[batch.place] = rollout
        return self._laid(self._part(rollout, batch))

    def answer(self, batch: PromptBatch, copies: int) -> Rollout:
        """Draw answers to a batch's prompts, and ask what they are worth."""
        prompts = batch.prompts()
        seed = np.random.SeedSequence(
            (self.recipe.train.seed, batch.place[0] + 1, batch.place[1])
        ).generate_state(1, np.uint64)[0]
        drawn = draw_answers(
            self.policy, prompts, self.options.sampling, ends=self.ends, copies=copies,
            seed=int(seed >> 1), dtype=self.dtype,
        )  # fmt: skip
        groups = np.repeat(np.arange(len(prompts)), copies)
        each = self.rewards(self._answered(batch, drawn, groups))
        rows = [
            (np.concatenate([prompts[g], a]), np.repeat([0, 1], [len(prompts[g]), len(a)]))
            for g, a in zip(groups, drawn.answers, strict=True)
        ]
        device = self.policy.device
        each = each.to(device, torch.float32)
        return Rollout(
            rows,
            torch.tensor(drawn.ended, device=device),
            torch.from_numpy(groups).to(device),
            each,
            self.rewards.total(each),
        )

    def _answered(self, batch: PromptBatch, drawn: Drawn, groups: Array) -> list[Answered]:
        table = self._tables["validation" if batch.place[0] == HELD_OUT else "training"]
        rows = batch.rows.tolist()
        asked = [
            (table["question"][i], json.loads(table["messages"][i]), json.loads(table["record"][i]))
            for i in rows
        ]
        texts = self.pieces.decode_batch([answer.tolist() for answer in drawn.answers])
        found = []
        for g, text, ids, ended in zip(groups, texts, *drawn, strict=True):
            question, messages, record = asked[g]
            found.append(Answered(question, text, messages, record, tuple(ids.tolist()), ended))
        return found

    def _note(self, rollout: Rollout) -> None:
        """What a fresh rollout is like, for the log."""
        parts = zip(self.rewards.names, rollout.rewards.mean(0), strict=True)
        several = len(self.rewards.names) > 1
        self.running.add(
            reward=rollout.score.mean(),
            **({f"reward_{name}": x for name, x in parts} if several else {}),
            reward_std=group_spread(rollout.score, self.copies),
            length=rollout.lengths.float().mean(),
            cut=(~rollout.ended).float().mean(),
        )

    @abstractmethod
    def work_out(self, rollout: Rollout) -> Rollout:
        """What the steps on a rollout need beside its answers, worked out once: advantages (in
        `more`), `logps` of before, the `reference`'s."""

    def say(self, rollout: Rollout, model: Any) -> Logps:
        """What a model makes of the answers, without gradients: R W."""
        with torch.no_grad(), without_dropout(model):
            return answer_logps(
                model, rollout.said(), self.options.sampling.temperature, self.dtype
            )

    def _part(self, rollout: Rollout, batch: PromptBatch) -> Rollout:
        """The answers of a step: all, or the next of `minibatches` parts of an order that the
        rollout's place and the iteration decide."""
        parts = self.options.minibatches
        if parts == 1:
            return rollout
        through, part = divmod(batch.use, parts)
        key = (self.recipe.train.seed, *batch.place, through)
        order = np.random.default_rng(key).permutation(len(rollout.rows))
        if len(order) < parts:
            raise ConfigError(
                f"objective.minibatches={parts} are more than the {len(order)} answers of a "
                f"rollout; take fewer, or raise objective.prompts"
            )
        return rollout.take(np.array_split(order, parts)[part].tolist())

    def _laid(self, rollout: Rollout) -> PolicyBatch:
        said = rollout.said()
        tokens = len(said.labels)
        return PolicyBatch(rollout, said, tokens, (self.counted(len(rollout.rows), tokens),))

    def counted(self, answers: int, tokens: int) -> int:
        """What the loss of a step is a mean over: its answers."""
        return answers

    # --- figures --------------------------------------------------------------------------------

    def figures(self) -> dict[str, float]:
        """Means over the steps since the last report."""
        return self.running.read()

    def measured(self, model: Any) -> tuple[str, ...]:
        """The reward and its parts, the divergence where there is a reference, and lengths."""
        names = self.rewards.names
        parts = tuple(f"reward_{name}" for name in names) if len(names) > 1 else ()
        return ("reward", *(("kl",) if self.refers else ()), *parts, "length", "cut")

    def appraise(
        self, model: Any, batch: Any, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Sums over held-out prompts, each answered once, by the same draws each time: `reward`,
        its parts, `kl` (of each token, over the whole vocabulary), `length`, and `cut`, how many
        answers had no end. The loss is β kl − reward: what is sought, the other way round."""
        if self.policy is None:  # a run that has ended is looked at
            OnPolicy.meet(self, model, False)  # nothing learns beside it
        batch = self.ready(batch)
        rollout: Rollout = batch.rollout
        found = {"reward": rollout.score.double()}
        if self.refers:
            with without_dropout(model):
                found["kl"] = divergence(model, self.reference, batch.said, dtype).double()
        if len(self.rewards.names) > 1:
            parts = zip(self.rewards.names, rollout.rewards.double().T, strict=True)
            found |= {f"reward_{name}": x for name, x in parts}
        found |= {"length": rollout.lengths.double(), "cut": (~rollout.ended).double()}
        loss = self.beta * found["kl"] - found["reward"] if "kl" in found else -found["reward"]
        return loss.sum(), {name: x.sum() for name, x in found.items()}

    # --- before and after, and across a resume ----------------------------------------------------

    @property
    def asked(self) -> Table:
        """The table of the held-out prompts."""
        return self.validation.table

    def samples(self, model: Any, count: int = ROWS) -> Samples:
        """Some of the held-out prompts, whose answers are shown before and after."""
        table = self.asked
        chosen = np.unique(np.linspace(0, len(table) - 1, min(count, len(table))).astype(int))
        prompts = [table["ids"][i].tolist() for i in chosen]
        most = min(NEW, self.options.sampling.length)
        return Samples(chosen.tolist(), prompts, [[] for _ in chosen], most)

    def predictions(self, model: Any, examples: Any, count: int = 50) -> Any:
        """Held-out prompts: the answers of before and of now, what the rewards make of them, and
        the data's own where it has one."""
        found = super().predictions(model, examples.table, count)
        where = self.samples(model).rows
        rows = [self._rewarded(row, i) for row, i in zip(found.rows, where, strict=True)]
        return replace(found, rows=tuple(rows))

    def _rewarded(self, shown: Prediction, row: int) -> Prediction:
        table = self._tables["validation"]
        shown = replace(shown, wanted=table["answer"][row])
        if shown.before is None or self.rewards.judges is None:
            return shown
        asked = shown.input, json.loads(table["messages"][row]), json.loads(table["record"][row])
        both = [
            Answered(asked[0], text, asked[1], asked[2], tuple(self.pieces.encode(text)))
            for text in (shown.before, shown.given)
        ]
        before, after = self.rewards.total(self.rewards(both)).tolist()
        return replace(shown, rewards=(before, after))

    def state(self) -> dict[str, Any]:
        """The rollouts that further steps use, and what was not reported yet."""
        kept = self.rollouts if self.uses > 1 else {}
        rollouts = [(list(place), rollout.state()) for place, rollout in kept.items()]
        return {**super().state(), "rollouts": rollouts, "running": self.running.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave."""
        super().restore(state)
        device = self.policy.device
        self.rollouts = {
            (place[0], place[1]): Rollout.restored(kept, device)
            for place, kept in state.get("rollouts", ())
        }
        self.running.restore(state.get("running", {}))
