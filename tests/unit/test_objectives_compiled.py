"""Every batch of a compiled step has one shape: a second batch must not make a second graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch._dynamo.testing

import allformer as af
from allformer.train.batch import tensors, uncounted
from allformer.train.objectives import find_objective
from allformer.train.recipe import make_recipe
from allformer.train.stream import Place, micro_batches
from allformer.train.tokenizing import make_tokenizer

CASES = {
    "causal-lm": {},
    "causal-lm, documents": {"rows": "documents"},
    "masked-lm": {},
    "masked-lm, stream": {"rows": "stream"},
    "masked-lm, pairs": {"pair": "next-sentence"},
    "span-corruption": {},
    "span-corruption, documents": {"rows": "documents"},
    "denoising": {},
}


def texts() -> list[str]:
    random = np.random.default_rng(0)
    return [
        "".join("abcdefgh. "[i] for i in random.integers(10, size=30 + 2 * n)) for n in range(60)
    ]


USUAL = ("causal-lm", "masked-lm, pairs", "denoising")  # the others in `make test-all`


@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in USUAL else pytest.mark.slow) for name in CASES],
)
def test_two_batches_share_one_graph(name):
    kind = name.split(",")[0]
    recipe = make_recipe(
        {
            "objective": {"is": kind, **CASES[name]},
            "data": {"max_length": 24, "hold_out": 5},
            "tokenizer": {"kind": "characters", "vocab": 160},
            "model": {"dim": 16, "heads": 2, "feed": 32, "layers": 1, "dropout": 0.0},
            "train": {"batch_tokens": 120},
        }
    )
    objective = find_objective(kind)(recipe)
    objective.open(texts())
    objective.encode(make_tokenizer(objective, lambda line: None), lambda line: None)
    model = af.build(objective.config(objective.vocabulary), seed=0).eval()  # type: ignore[attr-defined]
    items = micro_batches(objective, recipe.train, objective.frame(), Place())
    batches = [next(items)[0] for _ in range(4)]
    items.close()
    shapes = {tuple(x.shape for x in tensors(batch)) for batch in batches}
    assert len(shapes) == 1
    torch._dynamo.reset()
    graphs = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(
        lambda batch: objective.loss(model, batch), backend=graphs, fullgraph=True, dynamic=False
    )
    for batch in batches:
        loss, nll = compiled(uncounted(batch))
        plain, _ = objective.loss(model, batch)
        torch.testing.assert_close(loss, plain, rtol=1e-4, atol=1e-4)
        assert loss.shape == nll.shape == (() if len(objective.terms) == 1 else (2,))
    assert graphs.frame_count == 1
