"""Speech to text: what is said in a recording (Whisper).

    objective: transcription
    model: {checkpoint: whisper-tiny.en}       # with its own tokeniser and window
    data: {path: mine}                         # train.tsv: a sound file, a tab, its text

    model: {dim: 128, heads: 4, feed: 512, layers: 2}     # or Whisper's form from scratch
    tokenizer: {kind: characters}
    data: {path: digits, seconds: 3.0}

What stands before a text (language, task) is given and counts for nothing in the loss. Figures:
`wer` and `cer` of greedy transcripts, both sides tidied as Whisper's authors do.

Legend: B clips, S samples, M mel bins, F frames, W ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.checkpoint.load import GENERATION
from allformer.config import EncoderDecoder, LMHead, Sound
from allformer.config.sound import STRIDE
from allformer.core.inputs import Side
from allformer.core.layout import Grid
from allformer.core.loss import IGNORE
from allformer.data.recordings import Recording
from allformer.errors import ConfigError, DataError
from allformer.generate.generate import generate
from allformer.generate.rooms import forget
from allformer.json_file import read_object
from allformer.metrics.word_error import character_error, word_error
from allformer.sound.clip import clip
from allformer.sound.mel import log_mel
from allformer.sound.processor import SoundProcessor, hears, load_processor
from allformer.sound.read import describe
from allformer.sound.settings import MelSettings
from allformer.text.spoken import FILE as SPELLING
from allformer.text.spoken import Tidy, basic, english, load_spelling
from allformer.text.tokenizer import Tokenizer
from allformer.text.whisper import TASKS
from allformer.train.batch import Array, Frame, rows_that_fit
from allformer.train.heard import Heard
from allformer.train.objectives.objective import Lengths, Objective, Say, register
from allformer.train.objectives.words import SaysWords
from allformer.train.predictions import Predictions
from allformer.train.room import room_of
from allformer.train.sections.model import CheckpointModel, ModelRecipe, with_vocabulary
from allformer.train.sections.section import Section, one_of
from allformer.train.sections.vocabulary import Vocabulary
from allformer.train.spoken.clips import Clips
from allformer.train.spoken.data import SpokenData
from allformer.train.spoken.wording import Wording
from allformer.train.supervised.supervised import judging

_MORE = 16  # ids that a transcript may have beyond the longest text


@dataclass(frozen=True)
class TranscriptionOptions(Section, section="objective"):
    """What the texts are, for a Whisper of many languages; English is scored by its own rules."""

    language: str = "en"
    task: Annotated[str, one_of(*TASKS)] = "transcribe"


class SpokenBatch(NamedTuple):
    """Clips and texts: as collated 16-bit samples, once ready what the model hears."""

    sound: Tensor  # B S, then B M F
    read: Tensor  # B W: what the decoder reads
    labels: Tensor  # B W: what it has to say, −100 where nothing
    tokens: int  # labels that count


@register("transcription")
class Transcription(SaysWords, Objective[Clips, SpokenBatch]):
    """`make_recipe({"objective": "transcription", "data": {"path": "mine"}, …})`"""

    shape = "recogniser"
    Data, Options = SpokenData, TranscriptionOptions
    # Rows say how large a batch is; the tokens of a window are known.
    usual: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "train": {"smoothing": 0.0, "batch_rows": 32, "batch_tokens": 1 << 20, "pool": 0}
    }

    def __init__(self, recipe: Any = None) -> None:
        super().__init__(recipe)
        self.recordings: tuple[list[Recording], list[Recording]] | None = None
        self.clips: tuple[Clips, Clips] | None = None

    # --- data -----------------------------------------------------------------------------------

    def open(self, corpus: Any = None) -> None:
        """The recordings; `corpus` is splits by name."""
        self.recordings = self.recipe.data.opened(corpus, self.recipe.train.seed)

    def texts(self) -> Iterable[str]:
        """What is said in those to train on."""
        assert self.recordings is not None
        return (recording.text for recording in self.recordings[0])

    def fingerprint(self) -> str:
        """Of files, their sizes and texts."""
        assert self.recordings is not None
        seen = blake2b(digest_size=16)
        for one in self.recordings[0]:
            seen.update(f"{one.path.name}\0{one.path.stat().st_size}\0{one.text}\0".encode())
        return seen.hexdigest()

    def encode(self, tokenizer: Any, say: Say) -> None:
        """Texts as ids; what is too long is left out, aloud."""
        assert self.recordings is not None
        self._tokenizer: Tokenizer = tokenizer
        options = self.recipe.options
        self.wording = Wording.of(tokenizer, options.language, options.task)
        train, held = self.recordings
        first = self._kept(train, "training", say)
        second = first if held is train else self._kept(held, "validation", say)
        # One size for both, so that a compiled step meets one shape.
        samples, width = (max(getattr(x, n) for x in (first, second)) for n in ("samples", "width"))
        self.clips = (
            replace(first, samples=samples, width=width),
            replace(second, samples=samples, width=width),
        )

    def _kept(self, recordings: list[Recording], name: str, say: Say) -> Clips:
        seconds = [describe(one.path).seconds for one in recordings]
        ids = self.wording.encode(self._tokenizer, [one.text for one in recordings])
        rate, window, most = self.settings.sampling_rate, self.seconds, self.room
        fits = [i for i, s in enumerate(seconds) if s <= window and len(ids[i]) <= most]
        if not fits:
            raise DataError(
                f"no recording of {name} fits into {window:g} s and {most} tokens; cut them first"
            )
        out = len(recordings) - len(fits)
        less = f"; {out:,} left out, over {window:g} s or {most} tokens" if out else ""
        hours = sum(seconds[i] for i in fits) / 3600
        say(f"{name}: {len(fits):,} recordings, {hours:.2f} hours{less}")
        longest = max(seconds[i] for i in fits)
        samples = min(round(window * rate), round(longest * rate) + 1)
        width = max(len(ids[i]) for i in fits)
        return Clips([recordings[i] for i in fits], [ids[i] for i in fits], rate, samples, width)

    def examples(self, epoch: int) -> Clips:
        """Each time the same."""
        assert self.clips is not None
        return self.clips[0]

    @property
    def validation(self) -> Clips:
        """The held-out recordings."""
        assert self.clips is not None
        return self.clips[1]

    def lengths(self, examples: Clips) -> tuple[Lengths, Lengths]:
        """All alike: a window is filled up with silence."""
        lengths = np.full(len(examples), self.longest, dtype=np.int64)
        return lengths, lengths

    # --- model ----------------------------------------------------------------------------------

    @cached_property
    def tree(self) -> EncoderDecoder:
        """The recipe's tree; of sizes alone with a window of `data.seconds`."""
        model = self.recipe.model
        tree = model.tree(self.shape, self.recipe.data.max_length)
        if isinstance(model, ModelRecipe):
            steps = -(-round(self.recipe.data.seconds * 100) // STRIDE)
            position = replace(tree.encoder.position, length=steps)
            tree = replace(tree, encoder=replace(tree.encoder, position=position))
        if (
            not isinstance(tree, EncoderDecoder)
            or not isinstance(tree.encoder.source, Sound)
            or not isinstance(tree.head, LMHead)
            or tree.encoder.longest is None
        ):
            raise ConfigError(
                f"the model of objective={self.name!r} hears nothing, or says no words; give sizes "
                f"alone (model: {{dim: 128, heads: 4, layers: 2}}), a preset (whisper-tiny), or a "
                f"checkpoint of Whisper"
            )
        return tree

    @cached_property
    def settings(self) -> MelSettings:
        """How sound is prepared, here and by the tasks: the checkpoint's way, else Whisper's."""
        asked = self.recipe.model
        if isinstance(asked, CheckpointModel) and hears(asked.directory):
            found = load_processor(asked.directory).settings
            assert isinstance(found, MelSettings)
            return found
        frames = STRIDE * self.steps
        mels, seconds = self.tree.encoder.source.mels, -(-frames // 100)  # type: ignore[attr-defined]
        return MelSettings(mels, chunk_length=seconds)

    @property
    def steps(self) -> int:
        """Vectors of a window."""
        longest = self.tree.encoder.longest
        assert longest is not None
        return longest

    @property
    def seconds(self) -> float:
        """How long a window is."""
        return STRIDE * self.steps * self.settings.hop_length / self.settings.sampling_rate

    @property
    def room(self) -> int:
        """The most ids of a text, with what stands around it."""
        room = room_of(self.recipe, self.tree)
        most: int = self.recipe.data.max_length
        return most if room is None else min(most, room + 1)  # the last is said, not read

    @property
    def longest(self) -> int:
        """The tokens of a window and of the longest text."""
        return self.steps + (self.room if self.clips is None else self.clips[0].width)

    def config(self, vocabulary: Vocabulary) -> EncoderDecoder:
        """The tree for the tokeniser's ids."""
        tree, source = self.tree, self.tree.encoder.source
        assert isinstance(source, Sound)
        self.waits = source.hide_frames is not None or source.hide_mels is not None
        if isinstance(self.recipe.model, CheckpointModel):
            self.recipe.model.fitted(self.shape, 0, vocabulary)  # refuses a tokeniser too large
            return tree
        fitted: EncoderDecoder = with_vocabulary(tree, vocabulary)
        return replace(fitted, start_id=vocabulary.bos)

    def generation(self, config: Any) -> dict[str, Any] | None:
        """The checkpoint's, which knows Whisper's special ids."""
        asked = self.recipe.model
        if isinstance(asked, CheckpointModel) and (asked.directory / GENERATION).is_file():
            return read_object(asked.directory / GENERATION, ConfigError)
        return None

    def leave(self, run: Path) -> None:
        """How sound is prepared, and the checkpoint's list of spellings."""
        SoundProcessor(self.settings).save(run)
        asked = self.recipe.model
        if isinstance(asked, CheckpointModel) and (asked.directory / SPELLING).is_file():
            (run / SPELLING).write_bytes((asked.directory / SPELLING).read_bytes())

    # --- batches and losses -----------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Recordings of a full batch."""
        train = self.recipe.train
        return rows_that_fit(self.longest, train.batch_tokens, train.batch_rows)

    def frame(self) -> Frame | None:
        """So many rows; those that are missing at the end of an epoch are silence."""
        return Frame(self.rows * self.longest, self.rows, self.longest)

    def collate(self, examples: Clips, index: Array, frame: Frame | None = None) -> SpokenBatch:
        """Samples, and ids one place apart; filler says nothing."""
        waves, ids = examples.waves(index), examples.rows(index)
        missing = 0 if frame is None else frame.sentences - len(index)
        if missing:
            waves = np.concatenate([waves, np.zeros((missing, examples.samples), np.int16)])
            ids = np.concatenate([ids, np.full((missing, examples.width), -1, np.int64)])
        read = np.where(ids[:, :-1] < 0, self.wording.end, ids[:, :-1])
        labels = np.where(ids[:, 1:] < 0, IGNORE, ids[:, 1:])
        labels[:, : len(self.wording.before) - 1] = IGNORE
        counted = int((labels != IGNORE).sum())
        sound, given, said = map(torch.from_numpy, (waves, read, labels))
        return SpokenBatch(sound, given, said, counted)

    def ready(self, batch: SpokenBatch) -> SpokenBatch:
        """The log-mel of whole windows."""
        s = self.settings
        samples = STRIDE * self.steps * s.hop_length
        wave = batch.sound.float().div_(2**15)
        wave = F.pad(wave, (0, samples - wave.shape[-1]))
        sizes = {"rate": s.sampling_rate, "size": s.n_fft, "hop": s.hop_length}
        return batch._replace(sound=log_mel(wave, s.feature_size, **sizes))

    def _hidden(self, model: Any, batch: SpokenBatch, dtype: torch.dtype | None) -> Tensor:
        rows, width = batch.read.shape
        heard = {"input_features": batch.sound}
        sides = {
            "encoder": Side(Grid(rows, self.steps), heard),
            # Padding stands on the right, where no token looks.
            "decoder": Side(Grid(rows, width), {"input_ids": batch.read}, batch.read),
        }
        hidden: Tensor = model.hidden(sides, dtype=dtype)["decoder"].flatten(0, 1)
        return hidden

    # --- figures ----------------------------------------------------------------------------------

    @property
    def tidy(self) -> Tidy:
        """How transcripts are made alike before they are compared."""
        if self.recipe.options.language != "en":
            return basic
        asked = self.recipe.model
        known = isinstance(asked, CheckpointModel)
        return english(load_spelling(asked.directory) if known else None)  # type: ignore[attr-defined]

    def transcripts(
        self, model: Any, examples: Clips, dtype: torch.dtype | None = None
    ) -> list[str]:
        """What a greedy search says of each recording, in their order."""
        found: list[str] = []
        prompt, end = torch.tensor([self.wording.before]), self.wording.end
        most = min(examples.width + _MORE, self.room - prompt.shape[1])
        with judging(model):
            for first in range(0, len(examples), self.rows):
                index = np.arange(first, min(first + self.rows, len(examples)))
                batch = self.onto(self.collate(examples, index), model.device)
                ids = generate(
                    model, input_features=batch.sound, eos_token_id=end, pad_token_id=end,
                    decoder_input_ids=prompt.expand(len(index), -1), num_beams=1, dtype=dtype,
                    max_new_tokens=most,
                )  # fmt: skip
                said = ids[:, prompt.shape[1] :].tolist()
                found += [self._tokenizer.decode(row, skip_special_tokens=True) for row in said]
        forget(model)  # training wants the memory
        return found

    def measured(self, model: Any) -> tuple[str, ...]:
        """Error rates too."""
        return (*super().measured(model), "wer", "cer")

    def metrics(
        self,
        model: Any,
        examples: Clips,
        *,
        batch_tokens: int = 4096,
        dtype: torch.dtype | None = None,
    ) -> dict[str, float]:
        """Word and character error rate of greedy transcripts."""
        return self._rates(self.transcripts(model, examples, dtype), examples.texts)

    def _rates(self, given: list[str], wanted: list[str]) -> dict[str, float]:
        a, b = ([self.tidy(text).strip() for text in side] for side in (wanted, given))
        return {"wer": word_error(a, b), "cer": character_error(a, b)}

    def predictions(self, model: Any, examples: Clips, count: int = 24) -> Predictions:
        """Some recordings to listen to, and what is heard in them."""
        given = self.transcripts(model, examples)
        tidy = self.tidy
        rows = [
            (i, tidy(said).strip() == tidy(wanted).strip())
            for i, (said, wanted) in enumerate(zip(given, examples.texts, strict=True))
        ]
        wrong = [i for i, right in rows if not right][: count // 2]
        shown = [*wrong, *(i for i, right in rows if right)][:count]
        sounds = tuple(
            Heard(
                clip(torch.from_numpy(examples.wave(i)).float() / 2**15, examples.rate),
                examples.texts[i],
                given[i].strip(),
                rows[i][1],
                name=examples.recordings[i].speaker,
            )
            for i in shown
        )
        return Predictions(figures=self._rates(given, examples.texts), sounds=sounds)
