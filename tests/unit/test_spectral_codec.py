"""A codec of spectra: fitted in a moment, saved and loaded like any, and its sound is like what it
was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import allformer as af
from allformer.audiolm.spectra import fit_codec
from allformer.codecs.sound import Spectral, SpectralModel
from allformer.data.voices import Voices
from allformer.errors import ConfigError, DataError
from allformer.metrics.pitch import pitch

SMALL = Spectral(codes=32, levels=3, bands=40, rounds=8)


def waves(count: int = 12, seed: int = 0) -> list[torch.Tensor]:
    return [torch.from_numpy(one.wave) for one in Voices(count, most=2, seed=seed)]


@pytest.fixture(scope="module")
def codec() -> SpectralModel:
    return fit_codec(SMALL, waves(), steps=5)


def spectra(wave: torch.Tensor) -> torch.Tensor:
    window = torch.hann_window(256)
    return torch.stft(wave, 256, 64, window=window, return_complex=True).abs()


def bare(**sizes: int) -> SpectralModel:
    """Without codebooks that say anything, in fp64."""
    codec = af.build(Spectral(codes=2, levels=1, **sizes), seed=0)
    assert isinstance(codec, SpectralModel)
    return codec.double().eval()


def check_bands() -> None:
    """Frame by frame and band by band, as they are defined."""
    codec = bare(bands=12, step=40, window=100)
    wave = torch.randn(210, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = codec.compressed(wave[None, None])[0]  # d F
    assert found.shape == (12, 6)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(100) / 100)
    around = np.concatenate([np.zeros(30), wave.numpy(), np.zeros(60)])
    ear = 700 * np.expm1(np.linspace(0, np.log1p(4000 / 700), 14))
    hertz = np.linspace(0, 4000, 65)
    for k in range(6):
        loud = np.abs(np.fft.rfft(around[k * 40 : k * 40 + 100] * hann, 128))
        for band in range(12):
            low, middle, high = ear[band : band + 3]
            low, high = min(low, middle - 80), max(high, middle + 80)
            share = np.interp(hertz, [low, middle, high], [0, 1, 0])
            wanted = np.log(loud @ share / share.sum() + 0.03)
            assert float(found[band, k]) == pytest.approx(wanted, abs=1e-5)


def check_windows() -> None:
    """Windows that overlap are the sound that they were cut from."""
    codec = bare(bands=12, step=40, window=100)
    wave = torch.randn(2, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    again = codec._overlapped(codec._spectra(codec._framed(wave)))
    torch.testing.assert_close(again, wave)


def check_sound() -> None:
    """Bands as they are, not quantised, become sound that has them; whatever their mean is."""
    codec = bare(bands=80, rounds=16)
    wave = waves(1, seed=5)[0].double()[None, None, :4000]
    bands = codec.compressed(wave)
    sound = codec.sounded(bands)
    far = (codec.compressed(sound) - bands).abs().mean()
    assert far < 0.25
    with torch.no_grad():
        codec.mean.fill_(0.5)
    torch.testing.assert_close(codec.sounded(codec.compressed(wave)), sound)


def check_fit() -> None:
    """The mean is taken away first, and each book is of what those before it have left."""
    given = waves(6)
    codec = fit_codec(Spectral(codes=8, levels=3, bands=20), given, steps=5)
    frames = torch.cat([codec.compressed(wave[None, None])[0].T for wave in given])
    assert float(frames.mean(0).abs().max()) < 1e-3
    left = frames.T[None]
    for q in range(3):
        before, book = left, codec.quantiser.book(q)
        ids = book.nearest(left.movedim(1, -1))
        left = left - book.look_up(ids).movedim(-1, 1)
        assert float(left.square().mean()) < 0.9 * float(before.square().mean())


def test_bands_are_as_they_are_defined() -> None:
    check_bands()


def test_windows_that_overlap_are_the_sound_they_were_cut_from() -> None:
    check_windows()


def test_bands_become_sound_that_has_them() -> None:
    check_sound()


def test_each_book_is_of_what_those_before_it_left() -> None:
    check_fit()


def test_each_codebook_brings_the_spectra_nearer(codec: SpectralModel) -> None:
    errors = []
    for books in (1, 2, 3):
        far = 0.0
        for wave in waves(4, seed=5):
            frames = codec.compressed(wave[None, None])
            again = codec.vectors(codec.encode(wave[None, None], books=books))
            far += float((frames - again).square().mean())
        errors.append(far)
    assert errors[0] > errors[1] > errors[2]


def test_the_sound_has_the_spectra_and_the_pitch_of_what_it_was(codec: SpectralModel) -> None:
    for wave in waves(4, seed=5):
        again = codec.decode(codec.encode(wave[None, None]), length=len(wave))[0, 0]
        wanted, found = spectra(wave), spectra(again)
        alike = torch.cosine_similarity(wanted.flatten(), found.flatten(), dim=0)
        assert alike > 0.7
        assert pitch(again, 8000) == pytest.approx(pitch(wave, 8000), rel=0.1)


def test_frames_are_as_many_as_said_and_the_same_codes_give_the_same_sound(
    codec: SpectralModel,
) -> None:
    for samples in (1, 159, 160, 161, 1000):
        codes = codec.encode(torch.zeros(2, 1, samples))
        assert codes.shape == (2, 3, -(-samples // 160))
        sound = codec.decode(codes)
        assert sound.shape == (2, 1, codes.shape[2] * 160)
        assert torch.equal(sound, codec.decode(codes))
    assert float(codec.decode(codec.encode(torch.zeros(1, 1, 4000))).abs().max()) < 0.01


def test_it_is_saved_loaded_and_counted_like_any_codec(
    codec: SpectralModel, tmp_path: Path
) -> None:
    af.save(codec, tmp_path, family="allformer")  # type: ignore[arg-type]
    again = af.load(tmp_path)
    wave = waves(1)[0][None, None]
    assert torch.equal(again.encode(wave), codec.encode(wave))
    held = sum(x.numel() for x in codec.state_dict().values())
    assert SMALL.parameters == held
    assert SMALL.bandwidth == pytest.approx(3 * 5 * 50 / 1000)


def test_what_cannot_be_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match=r"window=200 must be at least two steps of 160"):
        Spectral(window=200)
    with pytest.raises(ConfigError, match=r"bands=300 must be at most 257"):
        Spectral(bands=300)
    with pytest.raises(DataError, match="no sound to fit a codec to"):
        fit_codec(SMALL, [])


def test_pitch_is_that_of_the_voice_and_silence_has_none() -> None:
    time = torch.arange(8000) / 8000
    for hertz in (90.0, 140.0, 260.0):
        tone = sum(torch.sin(2 * torch.pi * hertz * k * time) / k for k in (1, 2, 3))
        assert pitch(tone, 8000) == pytest.approx(hertz, rel=0.02)  # type: ignore[arg-type]
    noise = torch.randn(8000, generator=torch.Generator().manual_seed(0))
    for wave in (torch.zeros(8000), torch.zeros(10), noise):
        assert pitch(wave, 8000) != pitch(wave, 8000)  # NaN
