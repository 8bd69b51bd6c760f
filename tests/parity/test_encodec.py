"""EnCodec against transformers: disk to disk, loud, fp64; codes are equal, sound is to 1e-10."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor
from transformers.models.encodec.modeling_encodec import EncodecResidualVectorQuantizer

import allformer as af
from allformer.checkpoint.convert import convert
from allformer.codecs.sound import Chunks, Encodec, Seanet
from allformer.errors import CheckpointError
from allformer.families.config_json import read_config
from tests.parity import sound_codecs as zoo
from tests.parity.sound_codecs import CAUSAL, ENCODECS, MIMI, STEREO, TRIMMED, Case
from tests.parity.zoo import files_of, rewrite


@torch.no_grad()
def compare(case: Case) -> None:
    """Codes, loudness and sound at every bandwidth, of sounds of several lengths."""
    theirs, ours = zoo.oracle(case), zoo.ours(case)
    for length in case.lengths:
        x = zoo.sound(case, length)
        keep = torch.ones(2, length, dtype=torch.bool)
        keep[1, length - length // 4 :] = False
        for bandwidth in theirs.config.target_bandwidths:
            wanted = theirs.encode(x, keep, bandwidth)
            found = ours.pieces(x, padding_mask=keep, bandwidth=bandwidth)
            assert len(found.codes) == len(wanted.audio_codes)
            for codes, same in zip(found.codes, wanted.audio_codes, strict=True):
                assert torch.equal(codes, same[..., : codes.shape[-1]]), f"{case.name}: codes"
            for loud, same in zip(found.loudness or (), wanted.audio_scales, strict=False):
                zoo.close(loud[..., 0], same, f"{case.name}: loudness")
            wave = theirs(x, keep, bandwidth).audio_values
            zoo.close(ours.join(found, length=length), wave, f"{case.name}: sound")


def check_causal() -> None:
    compare(CAUSAL)


def check_trimmed() -> None:
    compare(TRIMMED)


def check_stereo() -> None:
    compare(STEREO)


def check_gradients() -> None:
    """Of all convolutions and the LSTM."""
    theirs, ours = zoo.oracle(CAUSAL), zoo.ours(CAUSAL)
    x = zoo.sound(CAUSAL, 37)
    theirs.decoder(theirs.encoder(x)).square().mean().backward()
    ours.decoder(ours.encoder(x)).square().mean().backward()
    found = zoo.their_gradients(ours)
    wanted = {name: p.grad for name, p in theirs.named_parameters()}
    theirs.zero_grad()
    assert found.keys() == wanted.keys()
    for name, grad in wanted.items():
        zoo.close(found[name], grad, f"gradient of {name}")


OLDER = {"original0": "weight_g", "original1": "weight_v"}


def check_older_names() -> None:
    """Files before weight norm was a parametrisation, as Meta's are: read, and written back so."""
    with TemporaryDirectory() as folder:
        _compare_older(Path(folder))


def _compare_older(folder: Path) -> None:
    old = rewrite(zoo.on_disk(CAUSAL), folder / "old", _older)
    codec: Any = af.load(old)
    af.save(codec, folder / "again")
    before, after = files_of(old), files_of(folder / "again")
    assert before.keys() == after.keys()
    assert "encoder.layers.0.conv.weight_g" in after
    assert all(torch.equal(x, after[name]) for name, x in before.items())
    x = zoo.sound(CAUSAL, 37)
    assert torch.equal(codec.encode(x), zoo.ours(CAUSAL).encode(x))


def _older(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    out = {}
    for name, x in tensors.items():
        body, _, end = name.rpartition(".")
        out[f"{body.removesuffix('.parametrizations.weight')}.{OLDER.get(end, end)}"] = x
    return out


@pytest.mark.parametrize("case", ENCODECS, ids=lambda case: case.name)
def test_codes_and_sound_are_those_of_transformers(case):
    compare(case)


@pytest.mark.parametrize("size", [16, 256, 1024])
def test_a_bandwidth_affords_as_many_books_as_in_transformers(size):
    count = EncodecResidualVectorQuantizer.get_num_quantizers_for_bandwidth
    for pace in (50, 75, 100, 150):
        each = pace * (size - 1).bit_length() / 1000
        said = [each * n for n in range(1, 33)] + [n / 10 for n in range(1, 250)]
        theirs = hf.EncodecConfig(
            sampling_rate=320 * pace, codebook_size=size, target_bandwidths=[*said, 24.0]
        )
        tree = read_config(theirs.to_dict())[0]
        assert tree.books == theirs.num_quantizers
        for bandwidth in said:
            wanted = count(theirs, bandwidth)  # it asks for no more than a config has
            assert tree.books_of(bandwidth) == min(wanted, tree.books)


@torch.no_grad()
def test_all_codes_are_used_so_that_the_comparison_says_something():
    codes = zoo.ours(CAUSAL).encode(zoo.sound(CAUSAL, 300))
    assert all(len(book.unique()) >= 8 for book in codes.unbind(1))


def test_gradients_are_those_of_transformers():
    check_gradients()


@pytest.mark.parametrize("case", ENCODECS, ids=lambda case: case.name)
def test_a_directory_goes_round_byte_for_byte(case, tmp_path):
    path = zoo.on_disk(case)
    prepare = hf.EncodecFeatureExtractor(case.config().audio_channels, 80, 0.0, 1.0, 0.25)
    prepare.save_pretrained(path)
    af.save(af.load(path), tmp_path)
    for name in ("config.json", "model.safetensors", "preprocessor_config.json"):
        assert (tmp_path / name).read_bytes() == (path / name).read_bytes(), name


def test_older_names_of_weight_norm_are_read_and_written_back():
    check_older_names()


@pytest.mark.parametrize("case", [CAUSAL, STEREO, MIMI], ids=lambda case: case.name)
def test_a_conversion_is_certified_by_running_transformers_beside_it(case, tmp_path):
    found = convert(zoo.on_disk(case), tmp_path / "out", dtype=torch.float32)
    assert found["sound"]
    assert [each["output"] for each in found["outputs"]] == ["frames", "audio_values"] * 3
    assert found["outputs"][-1]["between"][1] == "transformers on the source"


@torch.no_grad()
def test_a_fresh_codec_opens_in_transformers(tmp_path):
    tree = Encodec(80, Seanet(hidden=4, ratios=(3, 2)), 8, 16, bandwidths=(0.056, 0.25))
    codec: Any = af.build(tree, seed=0)
    af.save(codec, tmp_path)
    theirs = hf.EncodecModel.from_pretrained(tmp_path)
    assert hf.AutoFeatureExtractor.from_pretrained(tmp_path).sampling_rate == 80
    x = zoo.sound(CAUSAL, 100).float()
    wanted = theirs.encode(x, bandwidth=0.25)
    assert torch.equal(codec.encode(x, bandwidth=0.25), wanted.audio_codes[0])


@torch.no_grad()
def test_what_the_feature_extractor_pads_is_read_as_transformers_reads_it():
    theirs, ours = zoo.oracle(STEREO), zoo.ours(STEREO)
    prepare = hf.EncodecFeatureExtractor(
        feature_size=2, sampling_rate=80, chunk_length_s=1.0, overlap=0.25
    )
    raw = [np.asarray(zoo.sound(STEREO, n)[0].float()) for n in (301, 77)]
    given = prepare(raw, sampling_rate=80, return_tensors="pt")
    x, keep = given["input_values"].double(), given["padding_mask"]
    wave = ours.join(ours.pieces(x, padding_mask=keep, bandwidth=0.12), length=x.shape[-1])
    zoo.close(wave, theirs(x, keep, 0.12).audio_values, "sound")


def test_what_prepares_sound_for_a_fresh_codec_is_as_transformers_writes_it(tmp_path):
    tree = Encodec(80, Seanet(channels=2, hidden=4, ratios=(3, 2)), 8, 16, chunks=Chunks(1.0, 0.25))
    af.save(af.build(tree, seed=0), tmp_path / "ours")
    hf.EncodecFeatureExtractor(2, 80, 0.0, 1.0, 0.25).save_pretrained(tmp_path / "theirs")
    name = "preprocessor_config.json"
    assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()


def test_presets_are_metas():
    assert read_config(hf.EncodecConfig().to_dict() | {"model_type": "encodec"})[0] == Encodec()
    said = hf.EncodecConfig(
        target_bandwidths=[3.0, 6.0, 12.0, 24.0], sampling_rate=48_000, audio_channels=2,
        normalize=True, chunk_length_s=1.0, overlap=0.01, norm_type="time_group_norm",
        use_causal_conv=False,
    )  # fmt: skip
    assert read_config(said.to_dict())[0] == af.codec_preset("encodec-48khz")
    assert said.num_quantizers == af.codec_preset("encodec-48khz").books  # type: ignore[union-attr]
    assert said.chunk_stride == Chunks().stride(48_000)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("codebook_dim", 4, "codebook_dim=4, which is not supported"),
        ("norm_type", "layer_norm", "norm_type='layer_norm', which is not known; try weight_norm"),
        ("target_bandwidths", [0.001], "leave no codebook"),
        ("codebook_size", 12, "must be a power of 2"),
        ("audio_channels", 3, "must be 1 or 2"),
        ("pad_mode", "zero", "try reflect, constant, replicate"),
        ("chunk_length_s", 1.0, "no overlap"),
        ("num_lstm_layers", 0, "a number of layers"),
        ("upsampling_ratios", [8, 0], "a list of sizes"),
        ("num_filters", 10**9, "describes a model of"),
        ("num_residual_layers", 10**9, "residuals=1000000000 must be at most 64"),
        ("num_residual_layers", -1, "must be a whole number of at least 0"),
        ("num_lstm_layers", 9999, "describes a model of"),
        ("upsampling_ratios", [10**9] * 12, "describes a model of"),
        ("upsampling_ratios", [2] * 13, "must be at most 12"),
        ("target_bandwidths", [1e300], "must be positive and at most 1,000,000"),
        ("target_bandwidths", [1e5], "ask for .* codebooks, at"),
    ],
)
def test_a_config_that_makes_no_codec_is_refused(field, value, said, tmp_path):
    path = rewrite(zoo.on_disk(CAUSAL), tmp_path / "odd", lambda x: x, {field: value})
    with pytest.raises(CheckpointError, match=said):
        af.load(path)


def test_another_model_is_no_codec_of_sound(tmp_path):
    af.save(af.build(af.codec_preset("dvae-28"), seed=0), tmp_path)
    with pytest.raises(CheckpointError, match="DVAE, which is no codec of sound"):
        af.load_sound_codec(tmp_path)
    with pytest.raises(CheckpointError, match="Encodec, which is no codec of images"):
        af.load_codec(zoo.on_disk(CAUSAL))
    assert af.load_sound_codec(zoo.on_disk(CAUSAL)).books == 4
    assert json.loads((zoo.on_disk(CAUSAL) / "config.json").read_text())["model_type"] == "encodec"
