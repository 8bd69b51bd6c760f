"""Mimi against transformers: disk to disk, loud, fp64; codes are equal, sound is to 1e-10."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as hf

import allformer as af
from allformer.codecs.sound import Mimi
from allformer.codecs.sound.mimi_config import TRUNK, transformer
from allformer.errors import CheckpointError, ConfigError
from allformer.families.config_json import read_config
from tests.parity import sound_codecs as zoo
from tests.parity.sound_codecs import MIMI, MIMIS, SPLIT, Case
from tests.parity.zoo import rewrite, unrounded

TINY = Mimi(
    80, replace(TRUNK, hidden=4, ratios=(3, 2)), transformer(16, 2, 2, 32, 5),
    transformer(16, 2, 2, 32, 5), groups=16, codes=16, code_dim=8, acoustic=3,
)  # fmt: skip


@torch.no_grad()
def compare(case: Case) -> None:
    """Codes and sound of as many books as there may be."""
    theirs, ours = zoo.oracle(case), zoo.ours(case)
    for length in case.lengths:
        x = zoo.sound(case, length)
        for books in range(ours.least, ours.books + 1):
            with unrounded():
                wanted = theirs(x, num_quantizers=books)
            codes = ours.encode(x, books=books)
            assert torch.equal(codes, wanted.audio_codes), f"{case.name}: codes"
            wave = ours.decode(codes, length=length)
            zoo.close(wave, wanted.audio_values, f"{case.name}: sound")


def check_mimi() -> None:
    compare(MIMI)


def check_split() -> None:
    compare(SPLIT)


@pytest.mark.parametrize("case", MIMIS, ids=lambda case: case.name)
def test_codes_and_sound_are_those_of_transformers(case):
    compare(case)


@torch.no_grad()
def test_all_codes_are_used_so_that_the_comparison_says_something():
    codes = zoo.ours(MIMI).encode(zoo.sound(MIMI, 300))
    assert all(len(book.unique()) >= 6 for book in codes.unbind(1))


@pytest.mark.parametrize("case", MIMIS, ids=lambda case: case.name)
def test_a_directory_goes_round_byte_for_byte(case, tmp_path):
    path = zoo.on_disk(case)
    af.save(af.load(path), tmp_path)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == (path / name).read_bytes(), name


@torch.no_grad()
def test_a_fresh_codec_opens_in_transformers(tmp_path):
    codec: Any = af.build(TINY, seed=0)
    af.save(codec.double().eval(), tmp_path)
    theirs = hf.MimiModel.from_pretrained(tmp_path).eval()
    x = zoo.sound(MIMI, 100)
    with unrounded():
        wanted = theirs(x)
    found = codec.encode(x)
    assert torch.equal(found, wanted.audio_codes)
    zoo.close(codec.decode(found, length=100), wanted.audio_values, "sound")


def test_the_preset_is_kyutais():
    """What their config.json says, in the older dialect too."""
    said = hf.MimiConfig().to_dict() | {"model_type": "mimi"}
    assert read_config(said)[0] == Mimi() == af.codec_preset("mimi")
    older = {k: v for k, v in said.items() if k not in ("rope_parameters", "_frame_rate")}
    older |= {"rope_theta": 10_000.0, "frame_rate": 12.5, "normalize": False}
    tree, known = read_config(older)
    assert tree == Mimi()
    assert known.extras["frame_rate"] == 12.5


def test_the_formula_counts_what_is_built():
    for tree in (TINY, replace(TINY, code_dim=16), replace(TINY, groups=4, every=3)):
        held = sum(x.numel() for x in af.build(tree).state_dict().values())
        assert tree.parameters == held


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"encoder_config": None}, "has no encoder, and a codec needs both halves"),
        ({"decoder_config": None}, "has no decoder"),
        ({"codebook_dim": 4}, "codebook_dim=4, which is not supported"),
        ({"frame_rate": 14.0}, r"frame_rate=14.0, but .* make 13.3"),
        ({"frame_rate": 0.0}, "must be positive"),
        ({"num_semantic_quantizers": 4}, "acoustic=0"),
        ({"upsample_groups": 3}, "groups=3 must divide the width, 16; try 16"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rotary positions of kind 'spiral'"),
    ],
)
def test_a_config_that_makes_no_codec_is_refused(fields, said, tmp_path):
    path = rewrite(zoo.on_disk(MIMI), tmp_path / "odd", lambda x: x, fields)
    with pytest.raises(CheckpointError, match=said):
        af.load(path)


def test_trees_that_make_no_codec_are_refused():
    with pytest.raises(ConfigError, match="must be as wide as the encoder, 16"):
        replace(TINY, decoder=transformer(8, 1, 2, 32, 5))
    odd = af.build(replace(TINY, decoder=transformer(16, 1, 2, 32, 5)), seed=0)
    with pytest.raises(CheckpointError, match="has two unequal Transformers"):
        af.save(odd, "never", family="mimi")


def test_fewer_books_than_semantic_ones_are_refused():
    codec = zoo.ours(SPLIT)
    with pytest.raises(ConfigError, match="books=1 must be in 2 … 4"):
        codec.encode(zoo.sound(SPLIT, 37), books=1)
    with pytest.raises(ConfigError, match="2 … 4 codebooks"):
        codec.decode(torch.zeros(1, 1, 5, dtype=torch.long))
