"""Bottlenecks as the `adapters` library lays them out, both ways.

    adapter_config.json      {"config": {"mh_adapter": true, …}, "name": "tales", "version": …}
    pytorch_adapter.bin      bert.encoder.layer.0.output.adapters.tales.adapter_down.0.weight
    pytorch_model_head.bin   classifier.weight, where a head was trained beside it

Its `double_seq_bn` is our "houlsby", `seq_bn` "pfeiffer", `par_bn` "parallel": the last in
post-norm layers alone, as elsewhere it reads the residual before the norm, and ours what the layer
reads. A neck at cross-attention is there where `cross_adapter` says so; else it adds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from allformer.checkpoint.adapter.fields import Fields
from allformer.checkpoint.adapter.files import AdapterFiles
from allformer.checkpoint.adapter.form import Tensors, check_shape
from allformer.checkpoint.adapter.names import Names, covered
from allformer.checkpoint.adapter.whole import base_tensors, read_whole, write_whole
from allformer.errors import CheckpointError, ConfigError
from allformer.families.kinds import short
from allformer.tune.bottleneck import REDUCTION, SCALE, Bottleneck
from allformer.tune.targets import sites
from allformer.tune.tuning import must_be_tuned

HEAD_CONFIG, VERSION = "head_config.json", "adapters.1.3.0"
PARTS = {
    "down": "adapter_down.0.weight", "down_bias": "adapter_down.0.bias",
    "up": "adapter_up.weight", "up_bias": "adapter_up.bias",
}  # fmt: skip
# Where a family's layers hold them: by the last matrix of a sub-layer, as its files call it.
_BERT = ((r"(.*\.output)\.dense", r"\1.adapters"),)
_VIT = (
    (r"(.*)\.attention\.output\.dense", r"\1.attention_adapters.adapters"),
    (r"(.*\.output)\.dense", r"\1.output_adapters.adapters"),
)
PLACES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "bert": _BERT, "roberta": _BERT, "vit": _VIT,
    "gpt2": (
        (r"(.*)\.attn\.c_proj", r"\1.attention_adapters.adapters"),
        (r"(.*)\.mlp\.c_proj", r"\1.output_adapters.adapters"),
    ),
    "bart": (
        (r"(.*)\.self_attn\.out_proj", r"\1.attention_adapters.adapters"),
        (r"(.*)\.encoder_attn\.out_proj", r"\1.cross_attention_adapters.adapters"),
        (r"(.*)\.fc2", r"\1.output_adapters.adapters"),
    ),
}  # fmt: skip
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "houlsby": {"mh_adapter": True, "is_parallel": False, "original_ln_before": False},
    "pfeiffer": {"mh_adapter": False, "is_parallel": False, "original_ln_before": True},
    "parallel": {"mh_adapter": False, "is_parallel": True, "original_ln_before": False},
}
# What else it can say, and we only so.
USUAL: Mapping[str, Any] = {
    "output_adapter": True, "original_ln_after": True, "residual_before_ln": True,
    "ln_before": False, "ln_after": False, "use_gating": False, "inv_adapter": None,
    "phm_layer": False, "stochastic_depth": 0.0,
}  # fmt: skip
ACTS = {"swish": "silu", "leakyrelu": "leaky_relu", "gelu_new": "gelu_tanh"}  # else as ours


def is_library(raw: Mapping[str, Any]) -> bool:
    """Whether an adapter_config.json is the library's."""
    return isinstance(raw.get("config"), Mapping) and "peft_type" not in raw and "is" not in raw


def read_library(model: Any, files: AdapterFiles) -> tuple[Bottleneck, Tensors]:
    """The method, and its tensors by the paths of `adapter_state`."""
    names, said, tensors = Names(model), files.raw["config"], dict(files.tensors)
    form = _form(files, said, model)
    state, size = Tensors(), None
    dims = {name: stack.dim for name, stack in model.config.stacks.items()}
    for path, place in _places(model, names, form):
        stack, _, layer, where = _split(path)
        if layer in (said.get("leave_out") or ()):
            continue
        found = {ours: _take(tensors, names, f"{place}.{files.raw.get('name')}.{theirs}")
                 for ours, theirs in PARTS.items()}  # fmt: skip
        if where == "cross" and not said.get("cross_adapter"):
            size = size or _size(said, dims[stack])
            found = _nothing(size, dims[stack])
        lost = next((PARTS[ours] for ours, tensor in found.items() if tensor is None), None)
        if lost is not None:
            raise CheckpointError(
                f"{files.directory} has no {place}.{files.raw.get('name')}.{lost}: it is of "
                f"another model, or not whole; give the model that it was trained on"
            )
        size = size or len(found["down"])
        shapes = {"down": (size, dims[stack]), "down_bias": (size,), "up": (dims[stack], size),
                  "up_bias": (dims[stack],)}  # fmt: skip
        for ours, tensor in found.items():
            check_shape(Fields({}, files.file), f"{place}.{PARTS[ours]}", tensor, shapes[ours])
            state[f"{path}.{ours}"] = tensor
    own = read_whole(Fields({}, files.file), tensors, names, model)
    whole = tuple(covered(own.keys(), base_tensors(model)))
    beside = tuple(path for path in own if not any(path.startswith(f"{m}.") for m in whole))
    return _method(files, said, form, size, model, (*whole, *beside)), state | own


def write_library(model: Any, name: str) -> tuple[dict[str, Any], Tensors, Tensors]:
    """adapter_config.json, the adapter's tensors, and those of a head beside it."""
    adapter, names = must_be_tuned(model).adapters[name], Names(model)
    method = adapter.methods[0]
    if len(adapter.methods) != 1 or not isinstance(method, Bottleneck):
        raise CheckpointError(
            f'adapter {name!r} is no bottleneck alone, and layout="adapters" has words for those; '
            f"leave layout out"
        )
    state = dict(must_be_tuned(model).parameters_of(name))
    tensors = Tensors()
    for path, place in _places(model, names, method.form):
        for ours, theirs in PARTS.items():
            if f"{path}.{ours}" in state:
                tensors[f"{place}.{name}.{theirs}"] = state[f"{path}.{ours}"].detach()
    head = write_whole(adapter.own, names, model, ()).tensors
    odd = next((key for key in head if key.startswith(names.family.prefix)), None)
    if odd is not None:
        raise CheckpointError(
            f"{odd} is trained beside adapter {name!r}, and the `adapters` library keeps heads "
            f"alone; train it with whole=(), or leave layout out"
        )
    _check_parallel(method.form, model, f"adapter {name!r}")
    stacks = list(model.config.stacks.values())
    cross = any(block.cross is not None for stack in stacks for block in stack.blocks)
    said = {
        "model_type": names.family.name, "model_class": names.architecture, "name": name,
        "hidden_size": stacks[0].dim, "version": VERSION,
        "config": {
            **SHAPES[method.form], **USUAL, "architecture": None, "init_weights": "mam_adapter",
            "non_linearity": {ours: x for x, ours in ACTS.items()}.get(method.act, method.act),
            "reduction_factor": _reduction(method.size, stacks[0].dim),
            "scaling": float(SCALE.get(method.form, 1.0) if method.scale is None else method.scale),
            "dropout": method.dropout, "cross_adapter": cross and method.form == "houlsby",
            "leave_out": _left_out(method, len(stacks[0].blocks), len(stacks), name),
        },
    }  # fmt: skip
    return said, tensors, head


def _places(model: Any, names: Names, form: str) -> Iterator[tuple[str, str]]:
    """Of each neck: its path among an adapter's tensors, and the library's module for it."""
    rules = PLACES.get(names.family.name)
    if rules is None:
        raise CheckpointError(
            f"the `adapters` library's files are known here for {', '.join(PLACES)}, and this is "
            f'a model of {names.family.name}; leave layout out, or give layout="allformer"'
        )
    ends = {"attention.out": "attention", "cross.out": "cross", "feed.down": "feed"}
    for site in sites(model):
        where = next((w for end, w in ends.items() if site.ours.endswith(f".{end}")), None)
        if where is None or not site.theirs or (form != "houlsby" and where != "feed"):
            continue
        for pattern, to in rules:
            if re.fullmatch(pattern, site.theirs):
                block = site.ours.rsplit(".", 2)[0]
                yield f"{block}.delta.bottleneck.at.{where}", re.sub(pattern, to, site.theirs)
                break


def _split(path: str) -> tuple[str, str, int, str]:
    """`encoder.layers.3.delta.bottleneck.at.feed` → its stack, its layer and its sub-layer."""
    words = path.split(".")
    return words[0], words[1], int(words[2]), words[-1]


def _take(tensors: Tensors, names: Names, key: str) -> Any:
    prefix = names.family.prefix
    for tried in (key, key.removeprefix(prefix), prefix + key):
        if tried in tensors:
            return tensors.pop(tried)
    return None


def _nothing(size: int, dim: int) -> dict[str, Any]:
    """A neck that adds nothing."""
    return {"down": torch.zeros(size, dim), "down_bias": torch.zeros(size),
            "up": torch.zeros(dim, size), "up_bias": torch.zeros(dim)}  # fmt: skip


def _form(files: AdapterFiles, said: Mapping[str, Any], model: Any) -> str:
    if said.get("architecture") is not None:
        raise CheckpointError(
            f"{files.file} has architecture={short(said['architecture'])}; of the `adapters` "
            f"library's kinds bottlenecks are read here: let PEFT write the others"
        )
    for name, value in USUAL.items():
        if said.get(name, value) != value:
            raise CheckpointError(
                f"{files.file} has {name}={short(said[name])}, which no bottleneck here has: it "
                f"must be {value!r}"
            )
    for name in ("scaling", "dropout"):
        if not isinstance(said.get(name, 0.0), int | float):
            raise CheckpointError(
                f"{files.file} has {name}={short(said[name])}; here it must be a number"
            )
    given = {key: said.get(key, False) for key in SHAPES["houlsby"]}
    form = next((form for form, shape in SHAPES.items() if shape == given), None)
    if form is None:
        told = ", ".join(f"{key}={value}" for key, value in given.items())
        raise CheckpointError(
            f"{files.file} has {told}, which is none of double_seq_bn, seq_bn and par_bn"
        )
    _check_parallel(form, model, str(files.file))
    return form


def _check_parallel(form: str, model: Any, where: str) -> None:
    pre = any(b.norm_at != "post" for s in model.config.stacks.values() for b in s.blocks)
    if form == "parallel" and pre:
        raise CheckpointError(
            f"{where}: beside a pre-norm layer the `adapters` library reads the residual, and "
            f"Bottleneck('parallel') what the layer reads; they agree in post-norm models alone"
        )


def _size(said: Mapping[str, Any], dim: int) -> int:
    factor = said.get("reduction_factor", REDUCTION)
    return max(int(dim // factor), 1) if isinstance(factor, int | float) else dim // REDUCTION


def _method(
    files: AdapterFiles,
    said: Mapping[str, Any],
    form: str,
    size: int | None,
    model: Any,
    whole: tuple[str, ...],
) -> Bottleneck:
    act, left = str(said.get("non_linearity", "relu")).lower(), said.get("leave_out") or ()
    layers = None
    if left:
        if len(model.config.stacks) > 1:
            raise CheckpointError(
                f"{files.file} has leave_out={short(left)}, which counts through two stacks; "
                f"bottlenecks here have numbers of layers for both"
            )
        layers = tuple(i for i in range(len(model.config.reader.blocks)) if i not in left)
    try:
        return Bottleneck(
            form, size, ACTS.get(act, act), float(said.get("scaling", 1.0)),
            float(said.get("dropout", 0.0)), layers, whole=whole,
        )  # fmt: skip
    except (ConfigError, TypeError, ValueError) as error:
        raise CheckpointError(f"{files.file}: {error}") from None


def _reduction(size: int | None, dim: int) -> float:
    """What the width is divided by; the library rounds down."""
    size = size or max(dim // REDUCTION, 1)
    factor = dim / size
    return factor if int(dim // factor) == size else dim / (size + 0.5)


def _left_out(method: Bottleneck, layers: int, stacks: int, name: str) -> list[int]:
    if method.layers is None:
        return []
    if stacks > 1:
        raise CheckpointError(
            f"adapter {name!r} is in layers {method.layers} of both stacks, and leave_out counts "
            f"through them; leave layout out"
        )
    return [i for i in range(layers) if i not in method.layers]
