"""Adapters of PEFT's: we open what it wrote, it opens what we write, and both train alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import allformer as af
from allformer import tune
from tests.parity import adapters
from tests.parity.adapters import BASES, alike, base, peft_model, peft_opens, trains_alike

peft = pytest.importorskip("peft")


def lora(name: str, **more: Any) -> Any:
    """LoRA on what a base has for it."""
    known = BASES[name]
    fields = {"r": 3, "lora_alpha": 7, "target_modules": list(known.lora), "task_type": known.task}
    return peft.LoraConfig(**{**fields, **more})


def both_ways(name: str, config: Any, folder: Path) -> Any:
    """PEFT's file opened by us says the same; ours opened by PEFT too, and by us again."""
    theirs, inputs = peft_model(name, config), BASES[name].inputs()
    theirs.save_pretrained(folder / "theirs")
    ours = af.load(folder / "theirs", base=base(name)[1])
    alike(ours, theirs, inputs)
    assert af.save_adapter(ours, folder / "ours") == "peft"
    alike(ours, peft_opens(name, folder / "ours"), inputs)
    alike(af.load(folder / "ours"), theirs, inputs)
    return ours


@pytest.mark.parametrize("name", BASES)
def test_lora_goes_both_ways(name: str, tmp_path: Path) -> None:
    both_ways(name, lora(name), tmp_path)


@pytest.mark.parametrize("name", BASES)
def test_lora_trains_alike(name: str, tmp_path: Path) -> None:
    trains_alike(name, peft_model(name, lora(name)), tmp_path)
