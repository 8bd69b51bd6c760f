"""AudioLM's stages: what sound means, then its coarse codes, then its fine ones, are to be said.

    objective: {is: sound-tokens, stage: semantic, units: whisper-tiny.en}
    objective: {is: sound-tokens, stage: coarse, units: whisper-tiny.en, codec: runs/codec}
    objective: {is: sound-tokens, stage: fine, codec: runs/codec}
    data: {path: recordings, seconds: 6.0, voice: '_([a-z]+)_', join: 10.0}

Each stage is a run of its own. Recordings become units and codes once, at the beginning; an epoch
reads other parts of them. What a stage is given counts for nothing in its loss (Borsos et al.,
2022, section III.B).

Legend: N tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from allformer.audiolm.examples import Examples, cut_anew, cut_once
from allformer.audiolm.generate import open_audiolm
from allformer.audiolm.hearing import CODEC, Encoded, Hearing, codec_fingerprint, open_codec
from allformer.audiolm.recordings import (
    Recording,
    find_recordings,
    fingerprint,
    pattern,
    split,
    streams,
)
from allformer.audiolm.stage_file import StageFacts, write_stage
from allformer.audiolm.tokens import STAGES, Stage
from allformer.audiolm.units import FOLDER, load_units
from allformer.checkpoint.save import OWN, save
from allformer.config import DecoderOnly
from allformer.config.check import Rule
from allformer.core.inputs import Side
from allformer.core.loss import IGNORE
from allformer.core.precision import pick_device
from allformer.errors import AllformerError, ConfigError, DataError
from allformer.sound.clip import clip
from allformer.train.batch import Array, Frame, lay_rows
from allformer.train.heard import Heard
from allformer.train.objectives.documents import LineBatch
from allformer.train.objectives.objective import Lengths, Objective, Say, register
from allformer.train.objectives.words import SaysWords, check_words
from allformer.train.predictions import Predictions
from allformer.train.room import check_length
from allformer.train.sections.section import (
    Count,
    NotNegative,
    Section,
    one_of,
    positive,
    share,
)
from allformer.train.sections.vocabulary import Vocabulary

_TWO = Rule(lambda x: len(x) == 2 and 0 <= x[0] <= x[1], "must be [least, most]", "try [0.1, 0.4]")
VOICES, GIVEN, SAID = 8, 0.75, 3.0  # that the report lets one hear: how many, and their seconds
_SIZES = {"units": 256, "codes": 1024, "books": 8}  # to check a model with, before it is known


@dataclass(frozen=True)
class StageOptions(Section, section="objective"):
    """Which stage, and what makes its ids: the folder of units (`allformer units`), the run or
    checkpoint of a codec. `coarse` of the codec's books are said by the second stage."""

    stage: Annotated[str, one_of(*STAGES)] = "semantic"
    units: str | None = None
    codec: str | None = None
    coarse: Count = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, without in (("units", "fine"), ("codec", "semantic")):
            if getattr(self, name) is not None and self.stage == without:
                self.refuse(name, f"is not needed by stage={self.stage}", "leave it out")


@dataclass(frozen=True)
class RecordingData(Section, section="data"):
    """A folder of recordings. An example has so many `seconds`.

    `voice` is a regular expression that finds who speaks in a file's name; without one it is the
    folder's name. With `join`, recordings of one voice are joined to streams of so many seconds,
    with silence between them (`pause`, from … to seconds), in `passes` different orders.
    """

    path: str | None = None
    seconds: Annotated[float, positive("6.0")] = 6.0
    voice: str | None = None
    join: NotNegative = 0.0
    pause: Annotated[tuple[float, ...], _TWO] = (0.1, 0.4)
    passes: Count = 1
    validation: str | None = None  # names that have this in them (a regular expression), else:
    hold_out: Annotated[float, share("0.05")] = 0.05  # such a share of all

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("voice", "validation"):
            if (text := getattr(self, name)) is not None:
                pattern(text, f"data.{name}")
        if self.passes > 1 and not self.join:
            self.refuse("passes", "are for recordings that are joined", "give data.join, or 1")

    def opened(self, corpus: Any, seed: int) -> tuple[Sequence[Recording], Sequence[Recording]]:
        """Those to train on, those to validate on; `corpus` may be both, instead of a folder."""
        if corpus is not None and not isinstance(corpus, str | Path):
            train, held = corpus
            return train, held
        if corpus is None and self.path is None:
            raise DataError(
                "data.path is missing: say where the recordings are, or give --data FOLDER"
            )
        found = find_recordings(corpus or self.path or "", self.voice)
        names = ("data.validation", "data.hold_out")
        return split(found, self.validation, self.hold_out, seed, names)

    def scored(self, data: str | None, split: str | None) -> tuple[str, RecordingData]:
        """The section whose held-out recordings are those to score, and what to call them."""
        if split == "test":
            raise DataError(
                "--split test: what is held out is the val split (data.validation says which); "
                "leave --split out"
            )
        return split or "val", self if data is None else replace(self, path=data)


@register("sound-tokens")
class SoundTokens(SaysWords, Objective[Examples, LineBatch]):
    """`make_recipe({"objective": {"is": "sound-tokens", "stage": "fine", "codec": …}, …})`"""

    words = False
    shape = "decoder"
    Options = StageOptions
    Data = RecordingData
    usual: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "train": {"smoothing": 0.0, "batch_tokens": 16_384, "average": 1},
    }

    def __init__(self, recipe: Any = None) -> None:
        super().__init__(recipe)
        self.run: Path | None = None
        self.recordings: tuple[Sequence[Recording], Sequence[Recording]] | None = None

    @property
    def options(self) -> StageOptions:
        """The objective's own settings."""
        found = self.recipe.options
        return found if isinstance(found, StageOptions) else StageOptions()

    @property
    def data(self) -> RecordingData:
        """The data section."""
        assert isinstance(self.recipe.data, RecordingData)
        return self.recipe.data

    @cached_property
    def ears(self) -> Hearing:
        """What makes ids of sound."""
        asked = self.options
        for name, without, way_out in (
            ("units", "fine", "make them with `allformer units MODEL`, and say units: MODEL"),
            ("codec", "semantic", "say codec: runs/codec, or a checkpoint of EnCodec"),
        ):
            if getattr(asked, name) is None and asked.stage != without:
                raise ConfigError(
                    f"objective.{name} is missing, and stage={asked.stage} needs it: {way_out}"
                )
        units = _opened("units", asked.units, load_units)
        return Hearing(units, _opened("codec", asked.codec, open_codec))

    @property
    def stage(self) -> Stage:
        """Its ids: of the units and the codec, once they are open."""
        asked = self.options
        if self.recordings is None:
            return Stage(asked.stage, coarse=min(asked.coarse, _SIZES["books"] - 1), **_SIZES)
        units, codec = self.ears.units, self.ears.codec
        sizes = {} if codec is None else {"codes": codec.size, "books": codec.books}
        coarse = 0 if codec is None else asked.coarse
        return Stage(asked.stage, units=0 if units is None else len(units), coarse=coarse, **sizes)

    # --- data -----------------------------------------------------------------------------------

    def open(self, corpus: Any = None) -> None:
        """Find the recordings; what is needed beside them is opened, and must fit."""
        self.recordings = self.data.opened(corpus, self.recipe.train.seed)
        self.stage  # noqa: B018  (refuses sizes that do not fit)

    def fingerprint(self) -> str:
        """Of the training recordings."""
        assert self.recordings is not None
        return fingerprint(self.recordings[0])

    def encode(self, tokenizer: Any, say: Say) -> None:
        """All streams as units and codes: once."""
        assert self.recordings is not None
        ears = self.ears.to(pick_device(None))
        train, held = self.recordings
        if self.data.passes > 1:
            train = [each.in_memory(ears.rate) for each in train]
        self._train = [h for n in range(self.data.passes) for h in self._heard(ears, train, n)]
        self._held = self._heard(ears, held, self.data.passes)
        minutes = [sum(h.seconds for h in each) / 60 for each in (self._train, self._held)]
        say(
            f"recordings: {len(train):,} to train on, {minutes[0]:.1f} minutes in "
            f"{len(self._train):,} streams; {len(held):,} to validate on, {minutes[1]:.1f} minutes"
        )
        self.ears.to("cpu")
        self._validation = cut_once(self.ears, self._held, self.stage, self.data.seconds)
        short = sum(h.seconds < self.data.seconds for h in self._train)
        if short > len(self._train) // 2:
            say(
                f"{short:,} of {len(self._train):,} streams are shorter than data.seconds="
                f"{self.data.seconds:g}; join recordings of a voice (data.join), or take less"
            )

    def _heard(self, ears: Hearing, recordings: Sequence[Recording], number: int) -> list[Encoded]:
        data, seed = self.data, self.recipe.train.seed
        pause = (data.pause[0], data.pause[1])
        found = streams(
            recordings, ears.rate, join=data.join, pause=pause, seed=seed * 1000 + number
        )
        return [ears.hear(wave) for wave in found]

    def examples(self, epoch: int) -> Examples:
        """Other parts of the streams in each epoch."""
        key = (self.recipe.train.seed, epoch)
        return cut_anew(self.ears, self._train, self.stage, self.data.seconds, key)

    @property
    def validation(self) -> Examples:
        """The held-out streams, part after part."""
        return self._validation

    def lengths(self, examples: Examples) -> tuple[Lengths, Lengths]:
        """What each row reads."""
        return examples.lengths, examples.lengths

    # --- model ----------------------------------------------------------------------------------

    @property
    def longest(self) -> int:
        """What the longest row reads; a batch must hold one."""
        seconds = self.data.seconds
        rates = (50.0, 50.0)
        if self.recordings is not None:
            rates = (self.ears.unit_rate, self.ears.frame_rate)
        longest = self.stage.longest(*(round(seconds * rate) for rate in rates)) - 1
        room = self.recipe.train.batch_tokens
        if self.recordings is not None and room < longest:
            raise ConfigError(
                f"train.batch_tokens={room} is less than a row of data.seconds={seconds:g}, which "
                f"has up to {longest} tokens; set it to {longest} or more"
            )
        return longest

    def config(self, vocabulary: Any) -> DecoderOnly:
        """A decoder with a head over the ids of this stage."""
        stage = self.stage
        own = Vocabulary(stage.size, pad=stage.pad, bos=stage.begin, eos=stage.end)
        tree = self.recipe.model.fitted(self.shape, self.longest, own)
        check_words(tree, DecoderOnly, "a DecoderOnly", self.name)
        if self.recordings is not None:
            check_length(self.recipe, tree, self.longest)
        found: DecoderOnly = tree
        return found

    def leave(self, run: Path) -> None:
        """Units, codec, and what the ids are, so that the run goes on wherever it is taken."""
        self.run = run
        units, codec = self.ears.units, self.ears.codec
        facts: dict[str, Any] = {}
        if units is not None:
            units.save(run / FOLDER)
            facts["units"] = units.fingerprint
        if codec is not None:
            save(codec, run / CODEC, family=OWN)
            facts["codec"] = codec_fingerprint(codec)
        write_stage(run, StageFacts(self.stage, self.data.seconds, **facts))

    # --- batches and losses -----------------------------------------------------------------------

    def frame(self) -> Frame | None:
        """Rows are about as long as the longest: few of them fill a batch."""
        train = self.recipe.train
        rows = train.batch_rows or 1 + 2 * train.batch_tokens // self.longest
        return Frame(train.batch_tokens, rows, self.longest)

    def collate(self, examples: Examples, index: Array, frame: Frame | None = None) -> LineBatch:
        """Rows end to end; of what is given nothing is said."""
        laid = lay_rows(examples.lengths[index], frame)
        real = laid.real
        row, place = index[laid.row[:real]], laid.place[:real]
        at = examples.rows.starts[row] + place
        ids = np.full(len(laid.row), self.stage.pad, np.int64)
        labels = np.full(len(laid.row), IGNORE, np.int64)
        ids[:real] = examples.rows.ids[at]
        said = place + 1 >= examples.given[row]
        labels[:real] = np.where(said, examples.rows.ids[at + 1], IGNORE)
        both = torch.from_numpy(ids), torch.from_numpy(labels)
        return LineBatch(both[0], laid.packed(), both[1], int(said.sum()))

    def _hidden(self, model: Any, batch: LineBatch, dtype: torch.dtype | None) -> Tensor:
        sides = {"decoder": Side(batch.layout, {"input_ids": batch.ids}, batch.ids)}
        hidden: Tensor = model.hidden(sides, dtype=dtype)["decoder"]  # N dim
        return hidden

    def predictions(self, model: Any, examples: Examples, count: int = 50) -> Predictions | None:
        """How held-out recordings go on, a voice each; of the stage that is trained last, which
        finds the others beside it."""
        assert self.recordings is not None
        if self.run is None:
            return None
        try:
            kit = open_audiolm(self.run, device=model.device)
        except AllformerError:  # stages are missing still, or do not belong together
            return None
        voices = list(dict.fromkeys(each.voice for each in self.recordings[1]))[:VOICES]
        prompts = [self._prompt(voice, kit.ears.rate) for voice in voices]
        found = kit.go_on(prompts, kit.ears.rate, seconds=SAID, seed=self.recipe.train.seed)
        return Predictions(
            sounds=tuple(
                Heard(clip(wave, kit.rate), name=voice, prompt=begin / kit.rate)
                for voice, (wave, begin) in zip(voices, found, strict=True)
            )
        )

    def _prompt(self, voice: str, rate: int) -> Tensor:
        """The beginning of what a voice says in held-out recordings."""
        assert self.recordings is not None
        own = [each for each in self.recordings[1] if each.voice == voice]
        joined = streams(own, rate, join=GIVEN, seed=self.recipe.train.seed)
        return next(iter(joined))[: round(GIVEN * rate)]


def _opened(name: str, path: str | None, opener: Callable[[str], Any]) -> Any:
    """What an option names; where it cannot be opened, the error names the option."""
    try:
        return None if path is None else opener(path)
    except AllformerError as error:
        raise type(error)(f"objective.{name}={path!r}: {error}") from None
