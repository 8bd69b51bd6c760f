"""Sound codecs on disk: Hugging Face's directories of EnCodec and Mimi, and our own.

    codec = load_sound_codec("facebook/encodec_24khz")
    af.save(codec, "out")                          # as transformers has it

They are directories like any model's, so `af.load` takes them too; `load_sound_codec` says so
clearly where something else lies there.
"""

from __future__ import annotations

from pathlib import Path

import torch

from allformer.checkpoint.hub import find_checkpoint
from allformer.checkpoint.load import load
from allformer.codecs.sound import SoundCodecModel
from allformer.errors import CheckpointError


def load_sound_codec(
    path: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> SoundCodecModel:  # type: ignore[type-arg]
    """The codec in a directory, in eval mode: `load_sound_codec("runs/codec").encode(wave)`."""
    found = load(find_checkpoint(path), device=device, dtype=dtype)
    if not isinstance(found, SoundCodecModel):
        raise CheckpointError(
            f"{path} holds a {type(found.config).__name__}, which is no codec of sound; give an "
            f"EncodecModel's or a MimiModel's directory"
        )
    return found
