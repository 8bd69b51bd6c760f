"""Whisper from OpenAI's own files: its sizes and a state dict in one `.pt`.

    model = read_openai_whisper("tiny.en.pt")           # as `af.load("tiny.en.pt")` does
    af.save(model, "out")                               # as transformers' Whisper

The file is read by torch's weights-only reader: no code of it is run. Its weights are fp16;
`dtype=torch.float32` is what OpenAI's own program computes in on a CPU.
"""

from __future__ import annotations

from pathlib import Path

import torch

from allformer.checkpoint.files import TensorFiles
from allformer.checkpoint.torch_file import open_torch_file, read_torch_file
from allformer.checkpoint.transfer import load_weights
from allformer.core.model import AnyModel, build
from allformer.errors import CheckpointError
from allformer.families.config_json import read_config
from allformer.families.whisper_openai import DIMS, STATE, fields_of, weights

ENDS = (".pt", ".pth")


def read_openai_whisper(
    path: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> AnyModel:
    """The model of such a file, in eval mode; saving it gives transformers' files."""
    path = Path(path)
    try:
        tree, known = read_config(fields_of(_dims(path)))
    except CheckpointError as error:
        raise CheckpointError(f"{path} is not read as OpenAI's Whisper: {error}") from None
    model = build(tree, device="meta")
    model.provenance = known
    files = TensorFiles(path, open_torch_file(path, STATE))
    loaded = load_weights(model, weights(tree), files, device=device, dtype=dtype)  # type: ignore[arg-type]
    model.provenance.fates = loaded.fates
    return model.eval()


def is_openai_whisper(path: Path) -> bool:
    """Whether a file has the sizes of a Whisper beside its weights."""
    if path.suffix not in ENDS or not path.is_file():
        return False
    return {DIMS, STATE} <= read_torch_file(path).keys()


def _dims(path: Path) -> dict[str, int]:
    found = read_torch_file(path)
    dims = found.get(DIMS)
    if not isinstance(dims, dict) or STATE not in found:
        raise CheckpointError(
            f"it has no {DIMS} and {STATE}; give OpenAI's file, or a directory of transformers'"
        )
    return dims
