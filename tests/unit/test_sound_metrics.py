"""How far two sounds are apart: SI-SDR, the spectral distance, and the losses of training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from allformer.errors import ConfigError
from allformer.metrics.si_sdr import si_sdr
from allformer.metrics.spectral import DEPTH, spectral_distance
from allformer.train.waves.discriminator import SpectrumJudges, Told
from allformer.train.waves.hinge import fooling, judging, matching
from allformer.train.waves.spectral_loss import spectral_loss


def noise(seed: int = 0, samples: int = 4000) -> Tensor:
    return 0.1 * torch.randn(2, samples, generator=torch.Generator().manual_seed(seed))


def check_si_sdr() -> None:
    """Noise at right angles to a tone, a tenth as large: 20 dB, whatever the loudness."""
    t = torch.arange(8000) / 8000
    tone, other = torch.sin(2 * torch.pi * 100 * t), torch.cos(2 * torch.pi * 300 * t)
    for scale, offset in ((1.0, 0.0), (0.25, 0.0), (3.0, 0.5)):
        found = si_sdr(scale * (tone + 0.1 * other) + offset, tone)
        assert float(found) == pytest.approx(20.0, abs=0.01)
    assert float(si_sdr(other, tone)) < -60
    assert float(si_sdr(tone, tone)) > 60


def check_spectral_distance() -> None:
    """Half as loud is 6.02 dB away at every frequency; a delay of whole hops nearly nothing."""
    x = noise()
    assert spectral_distance(x, x).abs().max() < 1e-9
    assert spectral_distance(0.5 * x, x).tolist() == pytest.approx([6.0206] * 2, abs=0.05)
    assert spectral_distance(-x, x).abs().max() < 1e-9
    assert float(spectral_distance(0 * x, x)[0]) < DEPTH  # what is quieter than DEPTH is that quiet


def test_si_sdr_of_a_tone_and_noise():
    check_si_sdr()


def test_si_sdr_of_silence_is_a_number():
    assert torch.isfinite(si_sdr(torch.zeros(2, 50), torch.zeros(2, 50))).all()


def test_the_spectral_distance_counts_levels_and_not_phases():
    check_spectral_distance()


def test_a_sound_shorter_than_every_window_has_a_distance():
    assert torch.isfinite(spectral_distance(noise(0, 90), noise(1, 90))).all()


def test_sounds_of_two_lengths_are_refused():
    for measure in (si_sdr, spectral_distance):
        with pytest.raises(ConfigError, match="one shape; cut"):
            measure(torch.zeros(5), torch.zeros(6))


def check_spectral_loss() -> None:
    """A tenth as loud is log10 of 10 away, in every bin of every window; each crop by itself."""
    x = 100 * noise()
    assert spectral_loss(x, x, 8000).abs().max() == 0
    found = spectral_loss(torch.stack([0.1 * x[0], x[1]]), x, 8000)
    assert found.tolist() == pytest.approx([1.0, 0.0], abs=1e-3)
    hiss = 1e-4 * noise()  # what nobody hears beside a wave of 1 is as good as a recording's zeros
    assert spectral_loss(hiss, torch.zeros_like(hiss), 8000).tolist() == [0.0, 0.0]


def test_the_spectral_loss_is_of_decades_of_loudness():
    check_spectral_loss()


def told(*scores: float, inner: float = 0.0) -> list[Told]:
    return [Told(torch.tensor(scores)[:, None], [torch.full((len(scores), 3), inner)])]


def check_hinge() -> None:
    """The judges' loss ends at ±1, the codec's begins where the judges are not sure."""
    assert judging(told(1.0, 3.0), told(-1.0, -2.0)).tolist() == [0.0, 0.0]
    assert judging(told(0.0, -1.0), told(0.0, 0.0)).tolist() == [2.0, 3.0]
    assert fooling(told(1.5, -1.0)).tolist() == [0.0, 2.0]
    assert matching(told(0.0, inner=2.0), told(0.0, inner=3.0)).tolist() == [0.5]


def test_hinges_and_features():
    check_hinge()


def test_judges_hear_each_crop_by_itself_and_at_every_scale():
    torch.manual_seed(0)
    judges = SpectrumJudges((256, 64), width=4)
    both, alone = judges(noise()), judges(noise()[:1])
    assert len(both) == 2
    for one, other in zip(both, alone, strict=True):
        torch.testing.assert_close(one.scores[:1], other.scores)
        assert len(one.inner) == 5
    assert both[0].scores.shape[2] < both[1].scores.shape[2]  # longer windows, fewer frames


def test_judges_compute_in_bfloat16_and_are_scored_in_fp32():
    judges = SpectrumJudges((64,), width=4)
    (found,) = judges(noise(), torch.bfloat16)
    assert found.scores.dtype == torch.bfloat16
    assert fooling([found]).dtype == torch.float32
