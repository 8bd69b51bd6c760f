"""CLIP from OpenAI's and OpenCLIP's own files: a state dict, or a directory of OpenCLIP's.

    model = read_openai_clip("ViT-B-32.safetensors")    # names such as visual.conv1.weight
    model = read_openai_clip("open_clip/directory")     # open_clip_config.json and its weights
    af.save(model, "out")                               # as transformers' CLIPModel

OpenAI's published `.pt` files are TorchScript, which is code: `torch.jit.load(…).state_dict()`
where they are trusted, saved with `torch.save` or safetensors, is what can be read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.files import TensorFiles, open_tensors
from allformer.checkpoint.transfer import load_weights
from allformer.core.model import AnyModel, build
from allformer.errors import CheckpointError
from allformer.families.clip_openai import fields_of, weights
from allformer.families.config_json import read_config
from allformer.json_file import read_object

CONFIG = "open_clip_config.json"
FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors",
         "open_clip_pytorch_model.bin")  # fmt: skip
# What OpenCLIP can say and the tree here is not asked to: each must be as it usually is.
PLAIN: dict[str, dict[str, Any]] = {
    "text_cfg": {
        "embed_cls": False, "no_causal_mask": False, "pool_type": "argmax", "proj_bias": False,
        "proj_type": "linear", "ls_init_value": None, "final_ln_after_pool": False,
        "hf_model_name": None, "act_kwargs": None, "norm_kwargs": None,
    },
    "vision_cfg": {
        "ls_init_value": None, "attentional_pool": False, "no_ln_pre": False,
        "pos_embed_type": "learnable", "final_ln_after_pool": False, "pool_type": "tok",
        "timm_model_name": None, "act_kwargs": None, "norm_kwargs": None,
    },
}  # fmt: skip


def read_openai_clip(
    path: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> AnyModel:
    """The model of such a file or directory, in eval mode; saving it gives transformers' files."""
    path, told = Path(path), None
    if path.is_dir():
        told = _model_cfg(path / CONFIG)
        path = next((path / name for name in FILES if (path / name).is_file()), path)
    files: TensorFiles = open_tensors(path)
    try:
        raw = fields_of({name: tuple(stored.shape) for name, stored in files.items()}, told)
    except (CheckpointError, KeyError, ValueError) as error:
        fault = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"{files.where} is not read as OpenAI's CLIP: {fault}") from None
    tree, known = read_config(raw)
    model = build(tree, device="meta")
    model.provenance = known
    loaded = load_weights(model, weights(tree), files, device=device, dtype=dtype)
    model.provenance.fates = loaded.fates
    return model.eval()


def is_open_clip(directory: Path) -> bool:
    """Whether a directory has OpenCLIP's config, and not transformers' too."""
    return (directory / CONFIG).is_file() and not (directory / "config.json").is_file()


def _model_cfg(file: Path) -> dict[str, Any]:
    """What an open_clip_config.json says of the model; what is not usual is refused by name."""
    told = read_object(file, CheckpointError).get("model_cfg")
    if not isinstance(told, dict):
        raise CheckpointError(f"{file} has no model_cfg; use the one that lay beside the weights")
    for part, plain in PLAIN.items():
        said = told.get(part) or {}
        for name, value in plain.items():
            if said.get(name, value) != value:
                raise CheckpointError(
                    f"{file} has {part}.{name}={said[name]!r}, which is not supported "
                    f"(supported: {value!r}); use transformers' files of the model, if there are"
                )
    return told
