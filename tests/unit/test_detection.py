"""Detection: scenes are learnt, a run finds and draws, boxes move with their images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import allformer as af
from allformer.config import BoxHead, EncoderOnly
from allformer.data.pictures import Picture
from allformer.data.pictures.scenes import Scenes
from allformer.errors import ConfigError, DataError, TaskError
from allformer.images.augment.objects import MoveObjects
from allformer.images.augment.place import RandomPlace
from allformer.train.loop import train
from allformer.train.objectives import detection
from allformer.train.objectives.detection import Detection
from allformer.train.predictions import Predictions
from allformer.train.recipe import Recipe, make_recipe
from allformer.train.weights import put_body

pytest.importorskip("scipy")
pytest.importorskip("pycocotools")
Image = pytest.importorskip("PIL.Image")


def bars(count: int, seed: int, objects: tuple[int, int] = (1, 2)) -> Scenes:
    """Bars that lie and bars that stand."""
    images = np.zeros((2, 12, 12), np.uint8)
    images[0, 4:8, 1:11] = images[1, 1:11, 4:8] = 250
    return Scenes(images, np.arange(2), ("lying", "standing"), count, (24, 32), objects, seed=seed)


def recipe(steps: int = 3, **more: Any) -> Recipe:
    return make_recipe(
        {
            "objective": {"is": "detection", "queries": 5, **more.pop("objective", {})},
            "data": {"path": "bars", "augment": {"flip": 0.5, "shift": 0.1}},
            "model": {"patch": 8, "dim": 24, "heads": 2, "layers": 2, "feed": 32},
            "optim": {"name": "adamw", "rate": 2e-3},
            "schedule": {"kind": "constant", "warmup": 2},
            "train": {"steps": steps, "batch_rows": 8, "validate_every": 100, "average": 1},
            "log": {"every": 10, "tensorboard": False},
            **more,
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "bars"
    train(recipe(), out, device="cpu", corpus={"train": bars(20, 0), "val": bars(5, 1)})
    return out


def test_a_run_is_a_checkpoint_that_finds(run: Path) -> None:
    model = af.load(run)
    assert isinstance(model.config.head, BoxHead)
    assert model.config.head.labels == ("lying", "standing")
    images = [bars(2, 1)[i].image for i in range(2)]
    found = af.detect(str(run), images, threshold=0.0)
    assert [len(each) for each in found] == [5, 5]
    scores = [one.score for one in found[0]]
    assert scores == sorted(scores, reverse=True)
    assert af.detect(str(run), images[0], threshold=0.0) == found[0]
    with pytest.raises(ConfigError, match="threshold=2"):
        af.detect(str(run), images, threshold=2)


def test_a_run_keeps_figures_and_pictures_for_its_report(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert 0 <= rows[-1]["validation_map50"] <= 1
    kept = Predictions.load(run)
    assert kept is not None
    assert len(kept.pictures) == 5
    assert kept.pictures[0].boxes[0].label in ("lying", "standing")


def test_the_command_draws_and_prints(run: Path, tmp_path: Path) -> None:
    from allformer.cli.main import app

    for i in range(2):
        Image.fromarray(bars(2, 1)[i].image[..., 0]).save(tmp_path / f"{i}.png")
    args = ["detect", str(run), str(tmp_path), "--threshold", "0", "--out", str(tmp_path / "out")]
    told = CliRunner().invoke(app, [*args, "--json"])
    assert told.exit_code == 0, told.output
    rows = [json.loads(line) for line in told.stdout.splitlines()]
    assert [len(row["objects"]) for row in rows] == [5, 5]
    assert sorted(x.name for x in (tmp_path / "out").iterdir()) == ["0.png", "1.png"]
    with Image.open(tmp_path / "out" / "0.png") as picture:
        assert picture.size == (320, 240)


def test_a_model_without_boxes_says_what_it_can(tmp_path: Path) -> None:
    from allformer import config
    from allformer.images import Processor
    from allformer.images.settings import make_settings

    source = config.Patches(8, image=(16, 16))
    block = config.Block(config.Attention(2), config.Feed(8, "gelu"), norm_at="pre")
    stack = config.Stack(8, source, config.LearnedPlane(source.shape, 1), (block,))
    head = config.ClassHead(("a", "b"), at="first")
    af.save(af.build(config.EncoderOnly(stack, head), seed=0), tmp_path, family="allformer")
    Processor(make_settings({"image_processor_type": "ViTImageProcessor", "size": 16})).save(
        tmp_path
    )
    with pytest.raises(TaskError, match=r"detect needs a head that finds objects.*classify-image"):
        af.detect(str(tmp_path), np.zeros((16, 16, 3), np.uint8))


def opened(**more: Any) -> Detection:
    objective = Detection(recipe(**more))
    objective.open({"train": bars(20, 0, (2, 4)), "val": bars(5, 1)})
    objective.encode(None, lambda line: None)
    return objective


def test_a_batch_has_shares_of_the_picture_and_nobody_where_there_is_no_object() -> None:
    objective = opened()
    examples = objective.examples(0)
    index = np.array([3, 7, 1])
    batch = objective.collate(examples, index, objective.frame())
    assert batch.pixels.shape == (8, 1, 24, 32)
    assert torch.equal(batch.pixels[0], batch.pixels[3])  # filled up with themselves
    assert (int(batch.images), batch.tokens) == (3, 3)
    picture = bars(20, 0, (2, 4))[3]
    count = len(picture.classes)
    assert batch.classes[0, :count].tolist() == picture.classes.tolist()
    assert (batch.classes[0, count:] == -1).all()
    left, top, right, below = picture.boxes[0]
    middle = [(left + right) / 64, (top + below) / 48, (right - left) / 32, (below - top) / 24]
    assert np.allclose(batch.boxes[0, 0], middle)


def test_the_loss_goes_down_when_the_same_batch_is_learnt() -> None:
    objective = opened()
    model = af.build(objective.config(None), seed=0)
    batch = objective.onto(objective.collate(objective.examples(0), np.arange(6)), "cpu")
    steps = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(25):
        loss, _ = objective.loss(model, batch)
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    assert losses[-1] < 0.75 * losses[0]


def test_auxiliary_losses_reach_every_layer_and_are_of_training_alone() -> None:
    plain, more = opened(objective={"auxiliary": False}), opened()
    batch = more.onto(more.collate(more.examples(0), np.arange(6)), "cpu")
    model = af.build(more.config(None), seed=0)
    once = af.build(plain.config(None), seed=0)
    assert more.loss(model, batch)[0] > 1.5 * plain.loss(once, batch)[0]
    values = [x.loss(m.eval(), batch)[0].item() for x, m in ((more, model), (plain, once))]
    assert values[0] == pytest.approx(values[1])


def test_so_many_of_the_last_layers_are_scored() -> None:
    losses = []
    for asked in ({"auxiliary": False}, {"layers": 1}, {"layers": 2}, {}):
        objective = opened(objective=asked)
        batch = objective.onto(objective.collate(objective.examples(0), np.arange(6)), "cpu")
        model = af.build(objective.config(None), seed=0)
        losses.append(objective.loss(model, batch)[0].item())
    assert losses[0] == pytest.approx(losses[1])
    assert losses[1] < losses[2] == pytest.approx(losses[3])  # it has two layers


def check_queries_on_a_body() -> None:
    """Positions of patches are those that were learnt, those of new queries are fresh."""
    objective = opened()
    tree = objective.config(None)
    bare = replace(tree.encoder.position, behind=0, resize="asked")
    source = replace(tree.encoder.source, behind=0)
    body = af.build(EncoderOnly(replace(tree.encoder, source=source, position=bare)), seed=1)
    model = af.build(tree, seed=2)
    before = model.state_dict()["encoder.source.position.weight"].clone()
    fresh = put_body(model, body.state_dict(), "a body")
    assert all(name.startswith(("head.", "encoder.source.")) for name in fresh)
    after, learnt = (x.state_dict()["encoder.source.position.weight"] for x in (model, body))
    assert torch.equal(after[: len(learnt)], learnt)
    assert torch.equal(after[len(learnt) :], before[len(learnt) :])
    other = af.build(opened(objective={"queries": 3}).config(None))
    with pytest.raises(ConfigError, match=r"encoder\.source\."):  # queries that were learnt stay
        put_body(model, other.state_dict(), "a detector")


def test_queries_are_put_behind_the_patches_of_a_body_that_had_none() -> None:
    check_queries_on_a_body()


def test_few_objects_are_matched_on_the_device_and_many_wait() -> None:
    assert Detection(recipe()).waits  # nothing is known yet
    assert not opened().waits
    assert opened(objective={"queries": 2}).waits  # fewer queries than objects


def test_a_decoder_of_queries_is_trained_too(tmp_path: Path) -> None:
    from allformer import config

    net = config.ResNet(4, (8, 8), (1, 1), channels=1)
    block = config.Block(config.Attention(2), config.Feed(8), dropout=0.0)
    crossed = config.Block(config.Attention(2), config.Feed(8), config.Attention(2), dropout=0.0)
    tree = config.SetDecoder(
        config.Stack(8, net, None, (block,)),
        config.Stack(8, config.Queries(5), None, (crossed,) * 2, final_norm=config.Norm()),
    )
    asked = recipe(steps=2, model=config.to_dict(tree))
    train(asked, tmp_path, device="cpu", corpus={"train": bars(8, 0), "val": bars(3, 1)})
    assert len(af.detect(str(tmp_path), bars(2, 1)[0].image, threshold=0.0)) == 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_step_never_waits_for_the_device_and_learns_as_on_a_cpu() -> None:
    objective = opened()
    model = af.build(objective.config(None), seed=0)
    batch = objective.collate(objective.examples(0), np.arange(8), objective.frame())
    wanted = objective.loss(model, objective.onto(batch, "cpu"))[0]
    model = model.to("cuda")
    ready = objective.onto(batch, "cuda")
    found = objective.loss(model, ready)[0]  # libraries are loaded the first time
    found.backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = objective.loss(model, ready)[0]
        again.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert again.item() == pytest.approx(wanted.item(), rel=1e-3)


def test_without_pycocotools_it_is_said_before_training_and_what_chooses_by_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(detection, "can_judge", lambda: False)
    sets = {"train": bars(8, 0), "val": bars(2, 1)}
    rows = train(recipe(steps=1), tmp_path / "run", device="cpu", corpus=sets).rows
    assert "validation has no mean average precision" in capsys.readouterr().err
    assert "validation_map50" not in rows[-1]
    chooses = recipe(train={"steps": 1, "batch_rows": 8, "best": "map50"})
    with pytest.raises(ConfigError, match="but pycocotools is not installed"):
        train(chooses, tmp_path / "other", device="cpu", corpus=sets)


def test_pictures_without_boxes_or_with_other_classes_are_refused() -> None:
    objective = Detection(recipe())
    objective.open({"train": Bare(), "val": Bare()})
    objective.encode(None, lambda line: None)
    with pytest.raises(DataError, match="has no boxes"):
        objective.collate(objective.examples(0), np.arange(2))
    named = Detection(recipe(objective={"labels": ["lying"]}))
    named.open({"train": bars(3, 0), "val": bars(3, 1)})
    with pytest.raises(DataError, match="classes that the model has not: standing"):
        named.encode(None, lambda line: None)


class Bare:
    """Pictures of which nothing is known."""

    labels = ("a",)
    pixels = np.zeros((2, 8, 8, 1), np.uint8)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Picture:
        return Picture(self.pixels[index], name=f"bare {index}")


def spot(x: int, y: int, side: int = 64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A bright square of 8 pixels on black, and its box."""
    image = torch.zeros(1, 1, side, side)
    image[0, 0, y : y + 8, x : x + 8] = 1
    box = torch.tensor([[[(x + 4) / side, (y + 4) / side, 8 / side, 8 / side]]])
    return image, box, torch.tensor([[2]])


def check_boxes_move(move: MoveObjects, seed: int = 0) -> None:
    """Where the bright square lies after a move is where its box says."""
    for i in range(8):
        image, box, kind = spot(16 + 3 * i, 40 - 3 * i)
        chance = torch.Generator().manual_seed(seed + i)
        image, box, kind = move(image, box, kind, chance)
        assert kind.tolist() == [[2]]
        bright = (image[0, 0] > 0.5).nonzero().double()
        middle = (bright.mean(0) + 0.5).flip(0) / 64
        assert torch.allclose(middle, box[0, 0, :2].double(), atol=0.02)
        size = (bright.amax(0) - bright.amin(0) + 1).flip(0) / 64
        assert torch.allclose(size, box[0, 0, 2:].double(), atol=0.035)


def test_boxes_move_with_their_images() -> None:
    check_boxes_move(MoveObjects(flip=1.0))
    check_boxes_move(MoveObjects(flip=0.5, zoom=(0.7, 1.4), shift=0.1))


def check_still() -> None:
    """About half are as they were, their maps too."""
    images = torch.rand(40, 1, 16, 16, generator=torch.Generator().manual_seed(3))
    boxes, kinds = torch.rand(40, 1, 4), torch.zeros(40, 1).long()
    move = MoveObjects(flip=0.0, zoom=(0.7, 1.4), shift=0.1, least=0.0, still=0.5)
    moved = move(images, boxes, kinds, torch.Generator().manual_seed(4))[0]
    same = (moved - images).abs().amax((1, 2, 3)) < 1e-5
    assert 10 <= same.sum() <= 30
    maps = (images[:, 0] * 5).long()
    place = RandomPlace(0.0, (0.7, 1.4), still=0.5)
    moved, seen = place(images, maps, torch.Generator().manual_seed(4))
    same = (moved - images).abs().amax((1, 2, 3)) < 1e-5
    assert 10 <= same.sum() <= 30
    assert torch.equal(seen[same], maps[same])


def test_some_stay_sharp_and_where_they_are() -> None:
    check_still()


def test_what_leaves_the_image_is_no_object_any_more() -> None:
    image, box, kind = spot(0, 28)
    gone = MoveObjects(flip=0.0, zoom=(3.0, 3.0))(image, box, kind, torch.Generator())
    assert gone[2].tolist() == [[-1]]
    image, box, kind = spot(28, 28)
    stays = MoveObjects(flip=0.0, zoom=(3.0, 3.0))(image, box, kind, torch.Generator())
    assert stays[2].tolist() == [[2]]
    assert stays[1][0, 0].tolist() == pytest.approx([0.5, 0.5, 0.375, 0.375])
