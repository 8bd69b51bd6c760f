"""Random features are drawn anew in training, and a run's result has one of the draws."""

from __future__ import annotations

import pytest
import torch

import allformer as af
from allformer.config import to_dict
from allformer.core.mixers.features import redraw
from allformer.errors import ConfigError
from allformer.train.loop import train
from allformer.train.recipe import make_recipe
from tests.models import SPREAD
from tests.unit.test_causal_lm import recipe, texts


def asked(**settings):
    plain = recipe(steps=6, save_every=2, average=3, **settings).plain()
    return make_recipe({**plain, "model": to_dict(SPREAD["random features"])})


def draws(model):
    return torch.stack([layer.attention.mixer.draws for layer in model.decoder.layers])


def test_a_run_draws_anew_and_ends_with_a_draw_not_a_mean_of_draws(tmp_path):
    train(asked(redraw=2), tmp_path / "run", device="cpu", corpus=texts())
    model = af.load(tmp_path / "run")
    fresh = af.build(model.config, seed=0)
    assert not torch.equal(draws(model), draws(fresh))
    redraw(fresh, seed=3)  # after 6 steps
    assert torch.equal(draws(model), draws(fresh))


def test_without_it_the_draw_stays(tmp_path):
    train(asked(), tmp_path / "run", device="cpu", corpus=texts())
    model = af.load(tmp_path / "run")
    assert torch.equal(draws(model), draws(af.build(model.config, seed=0)))


def test_a_model_without_random_features_refuses_it(tmp_path):
    with pytest.raises(ConfigError, match=r"train.redraw=5 is for random features, and this model"):
        train(recipe(steps=6, redraw=5), tmp_path / "run", device="cpu", corpus=texts())
