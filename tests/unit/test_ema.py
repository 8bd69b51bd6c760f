"""The moving average of weights: its formula, its swap, and its state."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy

import pytest
import torch
from torch import nn

from allformer.core.model import build
from allformer.errors import CheckpointError, ConfigError
from allformer.train.ema import Ema
from tests.models import decoder_only


def move(model: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))


@pytest.mark.parametrize("warmup", [True, False])
def test_it_is_the_formula(warmup):
    model = nn.Linear(3, 4).double()
    ema = Ema(model, 0.5, warmup=warmup)
    expected = model.weight.detach().clone()
    for n in range(1, 12):
        move(model, n)
        decay = min(0.5, (1 + n) / (10 + n)) if warmup else 0.5
        expected = decay * expected + (1 - decay) * model.weight.detach()
        ema.update()
        torch.testing.assert_close(ema.average["weight"], expected, rtol=1e-14, atol=1e-14)
    assert ema.now == 0.5  # 12/21 is more


def test_swapped_shows_the_average_and_puts_the_weights_back_bit_for_bit():
    model = build(decoder_only(), seed=0)
    ema = Ema(model, 0.9)
    move(model, 0)
    ema.update()
    before = deepcopy(model.state_dict())
    places = [p.data_ptr() for p in model.parameters()]
    with suppress(KeyError), ema.swapped():  # also when what is done meanwhile fails
        assert all(torch.equal(p, ema.average[n]) for n, p in model.named_parameters())
        assert [p.data_ptr() for p in model.parameters()] == places  # an optimiser holds these
        raise KeyError
    assert all(torch.equal(x, before[n]) for n, x in model.state_dict().items())
    assert not any(torch.equal(p, ema.average[n]) for n, p in model.named_parameters())


def test_half_precision_is_averaged_in_fp32():
    model = nn.Linear(64, 64).bfloat16()
    ema = Ema(model, 0.999, warmup=False)
    start = ema.average["weight"].clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    for _ in range(100):
        ema.update()
    moved = (ema.average["weight"] - start) / (model.weight.float() - start)
    torch.testing.assert_close(moved, torch.full_like(moved, 1 - 0.999**100), rtol=1e-3, atol=0)
    with ema.swapped():
        assert torch.equal(model.weight, ema.average["weight"].bfloat16())


def test_a_restored_average_goes_on_the_same(tmp_path):
    model = build(decoder_only(), seed=0)
    ema = Ema(model, 0.99)
    for seed in range(3):
        move(model, seed)
        ema.update()
    torch.save(ema.state_dict(), tmp_path / "ema.pt")
    again = Ema(model, 0.99)
    again.load_state_dict(torch.load(tmp_path / "ema.pt", weights_only=True))
    for seed in range(3, 6):
        move(model, seed)
        ema.update()
        again.update()
    assert again.updates == 6
    assert all(torch.equal(x, again.average[n]) for n, x in ema.average.items())


def test_what_cannot_be_is_refused_in_words():
    with pytest.raises(ConfigError, match=r"ema decay=1\.0 must be .* below 1; try 0\.999"):
        Ema(nn.Linear(2, 3), 1.0)
    for other in (nn.Linear(2, 4), nn.Linear(2, 3, bias=False)):
        with pytest.raises(CheckpointError, match=r"of another model: (weight|bias) is missing or"):
            Ema(other).load_state_dict(Ema(nn.Linear(2, 3)).state_dict())
