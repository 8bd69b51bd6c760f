"""What is done to a batch before its step, as a graph, is what is done by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from allformer.generate.graph import CAPTURES, WARM
from allformer.train.batch import keyed, moved, tensors
from allformer.train.objectives.detection import Detection
from allformer.train.objectives.segmentation import Segmentation
from allformer.train.stage import MOST, Stage
from tests.drawn import write_idx
from tests.unit import test_anew, test_contrastive, test_image_classification


class Traced:
    """As a CUDA graph: every number of the host, and every tensor made on the way, stays as it was
    when it was captured; only tensors that are written in place are seen again."""

    def __init__(self, call: Callable[[], Any], pool: Any) -> None:
        self.shape: Any = None

        def flat() -> list[torch.Tensor]:
            self.shape = call()
            return tensors(self.shape)

        self.graph = make_fx(flat)()

    def replay(self) -> Any:
        new = iter(self.graph())

        def walk(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                return next(new)
            if not isinstance(x, tuple):
                return x
            return type(x)(*map(walk, x)) if hasattr(x, "_fields") else tuple(map(walk, x))

        return walk(self.shape)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return test_contrastive.write_halves(tmp_path_factory.mktemp("data") / "halves")


def _classes(data: Path) -> Any:
    every = test_image_classification.EVERYTHING | {"scale": None, "mix": 0.7}
    return test_image_classification.opened(write_idx(data, 240, 40), augment=every)


def _pairs(data: Path) -> Any:
    augment = {"crop": 1, "randaugment": 1, "cutmix": 1.0, "mixup": 0.5}
    return test_contrastive.opened(test_contrastive.recipe(data, data={"augment": augment}))[0]


def _boxes(data: Path) -> Any:
    moves = {"anew": True, "flip": 0.5, "zoom": [0.8, 1.2], "still": 0.3}
    return test_anew._opened(Detection(test_anew._recipe("detection", augment=moves)))


def _maps(data: Path) -> Any:
    moves = {"anew": True, "flip": 0.5, "zoom": [0.8, 1.2], "still": 0.3}
    return test_anew._opened(Segmentation(test_anew._recipe("segmentation", augment=moves)))


def batches(objective: Any, rows: int, count: int) -> list[Any]:
    """Training batches as they are before they are made ready, each with chance of its own."""
    examples, out = objective.examples(0), []
    for i in range(count):
        if hasattr(examples, "batches"):
            batch = objective.collate(examples, examples.batches[0], None)
        else:
            index = (np.arange(rows) + i * rows) % len(examples)
            batch = objective.collate(examples, index, objective.frame())
        out.append(keyed(moved(batch, "cpu"), 7, i))
    return out


@pytest.mark.parametrize("make", [_classes, _pairs, _boxes, _maps])
@pytest.mark.parametrize("rows", [8, 5])
def test_a_captured_stage_is_the_plain_one(
    make: Any, rows: int, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = batches(make(data), rows, WARM + 3)
    plain = make(data)
    wanted = [plain.onto(batch, "cpu") for batch in given]
    monkeypatch.setitem(CAPTURES, "cpu", Traced)
    objective = make(data)
    found = [objective.onto(batch, "cpu") for batch in given]  # all are kept: none is another's
    (still,) = objective._stage._stills.values()
    assert isinstance(still.graph.captured, Traced), still.graph.refused
    for batch, mine, hers in zip(given, found, wanted, strict=True):
        assert mine.key == batch.key
        assert mine.tokens == hers.tokens
        for a, b in zip(tensors(mine), tensors(hers), strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(found[-1].pixels, found[-2].pixels)


def test_more_forms_of_batches_than_are_kept_go_the_plain_way(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = _classes(data)
    given = [x for rows in range(2, MOST + 4) for x in batches(plain, rows, 1)]
    wanted = [plain.onto(batch, "cpu").pixels for batch in given]
    monkeypatch.setitem(CAPTURES, "cpu", Traced)
    objective = _classes(data)
    for batch, pixels in zip(given, wanted, strict=True):
        assert torch.equal(objective.onto(batch, "cpu").pixels, pixels)
    assert len(objective._stage._stills) == MOST


def test_crops_that_are_made_smaller_are_not_captured(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = _classes(data)
    assert objective.fixed
    augment = objective.augment
    assert augment.fixed((12, 12))
    assert not type(augment)(scale=(0.5, 1.0)).chain((4, 4)).fixed((12, 12))


def test_a_batch_of_validation_has_no_chance(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CAPTURES, "cpu", Traced)
    objective = _classes(data)
    (batch,) = batches(objective, 8, 1)
    assert objective.drawn(batch._replace(key=None)) == ()
    objective.onto(batch._replace(key=None), "cpu")
    assert objective._stage is None


def test_what_cannot_be_captured_goes_on_by_hand(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(call: Any, pool: Any) -> Any:
        raise RuntimeError("something waits for the device")

    given = batches(_classes(data), 8, WARM + 2)
    wanted = [_classes(data).onto(batch, "cpu").pixels for batch in given]
    monkeypatch.setitem(CAPTURES, "cpu", refuses)
    stage = Stage(_classes(data).prepared)
    objective = _classes(data)
    found = [stage(batch, objective.drawn(batch)).pixels for batch in given]
    assert all(map(torch.equal, found, wanted))
