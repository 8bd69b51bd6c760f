"""Many windows side by side: nothing is lost, nothing is out of order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from allformer.errors import ConfigError
from allformer.speech.batched import Batched, within
from allformer.speech.listener import Heard
from allformer.speech.options import TranscribeOptions
from allformer.speech.vocabulary import Vocabulary

NAMES = (
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>",
    "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
)  # fmt: skip
END, UNTIMED = 256, 264
SIZE = UNTIMED + 1 + 1501


class Letters:
    """A byte for each token."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        return bytes(i for i in ids if i < END).decode(errors="replace")

    def token_to_id(self, token: str) -> int | None:
        return END + NAMES.index(token) if token in NAMES else None


def stamp(seconds: float) -> int:
    return UNTIMED + 1 + round(seconds / 0.02)


class Numbered:
    """A spectrogram whose first bin is the frame's number, and whose second is how loud it is."""

    def __init__(self, frames: int, quiet: int = -1) -> None:
        self.frames, self.quiet, self.asked = frames, quiet, 0

    def __getitem__(self, at: slice) -> Tensor:
        number = torch.arange(at.start, at.stop)
        self.asked = max(self.asked, len(number))
        loud = 1e6 * (number - self.quiet).abs().clamp(max=9)
        return torch.stack([number.float(), loud])


class Script:
    """Says what is written down for the frame at which a window begins."""

    device = torch.device("cpu")
    places = 448

    def __init__(self, said: dict[int, list[Any]], unsure: int | None = None) -> None:
        self.vocabulary = Vocabulary(Letters(), SIZE)
        self.said, self.unsure = said, unsure  # of a window, the first time
        self.batches: list[list[int]] = []
        self.read: list[list[int]] = []

    def encode(self, mel: Tensor) -> Tensor:
        assert mel.shape[1:] == (2, 3000)
        self.batches.append(mel[:, 0, 0].int().tolist())
        return mel[:, :1, :1]

    def begin(self, ids: Tensor, memory: Tensor, at: int) -> Heard:
        starts = memory[:, 0, 0].int().tolist()
        self.read.append(starts)
        self.left, self.sure = [], [start != self.unsure for start in starts]
        self.unsure = None
        for start in starts:
            tokens: list[int] = []
            for one in self.said[start]:
                tokens += [stamp(one)] if isinstance(one, float) else list(one.encode())
            self.left.append([*tokens, END])
        return Heard(torch.zeros(len(ids), SIZE), self._next(), self)

    def select(self, rows: Tensor) -> None:
        self.left = [list(self.left[i]) for i in rows.tolist()]

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        return self._next()

    def _next(self) -> Tensor:
        logits = torch.full((len(self.left), SIZE), -20.0)
        for row, tokens in enumerate(self.left):
            logits[row, tokens.pop(0) if tokens else END] = 20.0
        logits[[not sure for sure in self.sure]] = 0.0
        return logits


SPANS = [(0.0, 20.0), (25.0, 40.0), (50.0, 80.0)]
SAID: dict[int, list[Any]] = {
    0: [0.0, " one", 10.0, 10.0, " two", 20.0],
    2500: [0.0, " three", 5.0, 5.0, " four"],  # no timestamp at its end
    5000: [0.0, " five", 8.0, 8.0],  # ends before it is over
    5800: [0.0, " six", 22.0],
}


def run(script: Script, sound: Numbered, **more: Any) -> Batched:
    plain: dict[str, Any] = {"suppress_blank": False, "suppress_tokens": None}
    options = TranscribeOptions(language="en", **plain, **more.pop("options", {}))
    return Batched(script, sound, more.pop("spans", SPANS), options, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_all_is_said_once_and_in_order(batch: int) -> None:
    script, sound = Script(SAID), Numbered(8000, quiet=5800)
    transcriber = run(script, sound, batch=batch)
    steps = [[segment.text for segment in segments] for segments in transcriber]
    said = [" one", " two", " three", " four", " five", " six"]
    assert [text for step in steps for text in step] == said
    transcript = transcriber.transcript
    assert transcript.text == "".join(said)
    assert [one.id for one in transcript.segments] == list(range(6))
    times = [(one.start, one.end) for one in transcript.segments]
    assert times == [(0, 10), (10, 20), (25, 30), (30, 40), (50, 58), (58, 80)]
    assert max(map(len, script.batches)) == min(batch, 3)
    assert sound.asked <= 3000


def test_what_is_left_begins_in_the_pause_before_its_timestamp() -> None:
    script = Script({**SAID, 5760: [0.0, " six", 22.0]})
    transcriber = run(script, Numbered(8000, quiet=5760))
    list(transcriber)
    assert script.batches == [[0, 2500, 5000], [5760]]
    assert [one.end for one in transcriber.transcript.segments][-2] == 57.6


def test_a_window_without_room_for_its_text_is_read_on() -> None:
    script = Script({0: [0.0, " a", 4.0, 4.0, " bcd"], 400: [0.0, " bcd", 5.0]})
    options = {"sample_len": 7}
    transcriber = run(script, Numbered(1000, 400), spans=[(0.0, 10.0)], options=options)
    list(transcriber)
    assert transcriber.transcript.text == " a bcd"
    assert script.batches == [[0], [400]]


def test_only_windows_that_come_out_badly_are_decoded_again() -> None:
    script = Script(SAID, unsure=2500)
    transcriber = run(script, Numbered(8000, quiet=5800), options={"sample_len": 40})
    list(transcriber)
    assert script.read == [[0, 2500, 5000], [2500], [5800]]
    assert [one.temperature for one in transcriber.transcript.segments] == [0, 0, 0.2, 0.2, 0, 0]
    assert transcriber.transcript.text == " one two three four five six"


def test_spans_are_cut_to_clips_and_windows() -> None:
    assert within([(0.5, 4.0), (9.0, 12.0)], [(100, 1000)]) == [(100, 400), (900, 1000)]
    assert within([(0.0, 70.0)], [(0, 7000)]) == [(0, 3000), (3000, 6000), (6000, 7000)]
    assert within([(0.0, 0.1)], [(0, 7000)]) == []


def test_a_recording_without_speech_says_nothing() -> None:
    transcriber = run(Script({}), Numbered(8000), spans=[])
    assert list(transcriber) == []
    assert transcriber.transcript.text == ""


def test_what_batches_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch=0"):
        run(Script({}), Numbered(100), batch=0)
    with pytest.raises(ConfigError, match="hallucination_silence_threshold"):
        run(Script({}), Numbered(100), options={"hallucination_silence_threshold": 2.0})
