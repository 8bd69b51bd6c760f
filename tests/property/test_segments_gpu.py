"""Transformer-XL on a GPU: fused training with a memory, captured steps, generation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from allformer.core.model import build
from allformer.train.batch import moved
from allformer.train.objectives.memory import MemoryLM
from allformer.train.optim import AdamW
from allformer.train.step import Stepper, StepSettings
from tests.property.test_segments import ids, tree
from tests.unit.test_memory_lm import opened, recipe
from tests.unit.test_memory_lm import tree as small

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def gap(mine: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((mine.cpu().double() - wanted).norm() / wanted.norm().clamp_min(1e-9))


def wide(model: Any) -> Any:
    """With heads of 64, which torch has kernels for."""
    block = model.decoder.blocks[0]
    block = replace(block, attention=replace(block.attention, head_dim=64))
    return replace(model, decoder=replace(model.decoder, blocks=(block,) * 2))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("norm_at", ["pre", "post"])
def test_states_and_gradients_over_segments_are_those_of_fp64(norm_at, dtype):
    """In half precision by the fused kernels."""
    config = wide(tree(norm_at, memory=16))
    exact: Any = build(config, seed=0).double()
    model: Any = build(config, seed=0).cuda()
    totals = []
    for each, kind in ((exact, None), (model, dtype)):
        mems, total = None, 0.0
        for part in ids(48).split(16, dim=1):
            out = each(input_ids=part.to(each.device), mems=mems, dtype=kind)
            mems, total = out.mems, total + out.last_hidden_state.double().square().mean()
            total = total + out.last_hidden_state[..., 0].double().mean()
        totals.append(total)
    close = 1e-4 if dtype is None else 0.05
    assert float((totals[1].cpu() - totals[0]).abs()) < close * float(totals[0].abs())
    hers = torch.autograd.grad(totals[0], list(exact.parameters()))
    mine = torch.autograd.grad(totals[1], list(model.parameters()))
    for (name, _), a, b in zip(model.named_parameters(), mine, hers, strict=True):
        assert a.isfinite().all(), name
        if b.norm() > 1e-2:
            assert gap(a, b) < 5 * close, name


@pytest.mark.parametrize("kind", ["stream", "documents"])
def test_a_captured_step_carries_the_memory_as_a_plain_one(kind):
    """Steps as one CUDA graph, which writes the memory where it reads it."""
    losses = []
    for compile in (False, True):
        objective: MemoryLM = opened(recipe(kind, small()))
        model: Any = build(objective.config(objective.vocabulary), seed=0).cuda().train()
        asked = StepSettings(AdamW(), 0.0, precision="bf16", compile=compile)
        stepper = Stepper(model, objective, asked)
        examples = objective.examples(0)
        found = []
        for index in objective.order(examples)[:10]:
            batch = objective.collate(examples, index)
            found.append(stepper([moved(batch, "cuda")], 1e-3).loss.item())
        losses.append(found)
        assert objective.state()["real"].any()
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_stepping_with_kept_keys_is_reading_at_once():
    model: Any = build(tree(memory=64), seed=0).cuda().eval()
    text = ids(40).cuda()
    cache = model.new_cache()
    with torch.no_grad():
        whole = model(input_ids=text).logits
        steps = [model.step(part, cache) for part in text.split(1, dim=1)]
    torch.testing.assert_close(torch.stack(steps, 1), whole, rtol=1e-3, atol=1e-3)
