"""A speech that comes in small pieces: words settle, stay, and memory does not grow."""

from __future__ import annotations

import io
import sys

import pytest
import torch
from torch import Tensor

from allformer.errors import ConfigError, DataError
from allformer.sound.mel import RATE
from allformer.sound.resample import resample
from allformer.sound.write import wav_bytes
from allformer.speech.pieces import from_microphone, from_pipe
from allformer.speech.streaming import Stream, Update
from allformer.speech.word_times import Timing

WORDS = [f" word{i}" + ("." if i % 7 == 6 else "") for i in range(60)]
LENGTH = 0.6  # seconds of each


def clock(seconds: float) -> Tensor:
    """Sound that says when it is: a sample's value is its number."""
    return torch.arange(round(seconds * RATE), dtype=torch.float32)


class Recogniser:
    """Knows the truth, but takes the last word in sight for another one each time."""

    def __init__(self, pause: tuple[int, float] = (999, 0.0), sure: bool = True) -> None:
        at, self.silence = pause
        starts = [i * LENGTH + (self.silence if i >= at else 0.0) for i in range(len(WORDS))]
        self.words = [
            Timing(word, [], start, start + LENGTH, 1.0)
            for word, start in zip(WORDS, starts, strict=True)
        ]
        self.sure, self.readings, self.longest, self.prompts = sure, 0, 0.0, [""]

    def spans(self, wave: Tensor) -> list[tuple[float, float]]:
        low, high = wave[0].item() / RATE, wave[-1].item() / RATE
        seen = [one for one in self.words if one.end > low and one.start < high]
        return [(max(0.0, one.start - low), min(one.end, high) - low) for one in seen]

    def __call__(self, wave: Tensor, before: str) -> list[Timing]:
        self.readings += 1
        self.longest = max(self.longest, len(wave) / RATE)
        self.prompts.append(before)
        low, high = wave[0].item() / RATE, (wave[-1].item() + 1) / RATE
        heard = [
            Timing(one.word, [], one.start - low, one.end - low, 1.0)
            for one in self.words
            if one.start >= low - 0.05 and one.start < high - 0.1
        ]
        wrong = heard if not self.sure else heard[-1:]
        for one in wrong:
            if not self.sure or one.end + low > high:
                one.word = f" guess{self.readings}"
        return heard


def play(recogniser: Recogniser, seconds: float, piece: int = 4000) -> list[Update]:
    stream = Stream(recogniser, recogniser.spans)
    found = [stream.feed(part) for part in clock(seconds).split(piece)]
    return [one for one in (*found, stream.finish()) if one is not None]


def said(updates: list[Update]) -> str:
    return "".join(one.text for one in updates)


@pytest.mark.parametrize("piece", [1600, 16_000, 200_000])
def test_the_settled_words_are_what_was_said(piece: int) -> None:
    recogniser = Recogniser()
    updates = play(recogniser, 36.5, piece)
    assert said(updates) == "".join(WORDS)
    times = [word.start for one in updates for word in one.settled]
    assert times == pytest.approx([one.start for one in recogniser.words], abs=0.011)
    assert recogniser.longest <= 21  # of 36.5: what is settled leaves
    assert recogniser.prompts[-1].endswith(".")  # up to a sentence's end, which goes on as prompt
    assert "".join(WORDS).find(recogniser.prompts[-1]) >= 0


def test_a_guess_is_shown_but_not_settled() -> None:
    updates = play(Recogniser(), 9.0)
    assert "guess" in "".join(one.guess for one in updates[:-1])
    assert "guess" not in said(updates)
    assert updates[-1].guess == ""


@pytest.mark.parametrize("sure", [True, False])
def test_a_pause_settles_everything(sure: bool) -> None:
    recogniser = Recogniser(pause=(5, 2.5), sure=sure)
    updates = play(recogniser, 6.0)  # the sixth word begins at 5.5 s
    early = [one for one in updates if one.seconds <= 5.0]
    assert len([word for one in early for word in one.settled]) == 5
    assert early[-1].pending == ()
    if sure:
        assert said(early) == "".join(WORDS[:5])


def test_silence_is_not_read() -> None:
    recogniser = Recogniser(pause=(0, 99.0))
    stream = Stream(recogniser, recogniser.spans)
    for part in clock(40.0).split(8000):
        stream.feed(part)
    assert recogniser.readings == 0
    assert stream.sound.shape[0] < 2 * RATE
    assert stream.seconds == pytest.approx(40.0)


def test_readings_that_never_agree_are_bounded_too() -> None:
    recogniser = Recogniser(sure=False)
    updates = play(recogniser, 36.0)
    assert recogniser.longest <= 28
    assert len([word for one in updates for word in one.settled]) > 30


@pytest.mark.parametrize("field", ["every", "longest", "pause"])
def test_impossible_times_are_refused(field: str) -> None:
    recogniser = Recogniser()
    with pytest.raises(ConfigError, match=f"{field}=-1"):
        Stream(recogniser, recogniser.spans, **{field: -1.0})


def test_a_pipe_gives_its_samples() -> None:
    wave = torch.randint(-20_000, 20_000, (8000 * 7, 2), dtype=torch.int16)
    raw = wave.numpy().tobytes() + b"\x01"  # cut within a sample
    got = torch.cat(list(from_pipe(io.BytesIO(raw), rate=8000, channels=2)))
    want = resample(wave.float().mean(1) / 2**15, 8000, RATE)
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)
    floats = torch.randn(500)
    got = torch.cat(list(from_pipe(io.BytesIO(floats.numpy().tobytes()), form="f32")))
    assert torch.equal(got, floats)


def test_bad_pipes_are_refused_by_their_field() -> None:
    with pytest.raises(ConfigError, match="form='u8'"):
        next(from_pipe(io.BytesIO(b""), form="u8"))
    with pytest.raises(ConfigError, match="channels=0"):
        next(from_pipe(io.BytesIO(b""), channels=0))
    assert list(from_pipe(io.BytesIO(b""))) == []
    nan = torch.full((9,), float("nan"))
    with pytest.raises(DataError, match="no numbers"):
        list(from_pipe(io.BytesIO(nan.numpy().tobytes()), form="f32"))


def test_a_pipe_that_breaks_says_so() -> None:
    class Broken(io.BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            raise OSError("gone")

    with pytest.raises(DataError, match="gone"):
        list(from_pipe(Broken()))


def test_a_file_in_the_pipe_is_no_raw_samples() -> None:
    """Its head would be heard as sound, and its rate would be taken for another."""
    for head in (wav_bytes(torch.zeros(800), 8000), b"ID3\x04" + bytes(400)):
        with pytest.raises(DataError, match=r"a file with a head.*ffmpeg"):
            list(from_pipe(io.BytesIO(head)))


def test_a_missing_microphone_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(DataError, match=r"pip install allformer\[microphone\]"):
        next(from_microphone())
