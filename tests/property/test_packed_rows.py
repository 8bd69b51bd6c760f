"""Rows packed into one batch see nothing of each other: packed = separate, for every family."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import allformer as af
from allformer.config import EncoderDecoder, from_dict, to_dict
from allformer.core.inputs import Side
from allformer.core.layout import Grid
from allformer.families import FAMILIES, preset
from allformer.train.batch import Frame, lay_rows
from tests.loud import make_loud

LENGTHS = np.array([17, 1, 40, 8])
SMALL = {"dim": 24, "heads": 4, "vocab": 60, "times": 2, "buckets": 8, "max_distance": 20}
FIRST = [next(iter(family.presets)) for family in FAMILIES.values() if family.presets]
PRESETS = [*(name for name in FIRST  # images and sound have no rows
             if all(stack.source.vocab for stack in preset(name).stacks.values())),
           "original-base", "gpt3-small", "llama-3-8b", "t5-v1.1-small"]  # fmt: skip


def small(node: Any) -> Any:
    """The same tree in small sizes: every slot is as the family has it."""
    if isinstance(node, list):
        return [small(entry) for entry in node][:2]
    if not isinstance(node, dict):
        return node
    found = {name: small(x) for name, x in node.items()}
    found |= {name: x for name, x in SMALL.items() if name in found}
    kind = found.get("is")
    if kind == "Attention":
        found["kv_heads"] = None if found["kv_heads"] is None else 2
        found["head_dim"] = None if found["head_dim"] is None else 6
    if kind == "Feed" or (kind == "Tokens" and found["width"]):
        found["width"] = 40 if kind == "Feed" else 12
    if kind == "LSH":  # a chunk holds a whole row: beyond it, the width of the grid decides
        found |= {"buckets": None, "seed": 1}
    if kind == "Axial":
        found |= {"shape": [8, 8], "dims": [8, 16]}
    if kind == "Learned":
        found["length"] = 64
    if kind == "Window":
        found |= {name: 5 for name in ("left", "right") if found.get(name)}
    if "dropout" in found:
        found |= {name: 0.0 for name in found if name.endswith("dropout")}
    ids = {"pad_id": 1, "bos_id": 2, "eos_id": 3, "start_id": 3}
    return found | {name: i for name, i in ids.items() if found.get(name) is not None}


def sides(model: Any, ids: dict[str, np.ndarray], layout: Any) -> dict[str, Side]:
    return {name: Side(layout, {"input_ids": torch.from_numpy(x)}, None) for name, x in ids.items()}


@pytest.mark.parametrize("name", PRESETS)
def test_rows_packed_together_are_as_each_alone(name):
    tree = from_dict(small(to_dict(preset(name))), "model")
    model = make_loud(af.build(tree, seed=0)).double().eval()
    random = np.random.default_rng(0)
    frame = Frame(tokens=80, sentences=6, width=40)
    stacks = list(tree.stacks)
    both = [random.integers(5, 60, size=int(LENGTHS.sum())) for _ in stacks]
    laid = lay_rows(LENGTHS, frame)
    filled = {
        stack: np.append(x, np.full(len(laid.row) - len(x), 3))
        for stack, x in zip(stacks, both, strict=True)
    }
    with torch.no_grad():
        packed = model.hidden(sides(model, filled, laid.packed()))
        for row, length in enumerate(LENGTHS):
            own = slice(laid.starts[row], laid.starts[row] + length)
            alone = {stack: x[own][None] for stack, x in filled.items()}
            single = model.hidden(sides(model, alone, Grid(1, int(length))))
            for stack in stacks:
                torch.testing.assert_close(
                    packed[stack][own], single[stack][0], rtol=1e-9, atol=1e-10
                )
    assert isinstance(tree, EncoderDecoder) == (len(stacks) == 2)
