"""For the tests of objectives with labels: tiny runs, and batches beside transformers' own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.load import load
from allformer.text.load import load_tokenizer
from allformer.train.batch import Frame
from allformer.train.objectives import find_objective
from allformer.train.recipe import Recipe, make_recipe
from allformer.train.sections.vocabulary import Vocabulary

TINY = {"dim": 32, "heads": 2, "feed": 64, "layers": 1}
TRAIN = {"steps": 60, "batch_tokens": 256, "average": 1, "smoothing": 0.0, "validate_every": 30}


def tiny(objective: Any, **sections: Any) -> Recipe:
    """A recipe of a small encoder that learns in a second: `tiny("classification", data={…})`."""
    given = {
        "tokenizer": {"vocab": 80}, "model": TINY, "optim": {"rate": 3e-3},
        "schedule": {"kind": "linear", "warmup": 5},
    }  # fmt: skip
    train = {**TRAIN, **sections.pop("train", {})}
    return make_recipe({**given, "objective": objective, "train": train, **sections})


def on_checkpoint(name: str, path: Path, corpus: Any, **sections: Any) -> tuple[Any, Any]:
    """An objective that has read a corpus with a checkpoint's tokeniser, and the model in fp64."""
    model = {"checkpoint": str(path), **sections.pop("model", {})}
    objective = find_objective(name)(make_recipe({"objective": name, "model": model, **sections}))
    tokenizer = load_tokenizer(path)
    objective.config(Vocabulary.of(tokenizer))
    objective.open(corpus)
    tree = objective.config(Vocabulary.of(tokenizer))
    objective.encode(objective.tokenizer(tokenizer), lambda line: None)
    found = load(path, dtype=torch.float64)
    assert found.config.head is None or type(found.config.head) is type(tree.head)
    found.config = tree
    if found.head is not None:
        found.head.config = tree.head
    return objective, found


def mean_loss(objective: Any, model: Any, index: Any, frame: Frame | None = None) -> torch.Tensor:
    """What a step would go down: the sum over its count."""
    batch = objective.collate(objective.examples(0), index, frame)
    loss, nll = objective.loss(model, batch)
    assert torch.equal(loss.detach(), nll)
    return loss.sum() / sum(objective.counts(batch))


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """By name, of the weights that it reaches."""
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


GOOD, BAD = ("great", "fine", "lovely", "superb"), ("awful", "poor", "boring", "dull")
REST = ("film", "plot", "actor", "scene", "the", "a")


def opinions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Texts with one word that says which they are."""
    draw = random.Random(seed)
    found = []
    for i in range(count):
        words = [*draw.choices(REST, k=draw.randint(2, 6)), draw.choice(GOOD if i % 2 else BAD)]
        draw.shuffle(words)
        found.append({"text": " ".join(words), "label": i % 2})
    return found
