"""Codecs: images to codes and back, their sizes, their files, and what they refuse."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import allformer as af
from allformer import config
from allformer.checkpoint.codec import load_codec, save_openai
from allformer.checkpoint.files import open_tensors
from allformer.checkpoint.stored import read_whole
from allformer.codecs import DVAE, VQVAE, CodecModel
from allformer.codecs.encode_set import encode_set, read_codes
from allformer.codecs.presets import PRESETS
from allformer.errors import AllformerError, CheckpointError, ConfigError, DataError

TINY: dict[str, Any] = {
    "codes": 12, "image": (8, 12), "channels": 2, "hidden": 8, "groups": 3, "start": 6,
    "per_group": 1,
}  # fmt: skip
TREES = {"dvae": DVAE(**TINY), "vq": VQVAE(**TINY, dim=5)}


def made(name: str, seed: int = 0) -> CodecModel[Any]:
    codec: Any = af.build(TREES[name], seed=seed)
    return codec.eval()


def pictures(rows: int = 3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 2, 8, 12, generator=generator)


@pytest.mark.parametrize("name", TREES)
def test_images_become_codes_in_reading_order_and_codes_images(name):
    codec = made(name)
    ids = codec.encode(pictures())
    assert codec.grid == (2, 3)
    assert codec.codes == 12
    assert ids.shape == (3, 6)
    assert ids.dtype == torch.long
    images = codec.decode(ids)
    assert images.shape == (3, 2, 8, 12)
    assert (images >= 0).all()
    assert (images <= 1).all()
    assert torch.equal(images, codec.decode(ids.reshape(3, 2, 3)))


@pytest.mark.parametrize("name", TREES)
def test_bytes_are_the_same_images(name):
    codec = made(name)
    raw = (pictures() * 255).round().to(torch.uint8)
    assert torch.equal(codec.encode(raw), codec.encode(raw / 255))


@pytest.mark.parametrize("name", TREES)
def test_other_sizes_have_other_grids(name):
    codec = made(name)
    wide = pictures().repeat(1, 1, 2, 1)
    ids = codec.encode(wide)
    assert ids.shape == (3, 12)
    assert codec.decode(ids.reshape(3, 4, 3)).shape == wide.shape


@pytest.mark.parametrize("name", TREES)
def test_the_formula_counts_what_is_built(name):
    held = sum(x.numel() for x in made(name).state_dict().values())
    assert TREES[name].parameters == held


def test_presets_are_of_the_sizes_that_their_names_say():
    assert {name: (tree.image[0], tree.grid) for name, tree in PRESETS.items()} == {
        "dall-e-dvae": (256, (32, 32)), "dvae-28": (28, (7, 7)), "dvae-32": (32, (8, 8)),
        "vq-28": (28, (7, 7)), "vq-32": (32, (8, 8)),
    }  # fmt: skip
    with pytest.raises(ConfigError, match="did you mean dvae-28"):
        af.codec_preset("dvae28")


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TREES)
def test_a_codec_is_saved_and_loaded_like_any_model(name, tmp_path):
    codec = made(name)
    af.save(codec, tmp_path)  # type: ignore[arg-type]
    ids = codec.encode(pictures())
    for again in (load_codec(tmp_path), af.load(tmp_path)):
        assert again.config == codec.config
        assert torch.equal(again.encode(pictures()), ids)  # type: ignore[operator]
    assert af.config_from_json((tmp_path / "config.json").read_text()) == codec.config


def test_another_model_is_no_codec(tmp_path):
    block = config.Block(config.Attention(2), config.Feed(16, act="gelu"), norm_at="pre")
    stack = config.Stack(8, config.Tokens(9), None, (block,))
    af.save(af.build(config.EncoderOnly(stack), seed=0), tmp_path, family="allformer")
    with pytest.raises(CheckpointError, match=r"EncoderOnly, which is no codec.*image-codec"):
        load_codec(tmp_path)


def planted(codec: CodecModel[Any], folder: Path, zipped: bool = True) -> dict[str, torch.Tensor]:
    """The halves as pickled modules of classes that nobody has."""
    found = {}
    for half in ("encoder", "decoder"):
        module = getattr(codec, half)
        module.__class__ = type("Half", (nn.Module,), {"__module__": __name__})
        globals()["Half"] = module.__class__
        found |= {f"{half}.{k}": x.clone() for k, x in module.state_dict().items()}
        torch.save(module, folder / f"{half}.pkl", _use_new_zipfile_serialization=zipped)
    del globals()["Half"]
    return found


@pytest.mark.filterwarnings("ignore:Couldn.t retrieve source code")
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "one pickle"])
def test_pickled_modules_load_by_their_names_and_run_nothing(zipped, tmp_path):
    wanted = planted(made("dvae"), tmp_path, zipped)
    assert "encoder.blocks.group_1.block_1.res_path.conv_1.w" in wanted
    codec = load_codec(tmp_path)
    assert {**vars(codec.config), "image": 0} == {**vars(TREES["dvae"]), "image": 0}
    assert codec.state_dict().keys() == wanted.keys()
    assert all(torch.equal(x, wanted[name]) for name, x in codec.state_dict().items())


def test_openais_files_go_round_byte_for_byte(tmp_path):
    one, own, two = (tmp_path / name for name in ("one", "own", "two"))
    save_openai(made("dvae"), one)
    af.save(load_codec(one), own)  # type: ignore[arg-type]
    save_openai(load_codec(own), two)
    for half in ("encoder", "decoder"):
        name = f"{half}.safetensors"
        assert (one / name).read_bytes() == (two / name).read_bytes()
    names = set(open_tensors(one / "encoder.safetensors"))
    assert {"blocks.input.w", "blocks.input.b", "blocks.output.conv.w"} <= names
    with pytest.raises(CheckpointError, match="a dVAE's, and this is a VQVAE"):
        save_openai(made("vq"), tmp_path / "three")


class Trap:
    """Pickled as a call."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('run')",))


def test_a_pickle_that_would_run_code_runs_none(tmp_path):
    for half in ("encoder", "decoder"):
        torch.save({"blocks.input.w": Trap()}, tmp_path / f"{half}.pkl")
    with pytest.raises(CheckpointError, match="no tensor in it"):
        load_codec(tmp_path)
    (tmp_path / "encoder.pkl").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CheckpointError, match=r"no module that torch\.save wrote"):
        load_codec(tmp_path)


def test_damaged_and_missing_files_are_named(tmp_path):
    planted(made("dvae"), tmp_path)
    whole = (tmp_path / "encoder.pkl").read_bytes()
    for cut in (0, 1, 100, len(whole) // 2, len(whole) - 30):
        (tmp_path / "encoder.pkl").write_bytes(whole[:cut])
        with pytest.raises(CheckpointError, match=r"encoder\.pkl"):
            load_codec(tmp_path)
    (tmp_path / "encoder.pkl").write_bytes(whole)
    (tmp_path / "decoder.pkl").unlink()
    with pytest.raises(CheckpointError, match=r"none of decoder"):
        load_codec(tmp_path)


def test_a_half_of_another_codec_is_refused(tmp_path):
    save_openai(made("dvae"), tmp_path)
    odd: Any = af.build(DVAE(**{**TINY, "codes": 16}), seed=0)
    save_openai(odd, tmp_path / "odd")
    (tmp_path / "odd" / "decoder.safetensors").replace(tmp_path / "decoder.safetensors")
    with pytest.raises(CheckpointError, match=r"decoder\.blocks\.input\.w"):
        load_codec(tmp_path)


def test_a_file_too_small_for_its_config_is_refused_before_it_is_built(tmp_path):
    af.save(made("dvae"), tmp_path)  # type: ignore[arg-type]
    said = tmp_path / "config.json"
    said.write_text(said.read_text().replace('"hidden": 8', '"hidden": 4096'))
    with pytest.raises(CheckpointError, match="describes a model of"):
        load_codec(tmp_path)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image": (28, 30)}, "multiples of 4 pixels"),
        ({"hidden": 6}, "hidden=6 must be a multiple of 4"),
        ({"codes": 1}, "codes=1 must be at least 2"),
        ({"groups": 0}, "groups=0"),
        ({"groups": 40}, "groups=40 must be at most 12"),
        ({"image": (28,)}, "must be (height, width)"),
        ({"channels": 1.5}, "channels=1.5"),
    ],
)
def test_sizes_that_make_no_codec_are_refused(change, said):
    with pytest.raises(ConfigError) as error:
        DVAE(**{**TINY, **change})
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("pixels", "said"),
    [
        (torch.rand(2, 3, 8, 12), r"pixels=\(2, 3, 8, 12\) must be images × 2"),
        (torch.rand(2, 8, 12), "must be images"),
        (torch.rand(2, 2, 8, 10), "multiples of 4"),
        (255 * torch.rand(2, 2, 8, 12), "divide by 255"),
        (torch.rand(2, 2, 8, 12) - 0.5, "do not normalise"),
        (torch.full((1, 2, 8, 12), torch.nan), "lie between nan"),
        (torch.ones(2, 2, 8, 12, dtype=torch.long), "pixels are int64"),
    ],
)
def test_pixels_that_are_none_are_refused(pixels, said):
    with pytest.raises(AllformerError, match=said):
        made("dvae").encode(pixels)


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (torch.zeros(2, 7, dtype=torch.long), r"a grid of 2 × 3"),
        (torch.zeros(2, 6), "float32"),
        (torch.full((2, 6), 12), "the codebook has 0 … 11"),
        (torch.full((2, 6), -1), "lie between -1"),
    ],
)
@pytest.mark.parametrize("name", TREES)
def test_codes_that_are_none_are_refused(name, ids, said):
    with pytest.raises(AllformerError, match=said):
        made(name).decode(ids)


def test_tensors_are_read_as_the_file_has_them(tmp_path):
    save_openai(made("dvae"), tmp_path)
    files = open_tensors(tmp_path / "encoder.safetensors")
    own = made("dvae").state_dict()
    assert all(torch.equal(read_whole(x), own[f"encoder.{name}"]) for name, x in files.items())


# --- a set on disk --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TREES)
def test_a_set_of_images_is_kept_as_codes(name, tmp_path):
    codec, file = made(name), tmp_path / "codes.npz"
    batches = [pictures(3, seed=0), pictures(2, seed=1)]
    assert encode_set(codec, batches, file) == 5
    found = read_codes(file, codec)
    assert found.grid == (2, 3)
    assert found.codes == 12
    assert found.ids.tolist() == torch.cat([codec.encode(x) for x in batches]).tolist()
    with pytest.raises(DataError, match="another codec"):
        read_codes(file, made(name, seed=3))
    (tmp_path / "odd.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match="no file of codes"):
        read_codes(tmp_path / "odd.npz")
    with pytest.raises(DataError, match="no images"):
        encode_set(codec, [], tmp_path / "none.npz")
    assert not (tmp_path / "none.npz").exists()
