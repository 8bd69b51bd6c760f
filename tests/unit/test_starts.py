"""Every tensor has somebody who says how it starts and whether it decays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from allformer.config import LMHead
from allformer.core.linear import Linear
from allformer.core.model import build
from allformer.core.norm import LayerNorm, RMSNorm
from allformer.core.position import Learned
from allformer.core.relatives.bucket import BucketBias
from allformer.core.starts import decay_groups, start
from allformer.core.table import Embedding
from allformer.errors import ConfigError
from tests.models import SPREAD, decoder_only

KEPT = (LayerNorm, RMSNorm, Learned, BucketBias, Embedding)


class Silent(nn.Module):
    """Has a tensor and does not say how it starts."""

    def __init__(self, buffer: bool = False) -> None:
        super().__init__()
        if buffer:
            self.register_buffer("weight", torch.empty(3))
        else:
            self.weight = nn.Parameter(torch.empty(3))


def check_start() -> None:
    """Whoever says nothing is refused, by name; whoever does is asked once."""
    for silent in (Silent(), Silent(buffer=True)):
        model = nn.Sequential(Linear(2, 3), nn.Sequential(silent))
        with pytest.raises(ConfigError, match=r"^1\.0 .Silent. has tensors but no reset_param"):
            start(model)
    model = nn.Sequential(Linear(2, 3), nn.ReLU(), LayerNorm(3, 1e-5))
    for parameter in model.parameters():
        nn.init.constant_(parameter, float("nan"))
    start(model)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert not model[0].bias.any()  # type: ignore[union-attr, operator]


def check_decay(kind: str = "encoder narrow") -> None:
    """Matrices decay; norms, biases, tables and positions keep their size."""
    model = build(SPREAD[kind], seed=0)
    decayed, kept = decay_groups(model, 0.1)
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    every = [*decayed["params"], *kept["params"]]
    assert len(every) == len({id(p) for p in every}) == len(list(model.parameters()))
    ids = {id(p) for p in decayed["params"]}
    for name, module in model.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            if own == "bias" or isinstance(module, KEPT):
                assert id(parameter) not in ids, f"{name}.{own} decays"
            elif isinstance(module, Linear):
                assert id(parameter) in ids, f"{name}.{own} does not decay"


def check_shared_decay() -> None:
    """What two hold decays only if both say so, whoever comes first; an own output does."""
    table, matrix = Embedding(4, 3), Linear(3, 4)
    matrix.weight = table.weight
    for model in (nn.Sequential(table, matrix), nn.Sequential(matrix, table)):
        decayed, kept = decay_groups(model, 0.1)
        assert decayed["params"] == []
        assert {id(p) for p in kept["params"]} == {id(table.weight), id(matrix.bias)}
    both = nn.Sequential(matrix, Linear(3, 4))
    both[1].weight = matrix.weight
    assert [id(p) for p in decay_groups(both, 0.1)[0]["params"]] == [id(matrix.weight)]
    for tied in (True, False):
        model = build(replace(decoder_only(), head=LMHead(tied=tied)), seed=0)
        ids = {id(p) for p in decay_groups(model, 0.1)[0]["params"]}
        assert (id(model.head.table.weight) in ids) == (not tied)  # type: ignore[union-attr]
        assert id(model.decoder.source.embedding.weight) not in ids  # type: ignore[union-attr]


def test_a_tensor_of_which_nobody_says_how_it_starts_is_refused():
    check_start()


@pytest.mark.parametrize("kind", ["encoder narrow", "decoder modern", "seq2seq buckets"])
def test_matrices_alone_decay(kind):
    check_decay(kind)


def test_a_shared_tensor_decays_only_if_all_say_so():
    check_shared_decay()
