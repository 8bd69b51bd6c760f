"""Sounds as text: to a WAV file in base64 and back; and what a run keeps of them."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
import torch

from allformer.errors import DataError
from allformer.sound.clip import clip, from_clip
from allformer.train.heard import Heard, Spoken
from allformer.train.predictions import Predictions


def test_a_clip_is_the_sound_to_a_16_bit_step() -> None:
    wave = torch.rand(2, 500, generator=torch.Generator().manual_seed(0)) * 2 - 1
    again, rate = from_clip(clip(wave, 8000))
    assert rate == 8000
    assert again.shape == (2, 500)
    assert np.abs(again - wave.numpy()).max() <= 1 / 2**15


def test_what_is_too_loud_is_cut_off_and_what_is_too_long_too() -> None:
    again, _ = from_clip(clip(np.array([3.0, -3.0, 0.5]), 16_000))
    assert again[0].tolist() == pytest.approx([1.0, -1.0, 0.5], abs=1e-4)
    assert from_clip(clip(np.zeros(900), 100, seconds=2.0))[0].shape == (1, 200)


def test_what_is_no_sound_is_refused() -> None:
    with pytest.raises(DataError, match="channels × samples"):
        clip(np.zeros((2, 3, 4)), 8000)
    with pytest.raises(DataError, match="at least one sample"):
        clip(np.zeros(0), 8000)
    for text in ("not base64!", base64.b64encode(b"RIFF and nothing").decode()):
        with pytest.raises(DataError, match="no WAV file"):
            from_clip(text)


def test_a_run_keeps_its_sounds(tmp_path: Path) -> None:
    sound = clip(np.zeros(80), 8000)
    one = Heard(
        sound,
        "nine",
        "five",
        right=False,
        name="Ada",
        prompt=0.5,
        words=(Spoken("five", 0.1, 0.3),),
        versions=(Heard(sound, name="1.5 kbit/s", score=3.0),),
    )
    Predictions(sounds=(one,)).save(tmp_path)
    kept = Predictions.load(tmp_path)
    assert kept is not None
    assert kept.sounds == (one,)
