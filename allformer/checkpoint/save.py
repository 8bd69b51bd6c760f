"""`save`: a model as a directory that transformers opens, or in our own layout.

save(model, "out")                       # as the family that it came from, or that fits it
save(model, "out", family="marian")      # as this family, or an error that says why not
save(model, "out", family="allformer")   # our own names, for any config tree
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.leftovers import remove_leftovers
from allformer.checkpoint.load import GENERATION, read_config_of
from allformer.checkpoint.quantised import place_out
from allformer.checkpoint.quantization_config import FIELD, describe
from allformer.checkpoint.transfer import SHARD, own_map, own_state, save_weights
from allformer.config import Codec
from allformer.core.model import AnyModel
from allformer.core.quantised import is_quantised
from allformer.disk import sync
from allformer.errors import AllformerError, ConfigError
from allformer.families import FAMILIES
from allformer.families.config_json import write_config
from allformer.families.weights import Renamed, Same, WeightMap
from allformer.images.processor import FILE

OWN = "allformer"


def save(
    model: AnyModel,
    path: str | Path,
    *,
    family: str | None = None,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = SHARD,
) -> None:
    """Write config.json, weights and, where the model has them, its options for generating and the
    files that say how its images are prepared.

    The files of an older checkpoint there give way at the end: its weights, its certificate, and
    where it was another model its tokeniser too. A save that is interrupted leaves it as it was.
    `dtype` converts floating-point tensors on the way; otherwise they are written as they are.
    """
    directory = Path(path)
    if beside := getattr(model, "adapters", ()):
        raise ConfigError(
            f"adapters={list(beside)} act beside the weights and would be lost; compute them into "
            f"the weights first (tune.merge), or switch them off (tune.switch(model, None)) to "
            f"write the base"
        )
    files: dict[str, dict[str, Any]] = {}
    if family is None and isinstance(model.config, Codec):
        family = OWN  # no family of transformers' has those of images
    if family == OWN:
        raw = json.loads(model.config.to_json())
        ops = own_map(model)
    else:
        raw, known = write_config(model.config, model.provenance, family)
        ops = as_read(FAMILIES[known.family].weights(model.config, known.architecture), model)
        raw = {**raw, "dtype": _dtype_name(model, dtype)}
        if is_quantised(model):
            ops = place_out(model, ops)
            raw[FIELD] = describe(model, ops)
        raw.pop("torch_dtype", None)
        if not model.provenance.family and (said := FAMILIES[known.family].prepares(model.config)):
            files[FILE] = said
    files["config.json"] = raw
    generation = model.provenance.generation
    if generation is not None:
        told = generation if isinstance(generation, dict) else generation.to_dict()
        files[GENERATION] = told
    texts = {name: as_text(file) for name, file in files.items()} | model.provenance.images
    another = _is_another(directory, model)
    save_weights(
        model, ops, directory, max_shard_bytes=max_shard_bytes, dtype=dtype,
        aside=model.provenance.aside, beside=texts,
    )  # fmt: skip
    remove_leftovers(directory, texts, another=another)


def config_of(model: AnyModel) -> dict[str, Any]:
    """The config.json of a model in the words of the one it was loaded from; else in our own."""
    if model.provenance.family:
        raw, _ = write_config(model.config, model.provenance, model.provenance.family)
        return raw
    own: dict[str, Any] = json.loads(model.config.to_json())
    return own


def as_read(ops: WeightMap, model: AnyModel) -> WeightMap:
    """The map with the older names that the model's own file had, where those are kept."""
    older = [op for op in ops if isinstance(op, Renamed) and op.kept]
    names: dict[str, str] = {}
    for op in older:
        found = {re.sub(op.pattern, op.to, name): name for name in model.provenance.fates}
        names |= {new: name for new, name in found.items() if new != name}
    if not names:
        return ops
    return [
        replace(op, theirs=names.get(str(op.theirs), op.theirs)) if isinstance(op, Same) else op
        for op in ops
    ]


def _is_another(directory: Path, model: AnyModel) -> bool:
    """Whether the checkpoint that is there already is of a model of another shape."""
    path = directory / "config.json"
    try:
        return path.is_file() and read_config_of(path) != model.config
    except AllformerError:
        return False  # nothing is known of it


def as_text(raw: dict[str, Any]) -> str:
    """As transformers formats it, in ASCII."""
    return json.dumps(raw, indent=2, sort_keys=True) + "\n"


def write_json(path: Path, raw: dict[str, Any]) -> None:
    """In one step, and down to the disk: never half a file."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(as_text(raw))
        sync(file)
    temporary.replace(path)


def _dtype_name(model: AnyModel, dtype: torch.dtype | None) -> str:
    """What most of the weights are."""
    sizes: dict[torch.dtype, int] = {}
    for tensor in own_state(model).values():
        if tensor.is_floating_point():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel()
    most = dtype or max(sizes, key=lambda kind: sizes[kind])
    return str(most).removeprefix("torch.")
