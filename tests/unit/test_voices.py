"""Synthesised digits: what is known of them is so, and a file of them is a WAV file."""

from __future__ import annotations

import wave
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from allformer.data.voices import (
    SPEAKERS,
    VOICES,
    WORDS,
    Utterance,
    Voices,
    say_digits,
    speak,
    write_voices,
)
from allformer.errors import DataError


def pitch(one: Utterance, low: float = 70.0, high: float = 320.0) -> float:
    """Hz, where the sound is most like itself a moment later, in its loudest 60 ms."""
    size = round(0.06 * one.rate)
    starts = range(0, len(one.wave) - size, size // 2)
    frame = max((one.wave[i : i + size] for i in starts), key=lambda x: float(np.abs(x).sum()))
    alike = np.correlate(frame, frame, "full")[size - 1 :]
    lags = np.arange(round(one.rate / high), round(one.rate / low))
    return one.rate / float(lags[alike[lags].argmax()])


def test_an_utterance_is_a_function_of_seed_and_number() -> None:
    first, again = (say_digits(3, 5) for _ in range(2))
    assert np.array_equal(first.wave, again.wave)
    assert first.text == again.text
    other = say_digits(4, 5)
    assert first.wave.shape != other.wave.shape or not np.array_equal(first.wave, other.wave)


def test_words_are_loud_and_the_gaps_between_them_are_silent() -> None:
    one = speak("nine one seven", VOICES["Ben"], rate=16_000)
    assert one.text == "nine one seven"
    power = np.convolve(one.wave**2, np.ones(320) / 320, "same")
    for word, after in pairwise(one.words):
        middle = round((word.begin + word.end) / 2 * one.rate)
        gap = round((word.end + after.begin) / 2 * one.rate)
        assert power[middle] > 100 * power[gap]
    assert np.abs(one.wave).max() <= 0.8


@pytest.mark.parametrize("name", SPEAKERS)
def test_a_speaker_has_a_pitch_of_ones_own(name: str) -> None:
    heard = pitch(speak("one nine", VOICES[name], rate=16_000))
    assert heard == pytest.approx(VOICES[name].pitch, rel=0.15)


def test_words_differ_in_their_spectra() -> None:
    """Each word of one speaker is nearest to itself as another speaker of like pitch says it."""

    def spectrum(word: str, speaker: str) -> np.ndarray:
        one = speak(word, VOICES[speaker])
        middle = one.wave[round(one.words[0].begin * one.rate) : round(one.words[0].end * one.rate)]
        parts = np.array_split(middle, 6)
        bands = [np.array_split(np.abs(np.fft.rfft(p, 512)) ** 2, 16) for p in parts]
        return np.log(1e-3 + np.array([[b.mean() for b in row] for row in bands])).ravel()

    known = np.stack([spectrum(word, "Ben") for word in WORDS])
    right = sum(
        WORDS[int(np.square(known - spectrum(word, "Finn")).sum(1).argmin())] == word
        for word in WORDS
    )
    assert right >= 8


def test_counting_goes_on_by_one() -> None:
    for one in Voices(5, least=3, most=5, counting=True):
        digits = [WORDS.index(word.text) for word in one.words]
        assert all((b - a) % 10 == 1 for a, b in pairwise(digits))


def test_written_voices_are_wav_files_with_a_table(tmp_path: Path) -> None:
    folder = write_voices(tmp_path / "voices", train=3, val=2, most=2, seed=1)
    head, *rows = (folder / "train.tsv").read_text().splitlines()
    assert head.split("\t") == ["path", "text", "speaker"]
    assert len(rows) == 3
    with wave.open(str(folder / rows[0].split("\t")[0])) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 8000)
        assert file.getnframes() > 2000
    assert not (folder / "test.tsv").exists()
    files = [sorted((folder / "wav").glob(f"{split}-*.wav")) for split in ("train", "val")]
    assert [len(found) for found in files] == [3, 2]
    assert files[0][0].stem == f"train-00000-{rows[0].split(chr(9))[2]}"
    assert files[0][0].read_bytes() != files[1][0].read_bytes()


def test_what_cannot_be_said_is_refused_with_a_way_out() -> None:
    with pytest.raises(DataError, match="'eleven' is not known; give some of zero, one"):
        speak("one eleven")
    with pytest.raises(DataError, match="there is no word"):
        speak("  ")
    with pytest.raises(DataError, match="speakers=9 must be from 1 to 6"):
        Voices(3, speakers=9)
    with pytest.raises(DataError, match="most=1 must be at least least=2"):
        Voices(3, least=2, most=1)
    with pytest.raises(IndexError, match="no number 3"):
        Voices(3)[3]
