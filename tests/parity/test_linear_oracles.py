"""Random features and low rank against what other implementations computed (`make_linear.py`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from allformer.config import Attention, Features, LowRank
from allformer.core.layout import Grid
from allformer.core.mixers.mixer import Scene
from allformer.core.registry import module_for

RECORD = json.loads(Path(__file__).with_name("linear.json").read_text(encoding="utf-8"))


def recorded(name):
    return {key: torch.tensor(x, dtype=torch.float64) for key, x in RECORD[name].items()}


def mixed(mixer, causal, parts):
    """The context of projections B T n, on the grid that they come on."""
    grid = Grid(*parts["q"].shape[:2])
    scene = Scene(grid, grid, torch.device("cpu"), torch.float64, causal)
    return mixer(parts, mixer.plan(scene), None, None)


@pytest.mark.parametrize("way", ["whole", "causal"])
def test_favor_is_performer_pytorch_without_its_epsilon(way):
    known = recorded("performer")
    mixer = Attention(2, head_dim=4, mixer=Features("favor", 6))
    mixer = module_for(mixer.mixer)(mixer, 8, "x").double()
    mixer.draws.copy_(known["draws"])
    parts = {name: known[name].transpose(1, 2).flatten(-2) for name in "qkv"}
    found = mixed(mixer, way == "causal", parts)
    wanted = known[way].transpose(1, 2).flatten(-2)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)


def test_low_rank_is_linformer_on_a_shorter_row():
    known = recorded("linformer")
    attention = Attention(2, head_dim=4, mixer=LowRank(3, 7, "heads"))
    mixer = module_for(attention.mixer)(attention, 8, "x").double()
    with torch.no_grad():
        mixer.along.keys[0], mixer.along.values[0] = known["keys"], known["values"]
    found = mixed(mixer, False, {name: known[name] for name in "qkv"})
    torch.testing.assert_close(found, known["context"], rtol=1e-8, atol=1e-8)
