"""A loaded model goes through `pickle` and `torch.save` whole, whatever its family."""

from __future__ import annotations

import io
import pickle

import pytest
import torch

import allformer as af
from allformer.config import EncoderDecoder
from allformer.core.feed_forward import ACT
from tests.tiny import MAKERS, checkpoint  # noqa: F401

NAMES = {name: f"{name}-mlm" for name in ("bert", "roberta", "longformer")}


@pytest.mark.parametrize("family", MAKERS)
def test_a_loaded_model_comes_back_from_a_pickle(checkpoint, family):  # noqa: F811
    model = af.load(checkpoint(NAMES.get(family, family)))
    assert model.provenance.fates
    again = pickle.loads(pickle.dumps(model))
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    ids = torch.arange(10, 19)[None]
    inputs = {"input_ids": ids}
    if isinstance(model.config, EncoderDecoder):
        inputs["decoder_input_ids"] = ids[:, :5]
    wanted = model(**inputs).logits
    for other in (again, torch.load(stream, weights_only=False)):
        assert torch.equal(other(**inputs).logits, wanted)
        assert other.provenance == model.provenance
        assert other.config == model.config


@pytest.mark.parametrize("name", ACT)
def test_every_activation_has_a_name(name):
    assert pickle.loads(pickle.dumps(ACT[name])) is ACT[name]
