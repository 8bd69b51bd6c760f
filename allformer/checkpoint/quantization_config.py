"""What config.json says of a quantised model: compressed-tensors' `quantization_config`.

    raw, files = open_packed(raw, files)           # config.json without it, files of our bytes
    raw["quantization_config"] = describe(model, ops)

transformers (with the package compressed-tensors) reads what this writes. This reads what others
write in that layout, as far as it is whole numbers of four or eight bits, and weights alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from allformer.checkpoint.files import TensorFiles
from allformer.checkpoint.packed_files import PACKED, unpacked_files
from allformer.core.quantised import Quantised
from allformer.errors import CheckpointError
from allformer.families.kinds import short
from allformer.families.weights import Same, Stacked, WeightMap, names_of

FIELD, METHOD, FORMAT = "quantization_config", "compressed-tensors", "pack-quantized"
ORDER = ".weight_g_idx"  # which group each input belongs to
Scheme = tuple[int, int, bool]  # bits, inputs of a group (0: all), whether `least` is added


def open_packed(raw: Mapping[str, Any], files: TensorFiles) -> tuple[dict[str, Any], TensorFiles]:
    """A config.json without what it says of quantising, and the files with our bytes in them."""
    said = raw.get(FIELD)
    rest = {name: value for name, value in raw.items() if name != FIELD}
    if said is None:
        return rest, files
    _check(said)
    _check_order(files)
    return rest, unpacked_files(files)


def _check(said: Any) -> None:
    """Refuse what would change the numbers, or is stored in another way."""
    try:
        method, groups = said.get("quant_method"), list((said.get("config_groups") or {}).values())
        formats = {group.get("format") or said.get("format") for group in groups}
        odd = [
            f"{name}={group[name]}"
            for group in groups
            for name in ("input_activations", "output_activations")
            if group.get(name) is not None
        ]
        odd += [f"{x}={said[x]}" for x in ("kv_cache_scheme", "transform_config") if said.get(x)]
        odd += [f"type={g['weights']['type']}" for g in groups if g["weights"].get("type") != "int"]
    except (AttributeError, KeyError, TypeError):
        raise CheckpointError(
            f"config.json has {FIELD}={short(said)}, which cannot be read; download it again"
        ) from None
    if method != METHOD or formats != {FORMAT}:
        kinds = ", ".join(map(str, formats)) or "none"
        raise CheckpointError(
            f"config.json has {FIELD}={short(said)}, of quant_method={method!r} and format {kinds};"
            f" what is read is {METHOD} in {FORMAT}: else load the model that it was made from"
        )
    if odd:
        raise CheckpointError(
            f"config.json has {short(odd[0])} in {FIELD}: weights alone are read, and in whole "
            f"numbers; load the model that it was made from"
        )


def _check_order(files: TensorFiles) -> None:
    """Refuse inputs that belong to groups in another order than they stand in: left out like any
    other tensor that nobody knows, the scales would be those of other inputs."""
    moved = next((key for key in files if key.endswith(ORDER)), None)
    if moved is not None:
        raise CheckpointError(
            f"{files.where} has {moved}: its groups go by activation (actorder='group'), which is "
            f"not read; load the model that it was made from, or one with actorder='weight'"
        )


def describe(model: nn.Module, ops: WeightMap) -> dict[str, Any]:
    """config.json's `quantization_config`, from the map that the model is written by."""
    held: dict[Scheme, list[str]] = {}
    wide: list[str] = []
    for op in ops:
        if not isinstance(op, Same | Stacked):
            continue
        if op.ours.endswith(".packed"):
            layer = model.get_submodule(op.ours.removesuffix(".packed"))
            assert isinstance(layer, Quantised)
            group = 0 if layer.group == layer.inputs else layer.group
            stems = [name.removesuffix(f".{PACKED}") for name in names_of(op)]
            held.setdefault((layer.bits, group, layer.least is not None), []).extend(stems)
        else:
            wide += [name.removesuffix(".weight") for name in names_of(op)]
    each = zip(held, _targets(list(held.values()), wide), strict=True)
    groups = {f"group_{i}": _group(kind, targets) for i, (kind, targets) in enumerate(each)}
    return {
        "quant_method": METHOD,
        "format": FORMAT,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": [],
        "kv_cache_scheme": None,
    }


def _targets(lists: list[list[str]], wide: list[str]) -> list[list[str]]:
    """The layers of each scheme, by patterns for all their numbers where those tell them apart."""

    def pattern(name: str) -> str:
        return "re:^" + re.sub(r"\d+", r"\\d+", re.escape(name)) + "$"

    short = [sorted({pattern(name) for name in names}) for names in lists]
    all_short = [one for some in short for one in some]
    clash = len(all_short) != len(set(all_short)) or set(map(pattern, wide)) & set(all_short)
    return lists if clash else short


def _group(kind: Scheme, targets: list[str]) -> dict[str, Any]:
    bits, group, adds = kind
    return {
        "targets": targets,
        "weights": {
            "num_bits": bits,
            "type": "int",
            "symmetric": not adds,
            "strategy": "group" if group else "channel",
            "group_size": group or None,
            "dynamic": False,
        },
        "input_activations": None,
        "output_activations": None,
        "format": FORMAT,
    }
