"""Weight maps of a layer name exactly the tensors that it has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allformer.config import Attention
from allformer.core.block import Block
from allformer.families.fairseq_map import LAYER
from allformer.families.layer_map import layer
from tests.models import PAPER


@pytest.mark.parametrize("bias", [True, False, ("q", "k", "v"), ("q", "v", "out"), ("k",)])
def test_projections_have_a_bias_in_the_file_where_they_have_one_in_the_model(bias):
    attention = Attention(4, kv_heads=2, bias=bias)
    block = replace(PAPER, attention=attention, cross=attention)
    built = dict(Block(block, 24, "x").named_parameters(prefix="x"))
    ops = layer("x", "y", block, 24, LAYER)
    assert {op.ours for op in ops} == set(built)
    rows = {part.theirs: part.shape[0] for op in ops for part in op.parts(built[op.ours])}
    for name, size in (("q", 24), ("k", 12), ("v", 12), ("out", 24)):
        for side in ("self_attn", "encoder_attn"):
            stored = rows.get(f"y.{side}.{name}_proj.bias")
            assert stored == (size if attention.biased(name) else None)
