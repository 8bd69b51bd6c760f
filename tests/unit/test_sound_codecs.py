"""Sound codecs: waveforms to codes and back, their sizes, their files, and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import allformer as af
from allformer.cli.main import app
from allformer.codecs import codec_presets
from allformer.codecs.sound import Chunks, Encodec, EncodecModel, Mimi, Pieces, Seanet
from allformer.codecs.sound.mimi_config import transformer
from allformer.codecs.sound.presets import PRESETS
from allformer.errors import AllformerError, ConfigError, TaskError

TRUNK = Seanet(hidden=4, ratios=(3, 2), residuals=2)
TINY = Encodec(rate=80, trunk=TRUNK, dim=8, codes=16, bandwidths=(0.06, 0.12, 0.24))
STEREO = replace(
    TINY, trunk=replace(TRUNK, channels=2, causal=False, norm="time"), loudness=True,
    chunks=Chunks(1.0, 0.25),
)  # fmt: skip


MIMI = Mimi(
    80, replace(TRUNK, norm=None, lstm=0), transformer(16, 1, 2, 32, 5),
    transformer(16, 1, 2, 32, 5), groups=16, codes=16, code_dim=8, acoustic=3,
)  # fmt: skip


def made(tree: Encodec = TINY, seed: int = 0) -> EncodecModel:
    codec: Any = af.build(tree, seed=seed)
    return codec.eval()


def waves(rows: int = 2, channels: int = 1, length: int = 100, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, channels, length, generator=generator) * 2 - 1


def test_sound_becomes_frames_of_codes_and_codes_sound():
    codec = made()
    assert (codec.rate, codec.hop, codec.books, codec.size, codec.channels) == (80, 6, 4, 16, 1)
    codes = codec.encode(waves())
    assert codes.shape == (2, 4, 17)  # ⌈100 / 6⌉
    assert codes.dtype == torch.long
    assert codec.decode(codes).shape == (2, 1, 102)
    assert codec.decode(codes, length=100).shape == (2, 1, 100)


def test_fewer_books_are_the_first_of_all():
    codec = made()
    codes = codec.encode(waves())
    assert torch.equal(codec.encode(waves(), books=3), codes[:, :3])
    assert torch.equal(codec.encode(waves(), bandwidth=0.12), codes[:, :2])
    assert codec.decode(codes[:, :1]).shape == (2, 1, 102)


def test_a_causal_codec_does_not_look_ahead():
    codec, wave = made(), waves(length=120)
    other = wave.clone()
    other[..., 60:] = 0
    assert torch.equal(codec.encode(wave)[..., :10], codec.encode(other)[..., :10])
    codes = codec.encode(wave)
    later = codes.clone()
    later[..., 10:] = 0
    assert torch.equal(codec.decode(codes)[..., :60], codec.decode(later)[..., :60])


def test_sounds_of_a_batch_do_not_mix():
    codec, wave = made(), waves(3)
    together = codec.decode(codec.encode(wave))
    for i in range(3):
        alone = codec.decode(codec.encode(wave[i : i + 1]))
        assert torch.allclose(alone[0], together[i], atol=1e-6)


@pytest.mark.parametrize("tree", [TINY, MIMI], ids=["encodec", "mimi"])
def test_half_precision_chooses_in_full_and_gives_full(tree):
    codec: Any = af.build(tree, seed=0).eval()
    wide = codec.encode(waves())
    narrow = codec.encode(waves(), dtype=torch.bfloat16)
    assert narrow.shape == wide.shape
    assert codec.decode(wide, dtype=torch.bfloat16).dtype == torch.float32
    codec = codec.to(torch.bfloat16)
    assert codec.encode(waves()).shape == wide.shape
    wave = codec.decode(wide)
    assert wave.dtype == torch.float32
    assert wave.isfinite().all()


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7])
def test_the_shortest_sounds_have_a_frame_too(length):
    codec = made()
    codes = codec.encode(waves(length=length))
    assert codes.shape == (2, 4, -(-length // 6))
    assert codec.decode(codes, length=length).shape == (2, 1, length)


@pytest.mark.parametrize("length", [1, 60, 61, 80, 141, 300, 301])
def test_pieces_of_any_length_are_joined(length):
    codec = made(STEREO)
    wave = waves(channels=2, length=length)
    pieces = codec.pieces(wave)
    assert len(pieces.codes) == -(-length // 60)
    assert pieces.loudness is not None
    assert len(pieces.loudness) == len(pieces.codes)
    assert codec.join(pieces, length=length).shape == wave.shape


def test_the_formula_counts_what_is_built():
    for tree in (TINY, STEREO, replace(TINY, trunk=replace(TRUNK, norm=None, shortcut=False))):
        assert tree.parameters == sum(x.numel() for x in made(tree).state_dict().values())


def test_presets_are_of_the_sizes_that_their_names_say():
    assert {n: (x.rate, x.channels, x.hop, x.books, x.codes) for n, x in PRESETS.items()} == {
        "encodec-24khz": (24_000, 1, 320, 32, 1024), "encodec-48khz": (48_000, 2, 320, 16, 1024),
        "encodec-8khz": (8_000, 1, 160, 8, 1024), "mimi": (24_000, 1, 1920, 32, 2048),
    }  # fmt: skip
    assert set(PRESETS) <= set(codec_presets())
    assert af.codec_preset("encodec-8khz") is PRESETS["encodec-8khz"]


def test_gradients_reach_every_weight_of_both_halves():
    codec = made().train()
    codec.decoder(codec.encoder(waves())).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in codec.parameters())


@pytest.mark.parametrize("tree", [TINY, STEREO])
def test_a_codec_is_saved_and_loaded_like_any_model(tree, tmp_path):
    codec = made(tree)
    for family in (None, "allformer", "encodec"):
        af.save(codec, tmp_path, family=family)  # type: ignore[arg-type]
        again: Any = af.load(tmp_path)
        assert again.config == codec.config
        wave = waves(channels=codec.channels)
        for a, b in zip(again.pieces(wave).codes, codec.pieces(wave).codes, strict=True):
            assert torch.equal(a, b)
    assert '"model_type": "encodec"' in (tmp_path / "config.json").read_text()


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"codes": 12}, "codes=12 must be a power of 2"),
        ({"bandwidths": (0.01,)}, "leave no codebook: one takes 0.056 kbit/s; end with 0.056"),
        ({"bandwidths": ()}, "must have at least one"),
        ({"bandwidths": (-1.0, 1.0)}, "must be positive"),
        ({"bandwidths": (1e6,)}, "codebooks, at 0.056 kbit/s each"),
        ({"chunks": Chunks(0.001, 0.0)}, "shorter than a sample at 80 Hz"),
    ],
)
def test_sizes_that_make_no_codec_are_refused(change, said):
    with pytest.raises(ConfigError) as error:
        replace(TINY, **change)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"channels": 3}, "channels=3 must be 1 or 2; mono or stereo"),
        ({"ratios": ()}, "must have a number for each halving"),
        ({"ratios": (2,) * 13}, "must be at most 12"),
        ({"narrow": 5}, "narrow=5 must be at most hidden=4"),
        ({"causal": False, "trim": 0.5}, "is for causal convolutions"),
        ({"trim": 1.5}, "must lie in 0 … 1"),
        ({"padding": "zeros"}, "padding='zeros'"),
    ],
)
def test_sizes_that_make_no_trunk_are_refused(change, said):
    with pytest.raises(ConfigError) as error:
        replace(TRUNK, **change)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("wave", "given", "said"),
    [
        (waves(channels=2), {}, "this codec is mono; average the channels"),
        (waves()[0], {}, r"wave=\(1, 100\) must be sounds × 1 × samples"),
        (waves(length=0), {}, "has no samples"),
        (waves().long(), {}, "divide int16 by 32768"),
        (waves(), {"rate": 16_000}, "rate=16000, but this codec reads 80 .*resample"),
        (waves(), {"bandwidth": 0.01}, r"a codebook alone takes 0.056\); try 0.06, 0.12, 0.24"),
        (waves(), {"bandwidth": 0.1}, "is none of this codec's; try"),
        (waves(), {"bandwidth": 0.12, "books": 1}, "say the same; give one"),
        (waves(), {"books": 5}, r"books=5 must be in 1 … 4"),
        (waves(), {"books": 0}, r"books=0 must be in 1 … 4"),
        (waves(), {"padding_mask": torch.ones(2, 99)}, r"padding_mask=\(2, 99\) does not fit"),
    ],
)
def test_sound_that_is_none_of_its_own_is_refused(wave, given, said):
    with pytest.raises(AllformerError, match=said):
        made().encode(wave, **given)


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        (torch.zeros(2, 4, dtype=torch.long), "sounds × codebooks × frames"),
        (torch.zeros(2, 4, 5), "float32"),
        (torch.zeros(2, 5, 5, dtype=torch.long), "1 … 4 codebooks"),
        (torch.zeros(2, 4, 0, dtype=torch.long), "codebooks × frames"),
        (torch.full((2, 4, 5), 16), "a codebook has 0 … 15"),
        (torch.full((2, 4, 5), -1), "lie between -1"),
    ],
)
def test_codes_that_are_none_are_refused(codes, said):
    with pytest.raises(AllformerError, match=said):
        made().decode(codes)


def test_pieces_that_are_not_this_codecs_are_refused():
    stereo = made(STEREO)
    with pytest.raises(ConfigError, match=r"take codec\.pieces"):
        stereo.encode(waves(channels=2))
    with pytest.raises(ConfigError, match="this codec is stereo; repeat"):
        stereo.pieces(waves())
    pieces = stereo.pieces(waves(channels=2))
    with pytest.raises(ConfigError, match="with 0 loudnesses: this codec keeps one for each"):
        stereo.join(Pieces(pieces.codes))
    with pytest.raises(ConfigError, match="2 pieces, but this codec has one"):
        made().join(Pieces(pieces.codes))
    with pytest.raises(ConfigError, match="this codec keeps none"):
        made().join(Pieces(pieces.codes[:1], (torch.ones(2, 1, 1),)))


# --- told to a person -----------------------------------------------------------------------------


def test_info_tells_what_a_second_is():
    told = json.loads(CliRunner().invoke(app, ["info", "mimi", "--json"]).stdout)
    assert told["bits_per_second"] == 4400
    assert told["parameters"] == sum(part["parameters"] for part in told["parts"]) == 96_151_393
    shown = CliRunner().invoke(app, ["info", "encodec-24khz"]).stdout
    assert "75, of 320 samples each" in shown
    assert "24 of 384" in shown  # kbit


@pytest.mark.parametrize("opens", [af.open_pipeline, af.open_image_pipeline])
def test_a_task_says_that_it_was_given_a_codec(opens, tmp_path):
    af.save(made(), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match=r"sound of codes \(af\.load_sound_codec"):
        opens(tmp_path)
