"""Tasks open an adapter like a checkpoint: what it has not lies with its base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import allformer as af
from allformer import tune
from tests import seeing, tiny


def lora_of(base: Path, out: Path) -> Any:
    """A loud LoRA of a checkpoint."""
    model = af.load(base)
    tune.apply(model, tune.Lora(rank=2), seed=0)
    make = torch.Generator().manual_seed(1)
    for tensor in tune.adapter_state(model).values():
        tensor += 0.3 * torch.randn(tensor.shape, generator=make)
    af.save_adapter(model, out)
    return model


@pytest.mark.parametrize("files", ["as we leave it", "as PEFT leaves it"])
def test_texts_are_classified_with_an_adapter(files: str, tmp_path: Path) -> None:
    base = tiny.make(tmp_path / "base", "bert-class")
    lora_of(base, tmp_path / "lora")
    if files == "as PEFT leaves it":
        (tmp_path / "lora" / "config.json").unlink()
    text = "The capital of France is Paris."
    plain, changed = (af.classify(path, text).score for path in (base, tmp_path / "lora"))
    assert plain != changed


def test_images_are_classified_with_an_adapter(tmp_path: Path) -> None:
    base = seeing.vit(tmp_path / "base")
    lora_of(base, tmp_path / "lora")
    (tmp_path / "lora" / "config.json").unlink()
    (tmp_path / "pictures").mkdir()
    picture = seeing.pictures(tmp_path / "pictures", 1)[0]
    plain, changed = (af.classify_image(path, picture) for path in (base, tmp_path / "lora"))
    assert plain != changed
