"""`save`: a model as a directory that transformers opens, or in our own layout.

save(model, "out")                       # as the family that it came from, or that fits it
save(model, "out", family="marian")      # as this family, or an error that says why not
save(model, "out", family="allformer")   # our own names, for any config tree
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.load import GENERATION, own_map
from allformer.checkpoint.transfer import SHARD, own_state, save_weights
from allformer.core.model import AnyModel
from allformer.families import FAMILIES
from allformer.families.config_json import write_config

OWN = "allformer"


def save(
    model: AnyModel,
    path: str | Path,
    *,
    family: str | None = None,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = SHARD,
) -> None:
    """Write config.json, weights and, where the model has them, its options for generating.

    The files of an older checkpoint there give way at the end.
    `dtype` converts floating-point tensors on the way; otherwise they are written as they are.
    """
    directory = Path(path)
    if family == OWN:
        raw = json.loads(model.config.to_json())
        ops = own_map(model)
    else:
        raw, known = write_config(model.config, model.provenance, family)
        ops = FAMILIES[known.family].weights(model.config, known.architecture)
        raw = {**raw, "dtype": _dtype_name(model, dtype)}
        raw.pop("torch_dtype", None)
    directory.mkdir(parents=True, exist_ok=True)
    aside = model.provenance.aside
    save_weights(model, ops, directory, max_shard_bytes=max_shard_bytes, dtype=dtype, aside=aside)
    write_json(directory / "config.json", raw)
    generation = model.provenance.generation
    if generation is not None:
        said = generation if isinstance(generation, dict) else generation.to_dict()
        write_json(directory / GENERATION, said)


def write_json(path: Path, raw: dict[str, Any]) -> None:
    """As transformers formats it, in one step: never half a file."""
    text = json.dumps(raw, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _dtype_name(model: AnyModel, dtype: torch.dtype | None) -> str:
    """What most of the weights are."""
    sizes: dict[torch.dtype, int] = {}
    for tensor in own_state(model).values():
        if tensor.is_floating_point():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel()
    most = dtype or max(sizes, key=lambda kind: sizes[kind])
    return str(most).removeprefix("torch.")
