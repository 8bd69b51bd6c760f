"""What transformers calls its modules in memory, where its files call them otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers as hf

import allformer as af
from allformer.checkpoint.adapter.names import Names
from tests.parity.adapters import WIDE

IMAGES = {"image_size": 8, "patch_size": 4, "num_labels": 3}
KINDS: dict[str, tuple[Any, Any]] = {
    "vit": (hf.ViTForImageClassification, hf.ViTConfig),
    "bare vit": (hf.ViTModel, hf.ViTConfig),
    "deit": (hf.DeiTForImageClassification, hf.DeiTConfig),
    "dinov2": (hf.Dinov2ForImageClassification, hf.Dinov2Config),
    "dinov2 with registers": (
        hf.Dinov2WithRegistersForImageClassification, hf.Dinov2WithRegistersConfig,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_names_in_memory_are_transformers_own(kind: str, tmp_path: Path) -> None:
    made, settings = KINDS[kind]
    fields = {name: x for name, x in WIDE.items() if "dino" not in kind or "inter" not in name}
    theirs = made(settings(**IMAGES, **fields))
    theirs.save_pretrained(tmp_path)
    names = Names(af.load(tmp_path))
    assert names.tensors.keys() | names.others == {
        key for key in theirs.state_dict() if "mask_token" not in key
    } | {key for key in names.tensors if "mask_token" in key}
    modules = dict(theirs.named_modules())
    assert names.sites.keys() <= modules.keys()
    for name, site in names.sites.items():
        assert modules[name].in_features, (name, site)
