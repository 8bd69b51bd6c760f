"""Codecs on disk: our own directories, and the two files that OpenAI published.

    codec = load_codec("runs/fashion-dvae")        # config.json + model.safetensors
    codec = load_codec("dall-e")                   # encoder.pkl + decoder.pkl, or as safetensors
    af.save(codec, "out")                          # our own layout
    save_openai(codec, "out")                      # encoder.safetensors + decoder.safetensors

A codec's directory is one like any model's, so `af.load`, `af.save` and `allformer info` take it
too; `load_codec` says so clearly where something else lies there. The pickles of OpenAI's are whole
modules: of them tensors alone are read, and nothing is run (`inert_pickle`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from allformer.checkpoint.files import in_memory, open_tensors
from allformer.checkpoint.hub import find_checkpoint
from allformer.checkpoint.inert_pickle import read_module
from allformer.checkpoint.load import load
from allformer.checkpoint.stored import read_whole
from allformer.checkpoint.transfer import load_weights, own_map, own_state
from allformer.checkpoint.weights import write_tensors
from allformer.codecs import DVAE, CodecModel, DVAEModel
from allformer.core.model import build
from allformer.errors import CheckpointError, ConfigError

FOLDER = "codec"  # within a run that draws: its own
HALVES = ("encoder", "decoder")
ENDINGS = (".safetensors", ".pkl", ".pt", ".pth", ".bin")


def load_codec(
    path: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> CodecModel:  # type: ignore[type-arg]
    """The codec in a directory, in eval mode: `ids = load_codec("runs/dvae").encode(pixels)`."""
    directory = Path(path)
    if _half(directory, "encoder") is not None and not (directory / "config.json").is_file():
        return _load_openai(directory, device, dtype)
    found = load(find_checkpoint(path), device=device, dtype=dtype)
    if not isinstance(found, CodecModel):
        raise CheckpointError(
            f"{path} holds a {type(found.config).__name__}, which is no codec of images; give what "
            f"objective=image-codec trained, or a directory with OpenAI's encoder.pkl and "
            f"decoder.pkl"
        )
    return found


def save_openai(codec: CodecModel, path: str | Path) -> None:  # type: ignore[type-arg]
    """A dVAE as encoder.safetensors and decoder.safetensors, with the names of OpenAI's files."""
    if not isinstance(codec, DVAEModel):
        raise CheckpointError(
            f"OpenAI's names are a dVAE's, and this is a {type(codec.config).__name__}; save it "
            f"with af.save"
        )
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    for half in HALVES:
        own = own_state(getattr(codec, half))
        tensors = {name: x.detach() for name, x in own.items()}
        write_tensors(tensors, directory / f"{half}.safetensors")


def _half(directory: Path, half: str) -> Path | None:
    """The file of the encoder or of the decoder, if there is one."""
    found = (directory / (half + ending) for ending in ENDINGS)
    return next((file for file in found if file.is_file()), None)


def _load_openai(
    directory: Path, device: torch.device | str, dtype: torch.dtype | None
) -> DVAEModel:
    tensors: dict[str, Tensor] = {}
    for half in HALVES:
        file = _half(directory, half)
        if file is None:
            raise CheckpointError(
                f"{directory} has an encoder's file, but none of {half}{{{','.join(ENDINGS)}}}; "
                f"a codec needs both"
            )
        tensors |= {f"{half}.{name}": x for name, x in _tensors(file).items()}
    try:
        tree = _tree({name: tuple(x.shape) for name, x in tensors.items()})
    except (KeyError, ConfigError) as error:
        fault = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"{directory} is not read as OpenAI's dVAE: {fault}") from None
    codec = build(tree, device="meta")
    assert isinstance(codec, DVAEModel)
    files = in_memory(tensors, str(directory))
    loaded = load_weights(codec, own_map(codec), files, device=device, dtype=dtype)
    codec.provenance.fates = loaded.fates
    return codec.eval()


def _tensors(file: Path) -> Mapping[str, Tensor]:
    """A safetensors file, or what torch.save wrote of a module or of its state_dict."""
    if file.suffix == ".safetensors":
        return {name: read_whole(stored) for name, stored in open_tensors(file).items()}
    return read_module(file)


def _tree(shapes: Mapping[str, tuple[int, ...]]) -> DVAE:
    """The sizes that the shapes tell. Not the image's: it may have any, and they used 256."""
    groups = _numbers(shapes, r"encoder\.blocks\.group_(\d+)\.")
    hidden, channels = shapes["encoder.blocks.input.w"][:2]
    tree = DVAE(
        codes=shapes["encoder.blocks.output.conv.w"][0],
        channels=channels,
        hidden=hidden,
        groups=groups,
        per_group=_numbers(shapes, r"encoder\.blocks\.group_1\.block_(\d+)\."),
        start=shapes["decoder.blocks.input.w"][0],
    )
    return tree


def _numbers(names: Mapping[str, object], pattern: str) -> int:
    found = {int(m[1]) for name in names if (m := re.match(pattern, name))}
    return max(found, default=0)
