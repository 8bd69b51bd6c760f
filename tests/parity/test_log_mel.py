"""Log-mel against transformers' WhisperFeatureExtractor, and openai-whisper's where installed."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from transformers import WhisperFeatureExtractor

from allformer.errors import DataError
from allformer.sound import log_mel, mel_filters


def sound(seconds: float, seed: int) -> torch.Tensor:
    """Gusts of noise over a rising tone: loud, quiet and silent frames."""
    draw = torch.Generator().manual_seed(seed)
    count = round(16_000 * seconds)
    gusts = torch.rand(count // 1600 + 1, generator=draw).repeat_interleave(1600)[:count] ** 4
    tone = torch.sin(torch.linspace(0, 200 * math.pi, count) ** 1.3)
    wave = gusts * (torch.randn(count, generator=draw) / 8 + tone / 4)
    wave[count // 2 : count // 2 + 4000] = 0
    return wave


@pytest.mark.parametrize("bins", [80, 128])
def test_log_mel_is_transformers_to_1e_6_in_a_batch(bins):
    waves = [sound(30, 0), sound(3.7, 1) * 1e-3, sound(11, 2)]
    extract = WhisperFeatureExtractor(feature_size=bins)
    want = extract([wave.numpy() for wave in waves], sampling_rate=16_000, return_tensors="pt")
    batch = torch.stack([F.pad(wave, (0, 480_000 - len(wave))) for wave in waves])
    got = log_mel(batch, bins)
    assert got.shape == (3, bins, 3000)
    assert (got - want.input_features).abs().max() < 1e-6


@pytest.mark.parametrize("bins", [80, 128])
def test_filters_are_transformers(bins):
    want = torch.from_numpy(WhisperFeatureExtractor(feature_size=bins).mel_filters.T).float()
    assert (mel_filters(bins) - want).abs().max() < 1e-8


@pytest.mark.parametrize("bins", [80, 128])
def test_log_mel_is_openai_whispers_to_1e_6(bins):
    audio = pytest.importorskip("whisper.audio", reason="openai-whisper is not installed")
    for wave in (sound(33, 3), sound(5, 4)):
        for padding in (0, 480_000):
            want = audio.log_mel_spectrogram(wave, bins, padding=padding)
            assert (log_mel(wave, bins, padding=padding) - want).abs().max() < 1e-6


def test_a_wave_too_short_for_a_window_is_refused_and_can_be_padded():
    with pytest.raises(DataError, match="more than 200"):
        log_mel(torch.zeros(150))
    assert log_mel(torch.zeros(150), padding=480_000).shape == (80, 3000)


def test_silence_is_flat():
    assert log_mel(torch.zeros(16_000)).unique().tolist() == [-1.5]
