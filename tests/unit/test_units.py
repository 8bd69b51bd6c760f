"""Units: which states they are of, that nothing else moves them, and where they are kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import allformer as af
from allformer.audiolm.hearing import Hearing, open_codec
from allformer.audiolm.kmeans import nearest
from allformer.audiolm.recordings import find_recordings, fingerprint, split, streams
from allformer.audiolm.units import Units, fit_recordings, fit_units, load_units, lower_layers
from allformer.cli.main import app
from allformer.errors import CheckpointError, ConfigError, DataError
from allformer.sound import log_mel, resample
from allformer.train.objectives.sound_tokens import RecordingData
from tests import speaking


@pytest.fixture(scope="module")
def units() -> Units:
    found, explained = fit_recordings(
        speaking.encoder(), speaking.recordings(), clusters=6, layer=1
    )
    assert 0 < explained < 1
    return found


def test_the_states_are_those_behind_the_layer_that_is_asked_for() -> None:
    check_layers()


def check_layers() -> None:
    """The last one behind the final norm, as transformers counts them."""
    model = speaking.encoder()
    frames = torch.randn(2, 16, 40, generator=torch.Generator().manual_seed(0))
    seen = af.trace(model, input_features=frames)
    first, last = seen["encoder.0.feed_added"], seen.output.last_hidden_state
    for layer, wanted in ((1, first), (2, last), (None, last)):
        lower = lower_layers(model, layer)
        found = lower.states(input_features=frames)["encoder"]
        assert torch.allclose(found, wanted, atol=1e-5)
    assert len(lower_layers(model, 1).config.encoder.blocks) == 1


def test_units_are_the_nearest_centres_of_states_at_mean_0_and_variance_1(units: Units) -> None:
    check_units(units)


def check_units(units: Units) -> None:
    """By hand: one window of two seconds, of which one is silence; and a second window."""
    wave = torch.cat([speaking.tone(pitch, 0.25) for pitch in (200.0, 400.0, 800.0, 1600.0)])
    at = torch.nn.functional.pad(resample(wave, speaking.RATE, 16_000), (0, 16_000))
    states = units.encoder.states(input_features=log_mel(at[None], 16))["encoder"][0, :50]
    plain = nearest((states - units.mean) / units.spread, units.centres)
    assert torch.equal(units.encode(wave, speaking.RATE), plain)
    twice = torch.cat([wave, torch.zeros_like(wave), wave])
    assert torch.equal(units.encode(twice, speaking.RATE)[100:], plain)


def test_fifty_a_second_whatever_the_rate_and_beyond_a_window(units: Units) -> None:
    assert units.rate == 50
    assert len(units.encode(speaking.tone(300.0, 1.0), speaking.RATE)) == 50
    assert len(units.encode(speaking.tone(300.0, 1.0, 44_100), 44_100)) == 50
    long = speaking.tone(300.0, 5.0, 16_000)
    found = units.encode(long)
    assert len(found) == 250
    assert torch.equal(found[:100], units.encode(long[:32_000]))  # a window knows itself alone
    assert len(units.encode(torch.zeros(0))) == 0
    assert len(units.encode(torch.zeros(1))) == 1


def test_different_sounds_have_different_units_and_all_are_used(units: Units) -> None:
    low, high = (units.encode(speaking.tone(p, 1.0), speaking.RATE) for p in (200.0, 900.0))
    assert (low != high).float().mean() > 0.5
    waves = streams(speaking.recordings(), 16_000, join=2.0)
    used = torch.cat([units.encode(wave) for wave in waves]).unique()
    assert len(used) == len(units) == 6


def test_units_are_saved_and_found_beside_the_model(units: Units, tmp_path: Path) -> None:
    units.save(tmp_path / "model" / "units")
    for path in (tmp_path / "model", tmp_path / "model" / "units"):
        again = load_units(path)
        wave = speaking.tone(500.0, 1.0, 16_000)
        assert torch.equal(again.encode(wave), units.encode(wave))
        assert again.fingerprint == units.fingerprint
        assert again.window == units.window == 32_000
    with pytest.raises(CheckpointError, match="make them with `allformer units"):
        load_units(tmp_path)


def test_the_command_writes_units_and_says_how_good_they_are(tmp_path: Path) -> None:
    af.save(speaking.encoder(), tmp_path / "model", family="allformer")
    folder = speaking.write_recordings(tmp_path / "sounds")
    call = ["units", str(tmp_path / "model"), "--data", str(folder), "--clusters", "5"]
    found = CliRunner().invoke(app, [*call, "--layer", "2", "--held-out", "_1$", "--json"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["clusters"] == len(load_units(tmp_path / "model")) == 5
    assert told["recordings"] == 6
    assert 0 < told["explained"] < 1


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    model, waves = speaking.encoder(), [speaking.tone(300.0, 1.0, 16_000)]
    with pytest.raises(ConfigError, match=r"layer=3 must be 1 … 2"):
        fit_units(model, waves, clusters=2, layer=3)
    with pytest.raises(ConfigError, match=r"seconds=9.0 is more than the model reads, 2 at a time"):
        fit_units(model, waves, clusters=2, seconds=9.0)
    with pytest.raises(DataError, match="no sound"):
        fit_units(model, [], clusters=2)
    with pytest.raises(DataError, match="clusters=200 is more than there are points, 50"):
        fit_units(model, waves, clusters=200)
    with pytest.raises(ConfigError, match="reads no sound"):
        lower_layers(af.build(af.config_from_json(TEXT), seed=0))
    af.save(model, tmp_path, family="allformer")
    with pytest.raises(CheckpointError, match="no codec of sound"):
        open_codec(tmp_path)


TEXT = (
    '{"is": "EncoderOnly", "encoder": {"is": "Stack", "dim": 8, "source": {"is": "Tokens", '
    '"vocab": 5}, "position": null, "blocks": [{"is": "Block", "times": 1, "attention": '
    '{"is": "Attention", "heads": 1}, "feed": {"is": "Feed", "width": 8}}]}}'
)

# --- recordings ---------------------------------------------------------------------------------


def test_recordings_are_found_with_their_voices_and_split_by_their_names(tmp_path: Path) -> None:
    folder = speaking.write_recordings(tmp_path / "sounds")
    found = find_recordings(folder, r"_([a-z]+)_")
    assert {one.voice for one in found} == {"low", "high"}
    assert {one.voice for one in find_recordings(folder)} == {"sounds"}
    train, held = split(found, r"_1$")
    assert len(train) == len(held) == 6
    assert {one.name[-1] for one in held} == {"1"}
    train, held = split(found, share=0.25, seed=1)
    assert (len(train), len(held)) == (9, 3)
    assert fingerprint(train) != fingerprint(held)
    with pytest.raises(DataError, match="is not found in the name"):
        find_recordings(folder, "(jackson)")
    with pytest.raises(DataError, match="0 to validate on"):
        split(found, "nobody")
    with pytest.raises(DataError, match=r"change data.validation='nobody'"):
        RecordingData(path=str(folder), validation="nobody").opened(None, seed=0)
    with pytest.raises(DataError, match=r"change data.hold_out=0.99, or give more"):
        RecordingData(path=str(folder), hold_out=0.99).opened(None, seed=0)
    with pytest.raises(ConfigError, match="no regular expression"):
        split(found, "(")
    with pytest.raises(DataError, match="no folder"):
        find_recordings(tmp_path / "elsewhere")


def test_streams_join_one_voice_at_a_time_with_silence_between() -> None:
    found = speaking.recordings(each=6, seconds=0.3)
    joined = list(streams(found, speaking.RATE, join=1.0, pause=(0.1, 0.1), seed=0))
    assert [round(len(wave) / speaking.RATE, 3) for wave in joined] == [1.2, 1.2] * 2
    for wave, low in zip(joined, (True, True, False, False), strict=True):
        loudest = torch.fft.rfft(wave).abs().argmax() / len(wave) * speaking.RATE
        assert (loudest < 400) == low
    silent = (joined[0].view(3, -1)[:, -round(0.1 * speaking.RATE) :] == 0).all()
    assert silent
    other = list(streams(found, speaking.RATE, join=1.0, pause=(0.1, 0.1), seed=5))
    assert not all(torch.equal(a, b) for a, b in zip(joined, other, strict=True))
    assert len(list(streams(found, speaking.RATE))) == len(found)


def test_units_and_codes_are_cut_at_the_same_seconds(units: Units) -> None:
    check_cut(units)


def check_cut(units: Units) -> None:
    """With a codec of other frames than units: 25 a second, and 50."""
    ears = Hearing(units, speaking.codec(hop=320))
    wave = torch.cat([speaking.tone(p, 0.5, ears.rate) for p in (200.0, 400.0, 900.0)])
    heard = ears.hear(wave)
    assert (len(heard.units), heard.codes.shape, heard.seconds) == (75, (4, 38), 1.5)
    part = ears.cut(heard, 0.48, 0.6)
    assert np.array_equal(part.units, heard.units[24:54])
    assert np.array_equal(part.codes, heard.codes[:, 12:27])
    assert ears.cut(heard, 1.2, 0.6).seconds == pytest.approx(0.3)
