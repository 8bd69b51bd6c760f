"""Stochastic depth: in training a row loses what a sub-layer gives, with a probability."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import allformer as af
from allformer.config import Block, EncoderOnly, LearnedPlane, Norm, Patches, Stack, repeat
from allformer.core.model import Model
from allformer.errors import ConfigError
from allformer.families import preset
from allformer.families.config_json import write_config
from tests.models import MODERN, decoder_only

VIT = preset("vit-tiny")


def vit(drop_path: float, layers: int = 1, norm_at: str = "pre") -> Model:
    block: Block = replace(VIT.encoder.blocks[0], drop_path=drop_path, norm_at=norm_at)
    source = Patches(4, 3, (8, 8))
    stack = Stack(
        192, source, LearnedPlane((2, 2)), repeat(block, layers), final_norm=Norm(), dropout=0.0
    )
    return af.build(EncoderOnly(stack), seed=0).double()


def states(model: Model, rows: int = 64) -> Tensor:
    pixels = torch.ones(1, 3, 8, 8, dtype=torch.float64).expand(rows, -1, -1, -1)
    return model(pixel_values=pixels).last_hidden_state


@pytest.mark.parametrize("norm_at", ["pre", "post"])
def test_a_row_has_all_of_a_sub_layer_or_nothing_of_it(norm_at: str) -> None:
    check_rows(norm_at)


def check_rows(norm_at: str = "pre") -> None:
    """All rows are alike, so that one layer of two sub-layers can give four results."""
    model = vit(0.5, norm_at=norm_at).train()
    torch.manual_seed(0)
    found = states(model, 200)
    kinds = torch.unique(found.detach().flatten(1).mul(1e6).round(), dim=0)
    assert len(kinds) == 4
    whole = states(model.eval(), 2)
    # Rows of one product are not the same to the last bit on every processor.
    torch.testing.assert_close(whole[0], whole[1], rtol=0, atol=1e-12)


def test_what_is_kept_is_the_more_so_that_the_mean_stays() -> None:
    check_mean()


def check_mean() -> None:
    model = vit(0.25).train()
    layer = model.encoder.layers[0]
    x = torch.randn(1, 5, 192, dtype=torch.float64).expand(40_000, -1, -1)
    step = layer._thin(layer.steps(None)[1]._replace(work=lambda x: torch.ones_like(x[:, :, :1])))
    torch.manual_seed(0)
    given = step.work(x)
    assert set(given.unique().tolist()) == {0.0, 1 / 0.75}
    assert abs(given.mean().item() - 1) < 0.01
    assert (given == given[:, :1]).all(), "a whole row"


def test_nothing_is_dropped_in_use_and_none_is_as_without() -> None:
    check_use()


def check_use() -> None:
    plain, thin = vit(0.0, 2), vit(0.9, 2)
    assert torch.equal(states(plain.eval()), states(thin.eval()))
    assert torch.equal(states(plain.train()), states(plain.eval()))


def test_recomputed_layers_drop_the_same_paths() -> None:
    grads = []
    for mode in (None, "layers"):
        model = vit(0.5, 3).train()
        model.recompute(mode)
        torch.manual_seed(3)
        states(model, 8).square().sum().backward()
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_a_compiled_layer_drops_paths_too() -> None:
    model = vit(0.5).train()
    run = torch.compile(lambda x: model(pixel_values=x).last_hidden_state, backend="eager")
    torch.manual_seed(0)
    pixels = torch.ones(1, 3, 8, 8, dtype=torch.float64).expand(32, -1, -1, -1)
    assert len(torch.unique(run(pixels).detach().flatten(1).mul(1e6).round(), dim=0)) == 4


def test_rows_that_are_packed_cannot_be_told_apart() -> None:
    model = af.build(decoder_only(replace(MODERN, drop_path=0.5))).train()
    ids, mask = torch.arange(12).view(2, 6) + 4, torch.ones(2, 6)
    mask[0, 4:] = 0
    with pytest.raises(ConfigError, match=r"Block\.drop_path=0\.5 leaves out whole rows"):
        model(input_ids=ids, attention_mask=mask)


def test_a_family_writes_the_model_without_it() -> None:
    blocks = tuple(replace(b, drop_path=0.01 * i) for i, b in enumerate(VIT.encoder.blocks))
    tree = replace(VIT, encoder=replace(VIT.encoder, blocks=blocks))
    assert write_config(tree, family="vit")[0] == write_config(VIT, family="vit")[0]
