"""Synthesised speech: the ten English digits in six voices, whose words, times and speaker are
known, without a download.

    one = say_digits(seed=0, number=7)     # wave, text "four nine two", speaker, times of the words
    speak("two five", VOICES["Ada"])       # what one likes to hear
    many = Voices(1000, most=4, seed=1)    # a sequence of them
    write_voices("voices", train=1000, val=100)   # PCM wav files, and tables of what they say

An utterance is a function of its seed and number alone. Voiced sounds are pulses, each of which
rings in the mouth's resonances (formants); the rest is noise of some band. Formants of vowels are
the means of Peterson and Barney (1952, table II, men).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch

from allformer.errors import DataError
from allformer.sound.write import write

RATE = 8000  # samples a second: a telephone's, enough for words
STEP = 0.005  # seconds between the values of what moves: formants, loudness, pitch
RINGS = 0.016  # seconds after which a pulse is not heard any more
BANDS = (70.0, 100.0, 140.0, 200.0)  # Hz: how wide each formant is
FOURTH = 3500.0  # Hz: the formant above the three that tell vowels apart
Array = npt.NDArray[np.float64]
Wave = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Phone:
    """One sound: its formants, how long it is, how loud its voice and its noise are, and where in
    Hz the noise lies."""

    formants: tuple[float, float, float]
    seconds: float
    voice: float = 1.0
    noise: float = 0.0
    band: tuple[float, float] = (1000.0, 4000.0)


# By their usual short names (ARPABET); "-" is a mouth that is closed before "T" or "K" bursts.
PHONES = {
    "IY": Phone((270, 2290, 3010), 0.13),
    "IH": Phone((390, 1990, 2550), 0.08),
    "EH": Phone((530, 1840, 2480), 0.10),
    "AH": Phone((640, 1190, 2390), 0.11),
    "AA": Phone((730, 1090, 2440), 0.11),
    "AO": Phone((570, 840, 2410), 0.12),
    "OW": Phone((490, 920, 2350), 0.11),
    "UW": Phone((300, 870, 2240), 0.13),
    "W": Phone((290, 610, 2150), 0.07, 0.7),
    "R": Phone((330, 1060, 1380), 0.07, 0.8),
    "N": Phone((280, 1500, 2500), 0.09, 0.35),
    "V": Phone((240, 1100, 2080), 0.06, 0.35, 0.03, (1200, 4000)),
    "Z": Phone((240, 1400, 2500), 0.11, 0.20, 0.18, (2600, 7000)),
    "S": Phone((300, 1500, 2600), 0.11, 0.0, 0.22, (2600, 7000)),
    "F": Phone((400, 1000, 2200), 0.10, 0.0, 0.07, (900, 7000)),
    "TH": Phone((350, 1200, 2600), 0.10, 0.0, 0.08, (1400, 7000)),
    "-": Phone((350, 1700, 2600), 0.05, 0.0),
    "T": Phone((350, 1800, 2700), 0.035, 0.0, 0.20, (2200, 5000)),
    "K": Phone((300, 1900, 2500), 0.035, 0.0, 0.20, (1300, 2600)),
}
DIGITS = {
    "zero": "Z IY R OW UW",
    "one": "W AH N",
    "two": "- T UW",
    "three": "TH R IY",
    "four": "F AO R",
    "five": "F AA IH V",
    "six": "S IH - K S",
    "seven": "S EH V EH N",
    "eight": "EH IH - T",
    "nine": "N AA IH N",
}
WORDS = tuple(DIGITS)


@dataclass(frozen=True)
class Voice:
    """A speaker: the pitch in Hz, how short the throat is (formants times this), how fast."""

    pitch: float
    throat: float = 1.0
    pace: float = 1.0
    breath: float = 0.01  # noise in what is voiced


VOICES = {
    "Ada": Voice(215.0, 1.17, 1.0, 0.02),
    "Ben": Voice(110.0, 1.0, 1.0),
    "Cleo": Voice(175.0, 1.10, 1.15),
    "Dov": Voice(85.0, 0.94, 0.9, 0.015),
    "Eve": Voice(255.0, 1.22, 1.1, 0.03),
    "Finn": Voice(140.0, 1.04, 1.2),
}
SPEAKERS = tuple(VOICES)


@dataclass(frozen=True)
class Word:
    """A word and when it is said, in seconds."""

    text: str
    begin: float
    end: float


@dataclass(frozen=True, eq=False)
class Utterance:
    """What was said: samples from −1 to 1, and all that is known of them."""

    wave: Wave
    rate: int
    words: tuple[Word, ...]
    speaker: str

    @property
    def text(self) -> str:
        """`"four nine two"`."""
        return " ".join(word.text for word in self.words)

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.wave) / self.rate


# --- speaking -------------------------------------------------------------------------------------


def speak(
    text: str,
    voice: Voice = VOICES["Ben"],
    *,
    rate: int = RATE,
    chance: np.random.Generator | None = None,
    speaker: str = "",
) -> Utterance:
    """`speak("two five", VOICES["Ada"])`: words of `DIGITS`; `chance` varies how they are said."""
    words = text.split()
    odd = [word for word in words if word not in DIGITS]
    if odd or not words:
        told = f"{odd[0]!r} is not known" if odd else "there is no word"
        raise DataError(f"speak: text={text!r}: {told}; give some of {', '.join(WORDS)}")
    chance = chance or np.random.default_rng(0)
    phones, spans = _timed(words, voice, chance)
    tracks = _tracks(phones, voice)
    wave = _voiced(tracks, _pitch(tracks, voice, chance), voice, rate, chance)
    wave += _noises(phones, len(wave), rate, chance)
    wave *= chance.uniform(0.5, 0.8) / max(float(np.abs(wave).max()), 1e-9)
    said = tuple(Word(word, *span) for word, span in zip(words, spans, strict=True))
    return Utterance(wave.astype(np.float32), rate, said, speaker)


SILENCE = Phone((450, 1500, 2500), 0.0, 0.0)


def _timed(
    words: Sequence[str], voice: Voice, chance: np.random.Generator
) -> tuple[list[tuple[Phone, float]], list[tuple[float, float]]]:
    """Sounds and how long each is, silence around the words; and when each word is said."""
    phones = [(SILENCE, chance.uniform(0.06, 0.12))]
    spans = []
    for word in words:
        begin = sum(seconds for _, seconds in phones)
        pace = voice.pace * chance.uniform(0.9, 1.15)
        for name in DIGITS[word].split():
            phone = PHONES[name]
            phones.append((phone, phone.seconds / pace * chance.uniform(0.9, 1.1)))
        spans.append((begin, sum(seconds for _, seconds in phones)))
        phones.append((SILENCE, chance.uniform(0.08, 0.16) / voice.pace))
    phones.append((SILENCE, 0.05))
    return phones, spans


def _tracks(phones: Sequence[tuple[Phone, float]], voice: Voice) -> Array:
    """N 5: three formants, the fourth, and the voice's loudness, every `STEP`; they glide."""
    ends = np.cumsum([seconds for _, seconds in phones])
    at = np.searchsorted(ends, (np.arange(round(ends[-1] / STEP)) + 0.5) * STEP)
    at = np.minimum(at, len(phones) - 1)
    rows = np.array([(*phone.formants, FOURTH, phone.voice) for phone, _ in phones])[at]
    rows[:, :4] = _smooth(rows[:, :4], 11) * voice.throat
    rows[:, 4:] = _smooth(rows[:, 4:], 5)
    return rows


def _smooth(rows: Array, steps: int) -> Array:
    """Each column's mean under a hill of so many steps."""
    hill = np.hanning(steps + 2)[1:-1]
    padded = np.pad(rows, ((steps // 2, steps // 2), (0, 0)), mode="edge")
    views = np.lib.stride_tricks.sliding_window_view(padded, steps, axis=0)
    smooth: Array = views @ (hill / hill.sum())
    return smooth


def _pitch(tracks: Array, voice: Voice, chance: np.random.Generator) -> Array:
    """Hz every `STEP`: it falls to the end, and wanders a little on the way."""
    steps = len(tracks)
    falls = np.linspace(1.06, 0.9, steps)
    wave = 2 * math.pi * (chance.uniform(1.5, 3.0) * STEP * np.arange(steps) + chance.uniform())
    hertz: Array = voice.pitch * chance.uniform(0.96, 1.04) * falls * (1 + 0.05 * np.sin(wave))
    return hertz


def _voiced(
    tracks: Array, pitch: Array, voice: Voice, rate: int, chance: np.random.Generator
) -> Array:
    """Pulse after pulse, each with the formants of its moment; P pulses, S samples of one."""
    turns = np.concatenate([[0.0], np.cumsum(pitch) * STEP])
    pulses = np.interp(np.arange(1, int(turns[-1])), turns, np.arange(len(turns)) * STEP)
    now = tracks[np.minimum((pulses / STEP).astype(int), len(tracks) - 1)]  # P 5
    heard = now[:, 4] > 0.01
    pulses, now = pulses[heard], now[heard]
    loud = now[:, 4] * chance.normal(1, 0.04, len(now))  # no two pulses are quite alike
    first = np.ceil(pulses * rate).astype(int)
    length = round(RINGS * rate)
    after = (first[:, None] + np.arange(length)) / rate - pulses[:, None]  # P S: seconds since it
    rings = _rings(now[:, :4], after, rate)
    rings *= (1 + voice.breath * chance.standard_normal(rings.shape)) * loud[:, None]
    wave = np.zeros(round(len(tracks) * STEP * rate) + length)
    np.add.at(wave, (first[:, None] + np.arange(length)).ravel(), rings.ravel())
    return wave[: len(wave) - length]


def _rings(formants: Array, after: Array, rate: int) -> Array:
    """P S: damped waves, as strong as formants in a row would make them, the spectrum of the voice
    itself falling by half from octave to octave. Their signs alternate, as residues do."""
    squares, bands = formants**2, np.array(BANDS)
    rings = np.zeros_like(after)
    for i, band in enumerate(BANDS):
        here = formants[:, i]
        gap = (squares - squares[:, i : i + 1]) ** 2 + (bands * here[:, None]) ** 2
        gains = squares / np.sqrt(gap)  # P 4: how much each formant lets through here
        gains[:, i] = 1.0
        strength = gains.prod(1) * (500.0 / here) * (here < 0.47 * rate)
        turn = 2 * math.pi * here[:, None] * after
        fades = np.exp(-math.pi * band * after)
        rings += (-1) ** i * strength[:, None] * fades * np.sin(turn)
    return rings


def _noises(
    phones: Sequence[tuple[Phone, float]], samples: int, rate: int, chance: np.random.Generator
) -> Array:
    """Hiss and bursts, each within its band."""
    wave, begin = np.zeros(samples), 0.0
    for phone, seconds in phones:
        if phone.noise:
            first, last = round(begin * rate), min(samples, round((begin + seconds) * rate))
            wave[first:last] += phone.noise * _hiss(last - first, phone.band, rate, chance)
        begin += seconds
    return wave


def _hiss(samples: int, band: tuple[float, float], rate: int, chance: np.random.Generator) -> Array:
    """Noise of mean square 1 within a band, faded in and out."""
    spectrum = np.fft.rfft(chance.standard_normal(samples))
    hertz = np.fft.rfftfreq(samples, 1 / rate)
    spectrum[(hertz < band[0]) | (hertz > band[1])] = 0
    noise = np.fft.irfft(spectrum, samples)
    noise /= max(float(np.sqrt(np.mean(noise**2))), 1e-9)
    edge = max(1, min(samples // 2, round(0.015 * rate)))
    ramp = np.minimum(1.0, np.minimum(np.arange(samples), np.arange(samples)[::-1]) / edge)
    faded: Array = noise * ramp
    return faded


# --- many of them ---------------------------------------------------------------------------------


def say_digits(
    seed: int,
    number: int,
    *,
    least: int = 1,
    most: int = 4,
    speakers: int = len(SPEAKERS),
    counting: bool = False,
    rate: int = RATE,
) -> Utterance:
    """`least` to `most` digits by one of the first `speakers`; `counting`: each the one after."""
    chance = np.random.default_rng((seed, number))
    speaker = SPEAKERS[chance.integers(speakers)]
    count = chance.integers(least, most + 1)
    first = chance.integers(len(WORDS))
    digits = (first + np.arange(count)) % len(WORDS)
    if not counting:
        digits = chance.integers(len(WORDS), size=count)
    text = " ".join(WORDS[digit] for digit in digits)
    return speak(text, VOICES[speaker], rate=rate, chance=chance, speaker=speaker)


class Voices(Sequence[Utterance]):
    """So many utterances: `Voices(500, most=4)`; they are made when they are asked for."""

    def __init__(
        self,
        count: int,
        *,
        least: int = 1,
        most: int = 4,
        speakers: int = len(SPEAKERS),
        counting: bool = False,
        rate: int = RATE,
        seed: int = 0,
    ) -> None:
        for name, value, low in (("count", count, 1), ("least", least, 1), ("rate", rate, 4000)):
            if value < low:
                raise DataError(f"Voices.{name}={value} must be at least {low}; give more")
        if most < least:
            raise DataError(f"Voices.most={most} must be at least least={least}; give more")
        if not 1 <= speakers <= len(SPEAKERS):
            raise DataError(
                f"Voices.speakers={speakers} must be from 1 to {len(SPEAKERS)}; give fewer"
            )
        self.length, self.least, self.most, self.speakers = count, least, most, speakers
        self.counting, self.rate, self.seed = counting, rate, seed

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, number: int) -> Utterance: ...
    @overload
    def __getitem__(self, number: slice) -> list[Utterance]: ...
    def __getitem__(self, number: int | slice) -> Utterance | list[Utterance]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(self.length))]
        if not -self.length <= number < self.length:
            raise IndexError(f"there are {self.length} utterances; there is no number {number}")
        return say_digits(
            self.seed,
            number % self.length,
            least=self.least,
            most=self.most,
            speakers=self.speakers,
            counting=self.counting,
            rate=self.rate,
        )


def write_voices(path: str | Path, *, train: int, val: int, test: int = 0, **said: Any) -> Path:
    """`write_voices("voices", train=1000, val=100, most=4)`: a folder of wav files, with a table
    for each split: a file, what it says, who speaks. No two splits have an utterance in common.

    A file's name says all but the words: `val-00007-Ada.wav`.
    """
    folder = Path(path)
    counts = {"train": train, "val": val, "test": test}
    seed = said.pop("seed", 0)
    for i, (split, count) in enumerate(counts.items()):
        if not count:
            continue
        (folder / "wav").mkdir(parents=True, exist_ok=True)
        rows = []
        for number, one in enumerate(Voices(count, seed=len(counts) * seed + i, **said)):
            file = f"wav/{split}-{number:05d}-{one.speaker}.wav"
            write(folder / file, torch.from_numpy(one.wave), one.rate)
            rows.append(f"{file}\t{one.text}\t{one.speaker}\n")
        table = "path\ttext\tspeaker\n" + "".join(rows)
        (folder / f"{split}.tsv").write_text(table, encoding="utf-8", newline="\n")
    return folder
