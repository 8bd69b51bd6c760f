"""The set loss: against transformers, against all permutations, and where there is nothing."""

from __future__ import annotations

from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from allformer.config import SetLoss
from allformer.core.boxes import centres, corners, generalised_iou
from allformer.core.few_matched import few_matched
from allformer.core.set_loss import (
    NOBODY,
    Guesses,
    cheapest,
    costs,
    make_wanted,
    match,
    score,
    set_loss,
)
from allformer.errors import ConfigError
from tests.parity import found

pytest.importorskip("scipy")
CLASSES, QUERIES = 5, 7


def guesses(seed: int = 0, layers: int = 1) -> list[Guesses]:
    make = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(layers):
        logits = 2 * torch.randn(3, QUERIES, CLASSES + 1, generator=make, dtype=torch.float64)
        boxes = torch.randn(3, QUERIES, 4, generator=make, dtype=torch.float64).sigmoid()
        out.append(Guesses(logits.requires_grad_(), boxes.requires_grad_()))
    return out


def oracle(layers: list[Guesses], labels: Any, settings: SetLoss) -> torch.Tensor:
    """transformers' loss; of several layers the last is the model's own."""
    from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss

    asked = SimpleNamespace(
        class_cost=settings.match_class, bbox_cost=settings.match_box, num_labels=CLASSES,
        giou_cost=settings.match_iou, eos_coefficient=settings.nothing,
        bbox_loss_coefficient=settings.box, giou_loss_coefficient=settings.iou,
        auxiliary_loss=len(layers) > 1, decoder_layers=len(layers),
    )  # fmt: skip
    own = layers[-1]
    every = [torch.stack(x) for x in zip(*layers, strict=True)]
    with found.wide():
        loss, _, _ = ForObjectDetectionLoss(own.logits, labels, "cpu", own.boxes, asked, *every)
    return loss


def check_set_loss(layers: int = 1, **more: Any) -> None:
    settings = SetLoss(**more)
    mine, theirs = guesses(layers=layers), guesses(layers=layers)
    labels = found.labels(CLASSES)
    own = set_loss(mine, make_wanted(labels, mine[0].boxes), settings).total
    reference = oracle(theirs, labels, settings)
    assert torch.allclose(own, reference, rtol=0, atol=1e-12)
    own.backward()
    reference.backward()
    for a, b in zip(mine, theirs, strict=True):
        for x, y in zip(a, b, strict=True):
            assert torch.allclose(x.grad, y.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layers", [1, 3])
def test_the_loss_and_its_gradients_are_transformers(layers: int) -> None:
    check_set_loss(layers)


def test_other_weights_are_transformers_too() -> None:
    check_set_loss(match_class=2.0, match_box=1.0, match_iou=3.0, box=4.0, iou=1.0, nothing=0.4)


def test_no_objects_at_all_are_a_matter_of_classes_alone() -> None:
    nothing = [{"class_labels": torch.zeros(0).long(), "boxes": torch.zeros(0, 4).double()}] * 3
    mine, theirs = guesses(), guesses()
    parts = set_loss(mine, make_wanted(nothing, mine[0].boxes), SetLoss())
    assert torch.allclose(parts.total, oracle(theirs, nothing, SetLoss()), rtol=0, atol=1e-12)
    assert (parts.boxes, parts.iou) == (0, 0)


def test_objects_beyond_the_queries_are_left_out_as_in_transformers() -> None:
    make = torch.Generator().manual_seed(3)
    many = [
        {
            "class_labels": torch.randint(CLASSES, (QUERIES + 4,), generator=make),
            "boxes": 0.2 + 0.3 * torch.rand(QUERIES + 4, 4, generator=make, dtype=torch.float64),
        }
    ] * 3
    mine, theirs = guesses(), guesses()
    own = set_loss(mine, make_wanted(many, mine[0].boxes), SetLoss()).total
    assert torch.allclose(own, oracle(theirs, many, SetLoss()), rtol=0, atol=1e-12)


def check_matching(count: int = 40) -> None:
    """Both ways of matching cost as little as the best of all permutations."""
    random = np.random.default_rng(0)
    for _ in range(count):
        objects = int(random.integers(1, 4))
        price = random.normal(size=(2, 4, objects))
        real = random.random((2, objects)) < 0.8
        few = few_matched(torch.from_numpy(price), torch.from_numpy(real)).numpy()
        for given in (cheapest(price, real), few):
            for table, there, row in zip(price, real, given, strict=True):
                numbers = np.flatnonzero(there)
                assert (row[~there] == NOBODY).all()
                assert len(set(row[numbers])) == len(numbers)
                least = min(
                    sum(table[q, j] for q, j in zip(chosen, numbers, strict=True))
                    for chosen in permutations(range(4), len(numbers))
                )
                assert np.isclose(table[row[numbers], numbers].sum(), least)


def test_a_matching_is_the_best_of_all_permutations() -> None:
    check_matching()


def test_both_ways_of_matching_agree_where_there_are_many() -> None:
    price = torch.rand(50, 12, 6, generator=torch.Generator().manual_seed(1))
    real = torch.rand(50, 6, generator=torch.Generator().manual_seed(2)) < 0.7
    both = few_matched(price, real), torch.from_numpy(cheapest(price.numpy(), real.numpy()))
    assert torch.equal(*both)


def test_objects_may_be_missing_anywhere_in_the_list() -> None:
    (own,) = guesses()
    labels = found.labels(CLASSES)
    wanted = make_wanted(labels, own.boxes)
    gaps = wanted._replace(classes=wanted.classes.roll(1, 1), boxes=wanted.boxes.roll(1, 1))
    loss = set_loss([own], wanted, SetLoss()).total
    assert torch.allclose(set_loss([own], gaps, SetLoss()).total, loss, rtol=0, atol=1e-12)


def test_a_guess_that_is_no_number_costs_most_and_stops_nothing() -> None:
    (own,) = guesses()
    logits = own.logits.detach().clone()
    logits[0, 0] = torch.nan
    wanted = make_wanted(found.labels(CLASSES), own.boxes)
    table = costs(Guesses(logits, own.boxes), wanted, SetLoss())
    assert table.isfinite().all()
    assert 0 not in match(Guesses(logits, own.boxes), wanted, SetLoss())[0].tolist()


def test_a_perfect_guess_costs_nothing_but_its_doubt() -> None:
    boxes = torch.tensor([[[0.5, 0.5, 0.2, 0.4], [0.1, 0.1, 0.1, 0.1]]], dtype=torch.float64)
    logits = torch.full((1, 2, 3), -50.0, dtype=torch.float64)
    logits[0, 0, 1] = logits[0, 1, 2] = 50
    wanted = make_wanted([{"class_labels": torch.tensor([1]), "boxes": boxes[0, :1]}], boxes)
    one = Guesses(logits[None], boxes[None])
    parts = score(one, wanted, match(one, wanted, SetLoss()), SetLoss())
    assert parts.total < 1e-12


def test_generalised_iou_of_known_boxes() -> None:
    a = torch.tensor([0.0, 0.0, 2.0, 2.0])
    assert generalised_iou(a, a) == 1
    assert generalised_iou(a, torch.tensor([1.0, 0.0, 3.0, 2.0])).item() == pytest.approx(1 / 3)
    apart = generalised_iou(a, torch.tensor([4.0, 0.0, 6.0, 2.0])).item()
    assert apart == pytest.approx(0 - (12 - 8) / 12)
    box = torch.tensor([[0.3, 0.4, 0.2, 0.1]])
    assert torch.allclose(centres(corners(box)), box)


def test_labels_of_another_form_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"labels\[0\] must have class_labels"):
        make_wanted([{"boxes": torch.zeros(1, 4)}], torch.zeros(1))
