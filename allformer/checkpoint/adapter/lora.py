"""LoRA, rank-stabilised LoRA and DoRA in PEFT's files.

    {module}.lora_A.weight  r K,  {module}.lora_B.weight  N r,  {module}.lora_magnitude_vector  N

A matrix that transformers holds whole and we change in parts (GPT-2's c_attn) is written with the
A's one below the other and the B's on the diagonal: the same product. One that we change whole and
transformers holds in parts is written with A for each of them and its rows of B.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from allformer.checkpoint.adapter.fields import Fields
from allformer.checkpoint.adapter.form import (
    Form,
    NotPeft,
    Said,
    Tensors,
    Written,
    changes,
    check_shape,
    ends,
    targets_of,
    unknown_module,
)
from allformer.checkpoint.adapter.names import Names
from allformer.errors import CheckpointError
from allformer.families.kinds import CHOICE, FLAG, NUMBER, OBJECT, SIZE, short
from allformer.tune.deltas import dense
from allformer.tune.lora import Lora, LoraChange
from allformer.tune.targets import WHOLE, Site, rows_of, sites, sizes

KEY = re.compile(r"(.+)\.lora_(A|B|magnitude_vector|embedding_A|embedding_B)(\.weight|\.bias)?")
# How fresh weights start says nothing of trained ones, unless it has changed the base as well.
STARTS = (True, False, "gaussian", "eva", "orthogonal")


@dataclass
class Found:
    """One module's tensors in a file."""

    module: str
    site: Site
    a: Tensor
    b: Tensor
    length: Tensor | None

    @property
    def rank(self) -> int:
        return self.a.shape[0]


class LoraForm(Form):
    """`peft_type: LORA`."""

    kind, method, biases = "LORA", Lora, True

    def read(self, fields: Fields, tensors: Tensors, names: Names, model: Any) -> Said:
        """The keys say which modules; the fields, what their products are multiplied by."""
        rank, alpha = fields.take("r", 8, SIZE), fields.take("lora_alpha", 8, NUMBER)
        ranks = fields.take("rank_pattern", {}, OBJECT)
        alphas = fields.take("alpha_pattern", {}, OBJECT)
        lora = Lora(
            rank=rank,
            alpha=float(alpha),
            dropout=float(fields.take("lora_dropout", 0.0, NUMBER)),
            stabilised=fields.take("use_rslora", False, FLAG),
            dora=fields.take("use_dora", False, FLAG),
        )
        _check_others(fields)
        found = _collect(fields, tensors, names, model, lora.dora)
        for one in found:
            said = _matching(ranks, one.module, rank)
            if said != one.rank:
                raise CheckpointError(
                    f"{fields.file.parent}: {one.module}.lora_A has rank {one.rank}, but "
                    f"{fields.file.name} says {short(said)}: the two files are of two adapters"
                )
        chosen = [one.site for one in found]
        targets, layers = targets_of(model, chosen)
        of_site = {one.site: _matching(alphas, one.module, alpha) for one in found}
        lora = replace(
            lora,
            targets=targets,
            layers=layers,
            ranks=_by_name({one.site: one.rank for one in found}, rank, model),
            alphas=_by_name({site: float(x) for site, x in of_site.items()}, float(alpha), model),
        )
        state: Tensors = {}
        for one in found:
            where = f"{one.site.path}.delta.lora.parts.{one.site.part or WHOLE}"
            state |= {f"{where}.a": one.a, f"{where}.b": one.b}
            if one.length is not None:
                state[f"{where}.length"] = one.length
        return Said(lora, state)

    def write(self, method: Lora, adapter: str, names: Names, model: Any) -> Written:
        """Module by module of theirs."""
        tensors: Tensors = {}
        ranks: dict[str, int] = {}
        alphas: dict[str, float] = {}
        for path, change in changes(model, adapter, "lora").items():
            assert isinstance(change, LoraChange)
            layer = model.get_submodule(path)
            matrices = {m: rows_of(layer, s.part) for m, s in names.sites.items() if s.path == path}
            _check_all_there(path, change, matrices)
            for module, rows in matrices.items():
                mine = _share(change, layer, rows)
                if mine is not None:
                    scale, ranks[module] = mine.pop("scale").item(), len(mine["A.weight"])
                    root = math.sqrt(ranks[module]) if method.stabilised else ranks[module]
                    alphas[module] = float(f"{scale * root:.12g}")
                    tensors |= {f"{module}.lora_{name}": x for name, x in mine.items()}
        modules = list(ranks)
        rank, rank_pattern = _usual(ranks, method.rank, names)
        alpha, alpha_pattern = _usual(alphas, method.alpha, names)
        written = {
            "r": rank,
            "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
            "lora_dropout": method.dropout,
            "target_modules": names.shortest(modules),
            "rank_pattern": rank_pattern,
            "alpha_pattern": alpha_pattern,
            "use_rslora": method.stabilised,
            "use_dora": method.dora,
            "fan_in_fan_out": any(module in names.transposed for module in modules),
            "init_lora_weights": True,
        }
        return Written(written, tensors, modules)


def _check_others(fields: Fields) -> None:
    """What the keys say already, what matters in training alone, and what we cannot do."""
    fields.inert(
        "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern",
        "fan_in_fan_out", "megatron_core", "loftq_config", "qalora_group_size", "eva_config",
        "ensure_weight_tying", "runtime_config", "bias",
    )  # fmt: skip
    merge = "merge it with PEFT (merge_and_unload)"
    fields.among("layer_replication", (), merge)  # its keys name layers that the base has not
    start = fields.take("init_lora_weights", True, CHOICE)
    if start not in STARTS:
        raise CheckpointError(
            f"{fields.file} has init_lora_weights={start!r}, which changes the base's weights too; "
            f"write it with PEFT as plain LoRA (path_initial_model_for_weight_conversion)"
        )


def _collect(fields: Fields, tensors: Tensors, names: Names, model: Any, dora: bool) -> list[Found]:
    """The tensors of each module, taken out of `tensors`, their shapes checked."""
    by_module: dict[str, Tensors] = {}
    for key in list(tensors):
        if match := KEY.fullmatch(key):
            if match[2].startswith("embedding") or match[3] == ".bias":
                raise CheckpointError(
                    f"{fields.file.parent} has {key}: LoRA on embeddings, or with a bias of its "
                    f"own, is not supported; merge it with PEFT (merge_and_unload)"
                )
            by_module.setdefault(match[1], {})[match[2]] = tensors.pop(key)
    if not by_module:
        raise CheckpointError(f"{fields.file.parent} has no lora_A: it changes nothing")
    found, wanted = list[Found](), {"A", "B"} | ({"magnitude_vector"} if dora else set())
    unknown = [module for module in by_module if names.site(module) is None]
    if unknown:
        raise unknown_module(fields, unknown[0], names, len(unknown))
    for module, mine in by_module.items():
        site = names.site(module)
        assert site is not None
        if set(mine) != wanted:
            raise CheckpointError(
                f"{fields.file.parent}: {module} has lora_{', lora_'.join(sorted(mine))}, not "
                f"lora_{', lora_'.join(sorted(wanted))}; use_dora={dora} needs these"
            )
        layer, rank = model.get_submodule(site.path), mine["A"].shape[0]
        rows, inputs = rows_of(layer, site.part), sizes(layer)[0]
        outputs = rows.stop - rows.start
        check_shape(fields, f"{module}.lora_A", mine["A"], (rank, inputs))
        check_shape(fields, f"{module}.lora_B", mine["B"], (outputs, rank))
        length = mine.get("magnitude_vector")
        if length is not None:
            length = length.reshape(-1)
            check_shape(fields, f"{module}.lora_magnitude_vector", length, (outputs,))
        found.append(Found(names.now(module), site, mine["A"], mine["B"], length))
    return found


def _matching(patterns: Mapping[str, Any], module: str, usual: Any) -> Any:
    """The value of the pattern that a module's name ends with, as PEFT looks it up."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return usual


def _by_name(values: Mapping[Site, Any], usual: Any, model: Any) -> dict[str, Any]:
    """Those that are not usual, by our names of the sites."""
    out: dict[str, Any] = {}
    every = sites(model)
    for value in dict.fromkeys(values.values()):
        if value != usual:
            some = [site for site, x in values.items() if x == value]
            among = [site for site in every if site in values]
            out |= dict.fromkeys(ends(some, among), value)
    return out


def _usual(values: Mapping[str, Any], asked: Any, names: Names) -> tuple[Any, dict[str, Any]]:
    """The value that was asked for, else the commonest; the others by the ends of names."""
    kinds = list(dict.fromkeys(values.values()))
    usual = max(kinds, key=lambda kind: (kind == asked, list(values.values()).count(kind)))
    pattern: dict[str, Any] = {}
    for kind in kinds:
        if kind != usual:
            some = [module for module, value in values.items() if value == kind]
            pattern |= dict.fromkeys(names.shortest(some), kind)
    return usual, pattern


def _check_all_there(path: str, change: LoraChange, matrices: Mapping[str, slice]) -> None:
    """Every row that we change must be in a matrix of theirs."""
    theirs = {row for rows in matrices.values() for row in range(rows.start, rows.stop)}
    for name, rows in change.rows.items():
        if not theirs >= set(range(rows.start, rows.stop)):
            raise NotPeft(f"{path} ({name}) is no module of transformers'")


def _share(change: LoraChange, layer: Any, rows: slice) -> Tensors | None:
    """A, B and lengths of some rows of a layer; None where nothing of them is changed.

    All products have the scale of the first; what others have beyond it goes into their B.
    """
    some: list[tuple[Any, int, int, int]] = []
    for name, place in change.rows.items():
        low, high = max(place.start, rows.start), min(place.stop, rows.stop)
        if low < high:
            some.append((change.pairs[name], low, high, place.start))
    if not some:
        return None
    scale = some[0][0].scale
    downs = [pair.a.detach() for pair, *_ in some]
    up = downs[0].new_zeros(rows.stop - rows.start, sum(len(a) for a in downs))
    column = 0
    for pair, low, high, start in some:
        width = pair.b.shape[1]
        mine = pair.b.detach()[low - start : high - start] * (pair.scale / scale)
        up[low - rows.start : high - rows.start, column : column + width] = mine
        column += width
    out = {"scale": torch.tensor(scale, dtype=torch.float64), "B.weight": up}
    out["A.weight"] = torch.cat(downs)
    if change.dora:
        length = dense(layer, up.dtype, rows).norm(dim=1)
        for pair, low, high, start in some:
            length[low - rows.start : high - rows.start] = pair.length.detach()[
                low - start : high - start
            ]
        out["magnitude_vector"] = length
    return out
