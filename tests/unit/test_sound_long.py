"""Long sound: a spectrogram in pieces, and where somebody speaks."""

from __future__ import annotations

import math

import pytest
import torch

from allformer.errors import DataError
from allformer.sound import Spectrogram, log_mel, voices
from allformer.sound.spectrogram import _HELD
from allformer.sound.write import wav_bytes

RATE = 16_000


def noise(seconds: float, level: float, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return level * torch.randn(round(seconds * RATE), generator=draw)


def voice(seconds: float) -> torch.Tensor:
    """A buzz of 120 Hz with formants, four syllables a second."""
    at = torch.arange(round(seconds * RATE), dtype=torch.float64) / RATE
    formants = ((500, 150), (1500, 250), (2500, 300))
    wave = torch.zeros_like(at)
    for partial in range(1, 33):
        hertz = 120 * partial
        gain = sum(math.exp(-(((hertz - f) / w) ** 2)) for f, w in formants) + 0.02
        wave += gain * torch.sin(2 * math.pi * hertz * at)
    return (0.1 * wave * (0.55 - 0.45 * torch.cos(8 * math.pi * at))).float()


@pytest.mark.parametrize(("padding", "cut"), [(480_000, 7_777), (0, 150), (0, 10**6)])
def test_a_spectrogram_in_pieces_is_that_of_the_whole(padding, cut):
    wave = noise(4.2, 0.3) * torch.linspace(0, 1, round(4.2 * RATE)) ** 3
    mel = Spectrogram(wave.split(cut), padding=padding)
    want = log_mel(wave, padding=padding)
    assert mel.frames == 420
    assert len(mel) == want.shape[-1]
    assert torch.allclose(mel[0 : len(mel)], want, atol=1e-6)
    assert torch.allclose(mel[100:300], want[:, 100:300], atol=1e-6)
    assert mel[10**6 : 2 * 10**6].shape == (80, 0)


def test_a_long_spectrogram_lies_on_disk(monkeypatch):
    monkeypatch.setattr("allformer.sound.spectrogram._HELD", 1000)
    wave = noise(2.0, 0.1)
    mel = Spectrogram([wave], padding=0)
    assert mel._file._rolled
    assert torch.allclose(mel[50:150], log_mel(wave)[:, 50:150], atol=1e-6)
    assert _HELD > 1000


def test_speech_is_found_between_pauses_and_noise_is_not_speech():
    quiet = noise(9.0, 3e-4)
    quiet[2 * RATE : 4 * RATE] += voice(2.0)
    quiet[6 * RATE : 7 * RATE] += voice(1.0)
    found = voices(quiet)
    assert [round(edge, 0) for span in found for edge in span] == [2, 4, 6, 7]
    assert all(abs(a - b) < 0.35 for a, b in zip(found[0] + found[1], (2, 4, 6, 7), strict=True))
    assert voices(wav_bytes(quiet, RATE)) == found
    assert voices(torch.zeros(5 * RATE)) == []
    assert voices(noise(8.0, 0.1)) == []
    bursts = (torch.arange(8 * RATE) // 1600 % 10 == 0).float()
    assert voices(noise(8.0, 0.1) * bursts) == []


def test_noise_that_grows_louder_does_not_hide_or_become_speech():
    wave = torch.cat([noise(60.0, 1e-4), noise(60.0, 3e-3, seed=1)])
    for at in (20, 90):
        wave[at * RATE : (at + 2) * RATE] += voice(2.0)
    found = voices(wave)
    assert [round(span.start) for span in found] == [20, 90]


def test_a_clip_without_a_pause_is_speech():
    assert len(voices(voice(0.4))) == 1


def test_spans_are_packed_and_cut_to_the_longest():
    wave = torch.cat([noise(0.5, 1e-4), voice(7.0), noise(1.0, 1e-4), voice(1.0), voice(0.5)])
    wave[4 * RATE : 4 * RATE + 1600] *= 0.01  # a breath, where a cut belongs
    spans = voices(wave, longest=5.0)
    assert max(span.end - span.start for span in spans) <= 5.0
    assert spans[0].end == pytest.approx(4.05, abs=0.1)
    assert len(spans) < 4
    with pytest.raises(DataError, match="longest"):
        voices(wave, longest=0)
