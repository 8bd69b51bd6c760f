"""GGUF, the files of llama.cpp: a model of LLaMA's kind and its tokeniser in one file.

    model = read_gguf("model-Q4_K_M.gguf")                     # as `af.load` does: widened, in fp32
    model = read_gguf("model-Q4_K_M.gguf", quantised=True)     # matrices in the file's own bits
    af.save(model, "out")                                      # as transformers' LLaMA

Widened, the weights are the file's numbers, as ggml's reference multiplies them out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allformer.checkpoint.files import TensorFiles
from allformer.checkpoint.gguf_blocks import kind_name
from allformer.checkpoint.gguf_kept import load_kept
from allformer.checkpoint.gguf_tensors import bytes_of, open_gguf
from allformer.checkpoint.stored import InBlocks, read_whole
from allformer.checkpoint.transfer import load_weights
from allformer.core.model import AnyModel, build
from allformer.errors import CheckpointError, DataError
from allformer.families.config_json import read_config
from allformer.families.kinds import short
from allformer.families.llama_gguf import ARCHITECTURE, FACTORS, fields_of, weights
from allformer.gguf_header import GgufHeader, read_gguf_header
from allformer.text.gguf import special_ids

HEADS = ("LlamaForCausalLM", "LlamaModel")


def read_gguf(
    path: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    architecture: str | None = None,
    ignore: Iterable[str] = (),
    quantised: bool = False,
) -> AnyModel:
    """The model of such a file, in eval mode; saving it gives transformers' files.

    `quantised` keeps the matrices of its layers in the bits that they have in the file; what is
    left (the table of tokens, the output matrix, norms) is in `dtype`. Without one, plain numbers
    are as they are in the file, and blocks become fp32.
    """
    header = read_gguf_header(Path(path))
    files = TensorFiles(header.path, open_gguf(header))
    raw = config_of(header, files, ignore)
    if architecture not in (None, *HEADS):
        raise CheckpointError(
            f"architecture={architecture!r} is not in a GGUF file; try {' or '.join(HEADS)}"
        )
    try:
        tree, known = read_config(raw, architecture=architecture)
    except CheckpointError as error:
        raise CheckpointError(f"{path} is not read as LLaMA: {error}") from None
    model = build(tree, device="meta")
    known.generation = generation_of(header.metadata)
    model.provenance = known
    if dtype is None and any(isinstance(stored, InBlocks) for stored in files.values()):
        dtype = torch.float32  # one for all: what lies in blocks has none of its own
    take = load_kept if quantised else load_weights
    known.fates = take(model, weights(tree), files, device=device, dtype=dtype).fates
    return model.eval()


def gguf_config(path: str | Path) -> dict[str, Any]:
    """What would be the config.json of a file: `gguf_config("model.gguf")["hidden_size"]`."""
    header = read_gguf_header(Path(path))
    return config_of(header, TensorFiles(header.path, open_gguf(header)))


def config_of(header: GgufHeader, files: TensorFiles, ignore: Iterable[str] = ()) -> dict[str, Any]:
    """The fields of transformers' config.json that a file's head means."""
    kind = header.metadata.get("general.architecture")
    if kind != ARCHITECTURE:
        raise CheckpointError(
            f"{header.path} has general.architecture={short(kind)}, and only {ARCHITECTURE!r} is "
            f"known here; load the original checkpoint of the model (safetensors) instead"
        )

    def factors() -> Tensor:
        return read_whole(files[FACTORS])

    shapes = {name: stored.shape for name, stored in files.items()}
    try:
        return fields_of(header.metadata, shapes, factors, ignore)
    except CheckpointError as error:
        raise CheckpointError(f"{header.path} is not read as LLaMA: {error}") from None


def generation_of(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """A generation_config.json by the special tokens; a turn of a chat may have an end of its own,
    where the model stops too."""
    try:
        ids = special_ids(metadata)
    except DataError:
        return None  # whoever asks for the tokeniser is told
    ends = [ids[name] for name in ("eos", "eot") if name in ids]
    named = {f"{name}_token_id": ids[name] for name in ("bos", "pad") if name in ids}
    if ends:
        named["eos_token_id"] = ends[0] if len(set(ends)) == 1 else ends  # type: ignore[assignment]
    return named or None


def kinds_of(path: str | Path) -> dict[str, dict[str, int]]:
    """What a file holds by its types: tensors, numbers and bytes of each.

    >>> kinds_of("model-Q4_1.gguf")
    {'Q4_1': {'tensors': 210, 'numbers': 106168320, 'bytes': 66355200}, …}
    """
    out: dict[str, dict[str, int]] = {}
    for entry in read_gguf_header(Path(path)).tensors.values():
        held = out.setdefault(kind_name(entry.kind), {"tensors": 0, "numbers": 0, "bytes": 0})
        held["tensors"] += 1
        held["numbers"] += math.prod(entry.shape)
        held["bytes"] += bytes_of(entry)
    return out
