"""R-Drop: two readings of one sentence, their likelihood and their agreement."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from allformer.core.loss import IGNORE
from allformer.core.model import build
from allformer.errors import ConfigError
from allformer.train.batch import Frame
from allformer.train.objectives import rdrop
from allformer.train.objectives.rdrop import RDrop, agreement
from allformer.train.objectives.seq2seq import Seq2Seq
from allformer.train.recipe import Vocabulary, make_recipe
from tests.loud import make_loud
from tests.models import KINDS
from tests.unit.test_step import PAIRS

RECIPE = make_recipe({"objective": {"is": "seq2seq-rdrop", "alpha": 3.0}})
INDEX = np.array([0, 3, 5])


def model():
    return make_loud(build(KINDS["seq2seq paper"], seed=0).double(), seed=1).train()


def test_the_loss_is_the_papers_formula():
    torch.manual_seed(0)
    one, other = torch.randn(2, 7, 5, dtype=torch.float64).unbind()
    labels = torch.tensor([1, 4, IGNORE, 0, 2, 3, IGNORE])
    loss, nll = agreement(lambda x: x, one, other, labels, 0.1, 3.0)
    want = 0.0
    for a, b, y in zip(one, other, labels, strict=True):
        if y == IGNORE:
            continue
        p, q = a.log_softmax(-1), b.log_softmax(-1)
        both = F.kl_div(q, p, log_target=True, reduction="sum")
        both = both + F.kl_div(p, q, log_target=True, reduction="sum")
        for logits in (a, b):
            want = want + F.cross_entropy(logits[None], y[None], label_smoothing=0.1)
        want = want + 3.0 / 2 * both
    torch.testing.assert_close(loss, want, rtol=1e-12, atol=0)
    plain = sum(
        F.cross_entropy(x, labels, ignore_index=IGNORE, reduction="sum") for x in (one, other)
    )
    torch.testing.assert_close(nll, plain, rtol=1e-12, atol=0)


def test_twins_are_the_same_token_of_the_same_sentence():
    for frame in (None, Frame(tokens=96, sentences=5, width=12)):
        batch = RDrop(RECIPE).collate(PAIRS, INDEX, frame)
        labels = batch.labels
        real = labels[batch.first] != IGNORE
        assert torch.equal(labels[batch.first], labels[batch.second])
        assert torch.equal(batch.target[batch.first][real], batch.target[batch.second][real])
        assert (batch.first[real] != batch.second[real]).all()
        counted = torch.cat([batch.first[real], batch.second[real]])
        assert sorted(counted.tolist()) == (labels != IGNORE).nonzero().flatten().tolist()
        assert batch.tokens == int((labels != IGNORE).sum())


@pytest.mark.parametrize("frame", [None, Frame(tokens=96, sentences=5, width=12)])
def test_without_dropout_both_agree_and_the_loss_is_twice_the_plain_one(frame):
    made = model()
    for module in made.modules():  # what differs is dropout alone
        module.training = False
    made.training = True
    plain = Seq2Seq().loss(made, Seq2Seq().collate(PAIRS, INDEX), smoothing=0.1)
    twice = RDrop(RECIPE).loss(made, RDrop(RECIPE).collate(PAIRS, INDEX, frame), smoothing=0.1)
    for a, b in zip(plain, twice, strict=True):
        torch.testing.assert_close(2 * a, b, rtol=1e-10, atol=0)


def test_chunks_of_the_loss_are_the_whole(monkeypatch):
    made, objective = model(), RDrop(RECIPE)
    found = []
    for largest in (2**27, 500):
        monkeypatch.setattr(rdrop, "_LARGEST", largest)
        made.zero_grad()
        torch.manual_seed(3)
        loss, nll = objective.loss(made, objective.collate(PAIRS, INDEX), smoothing=0.1)
        loss.backward()
        gradient = made.encoder.source.embedding.weight.grad.clone()
        found.append((loss.detach(), nll, gradient))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_z_loss_is_refused_instead_of_left_out():
    asked = make_recipe({"objective": "seq2seq-rdrop", "train": {"z_loss": 1e-4}})
    with pytest.raises(ConfigError, match=r"train\.z_loss=0\.0001 has no place"):
        RDrop(asked).config(Vocabulary(100))
