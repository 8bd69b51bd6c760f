"""preprocessor_config.json of sound: read and written as transformers does, wrong ones refused."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import EncodecFeatureExtractor, WhisperFeatureExtractor

from allformer.errors import DataError, LengthError
from allformer.sound.processor import SoundProcessor, hears, load_processor
from allformer.sound.settings import MelSettings, WaveSettings, make_settings

CASES = [
    WhisperFeatureExtractor(),
    WhisperFeatureExtractor(feature_size=128, return_attention_mask=True),
    EncodecFeatureExtractor(),
    EncodecFeatureExtractor(feature_size=2, sampling_rate=48_000, chunk_length_s=1.0, overlap=0.01),
]


@pytest.mark.parametrize("theirs", CASES, ids=lambda case: f"{type(case).__name__}")
def test_settings_are_read_and_written_as_transformers_has_them(theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_processor(tmp_path / "theirs")
    ours.save(tmp_path / "again")
    name = "preprocessor_config.json"
    written = (tmp_path / "again" / name).read_bytes()
    assert written == (tmp_path / "theirs" / name).read_bytes()
    SoundProcessor(ours.settings).save(tmp_path / "fresh")
    back = type(theirs).from_pretrained(tmp_path / "fresh")
    assert back.to_dict() == theirs.to_dict()


def test_waves_of_a_codec_are_padded_as_transformers_does():
    mono = [torch.linspace(-1, 1, count) for count in (1000, 700)]
    want = EncodecFeatureExtractor()(
        [wave.numpy() for wave in mono], sampling_rate=24_000, return_tensors="pt"
    )
    assert torch.equal(SoundProcessor(WaveSettings())(mono), want.input_values)
    chunks = {"feature_size": 2, "sampling_rate": 48_000, "chunk_length_s": 0.01, "overlap": 0.1}
    stereo = [torch.linspace(-1, 1, 2 * count).view(2, -1) for count in (1000, 700)]
    want = EncodecFeatureExtractor(**chunks)(
        [wave.numpy() for wave in stereo], sampling_rate=48_000, return_tensors="pt"
    )
    assert torch.equal(SoundProcessor(WaveSettings(**chunks))(stereo), want.input_values)


def test_features_are_transformers_and_nothing_is_cut():
    wave = torch.sin(torch.arange(20_000) / 10)
    small = {"chunk_length": 2}
    want = WhisperFeatureExtractor(**small)(
        wave.numpy(), sampling_rate=16_000, return_tensors="pt"
    ).input_features
    processor = SoundProcessor(MelSettings(**small))
    assert processor.gives == "input_features"
    assert (processor(wave) - want).abs().max() < 1e-6
    with pytest.raises(LengthError, match=r"takes 2 s"):
        processor(torch.zeros(32_001))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ({"feature_extractor_type": "Wav2Vec2FeatureExtractor"}, "known are Whisper"),
        (
            {"feature_extractor_type": "WhisperFeatureExtractor", "hop_lengths": 160},
            "did you mean hop_len",
        ),
        ({"feature_extractor_type": "WhisperFeatureExtractor", "dither": 0.1}, "only 0.0 is"),
        ({"feature_extractor_type": "WhisperFeatureExtractor", "n_fft": 0}, "n_fft=0"),
        ({"feature_extractor_type": "EncodecFeatureExtractor", "overlap": 1.5}, "below 1"),
    ],
)
def test_settings_that_are_not_known_are_refused(raw, why):
    with pytest.raises(DataError, match=why):
        make_settings(raw)


def test_a_directory_without_sound_says_so(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "ViTImageProcessor"})
    )
    assert not hears(tmp_path)
    with pytest.raises(DataError, match="how sound is prepared"):
        load_processor(tmp_path)
