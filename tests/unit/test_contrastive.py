"""Contrast of images and texts: the loss against its formula, equal captions, learning, the run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from typer.testing import CliRunner

import allformer as af
from allformer.checkpoint.weights import read_tensors
from allformer.cli.main import app
from allformer.core.heads.contrast import Contrast, unit
from allformer.errors import ConfigError, DataError
from allformer.metrics.zero_shot import recall, worst_wording, zero_shot
from allformer.train.batch import keyed
from allformer.train.loop import open_objective, train
from allformer.train.metrics import read_metrics
from allformer.train.objectives.contrastive import MOST, Contrastive
from allformer.train.pictures.pair_loss import pair_loss
from allformer.train.recipe import Recipe, make_recipe, read_recipe
from allformer.train.tokenizing import make_tokenizer, vocabulary_of
from tests.drawn import halves, write_idx
from tests.models import SPREAD
from tests.ranks import by_oneself, start

SIDES = ("left", "right", "top", "bottom")


def write_halves(path: Path) -> Path:
    write_idx(path, 240, 40)
    (path / "labels.txt").write_text("\n".join(SIDES))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_halves(tmp_path_factory.mktemp("data") / "halves")


def recipe(path: Path, model: dict[str, Any] | None = None, **sections: Any) -> Recipe:
    small = {"dim": 32, "heads": 2, "feed": 64, "layers": 1, "dropout": 0.0}
    towers = {"vision": {"patch": 4, **small}, "text": small, "width": 16, **(model or {})}
    given: dict[str, dict[str, Any]] = {
        "data": {"path": str(path), "hold_out": 40, "augment": {"crop": 1}},
        "tokenizer": {"kind": "bpe", "vocab": 200, "lowercase": True},
        "optim": {"name": "adamw", "rate": 3e-3},
        "schedule": {"kind": "constant", "warmup": 5},
        "train": {"steps": 8, "batch_rows": 48, "validate_every": 500, "save_every": 4},
        "log": {"every": 4, "tensorboard": False},
    }
    given = {name: {**x, **sections.get(name, {})} for name, x in given.items()}
    return make_recipe({"objective": "contrastive", "model": towers, **given})


def opened(asked: Recipe) -> tuple[Contrastive, Any]:
    """The objective with its data encoded, and its model in fp64."""
    objective = open_objective(asked)
    tokenizer = make_tokenizer(objective, lambda line: None)
    objective.encode(tokenizer, lambda line: None)
    tree = objective.config(vocabulary_of(tokenizer))
    return objective, af.build(tree, seed=0).double()


def batch_of(objective: Contrastive, epoch: int = 0, key: int | None = None) -> Any:
    examples = objective.examples(epoch)
    batch = objective.collate(examples, examples.batches[0], None)
    batch = batch if key is None else keyed(batch, key)
    ready = objective.onto(batch, "cpu")
    return ready._replace(pixels=ready.pixels.double())


# --- the loss -------------------------------------------------------------------------------------


def vectors(rows: int = 6, width: int = 5) -> tuple[Tensor, Tensor]:
    make = torch.Generator().manual_seed(3)
    text, image = (torch.randn(rows, width, generator=make).double() for _ in range(2))
    return unit(text).requires_grad_(), unit(image).requires_grad_()


def head_of(name: str = "two towers") -> Contrast:
    return af.build(SPREAD[name], seed=0).double().head


def by_hand(head: Contrast, text: Tensor, image: Tensor, weight: Tensor) -> Tensor:
    """Pair by pair, as the formula has it; `weight` i j: how much image i is what text j says."""
    scores = image @ text.t() * head.scale.exp() + (0 if head.bias is None else head.bias)
    total = scores.new_zeros(())
    for i in range(len(text)):
        if head.bias is not None:
            for j in range(len(text)):
                yes, no = scores[i, j].sigmoid().log(), (-scores[i, j]).sigmoid().log()
                total = total - weight[i, j] * yes - (1 - weight[i, j]) * no
            continue
        for rows, own in ((scores[i], weight[i]), (scores[:, i], weight[:, i])):
            logs = (rows.exp() / rows.exp().sum()).log()
            total = total - (own / own.sum() * logs).sum() / 2
    return total


def check_pair_loss(name: str = "two towers", mixed: bool = True) -> None:
    """Sum and gradients of the loss with equal captions and mixed images, by the formula."""
    head, (text, image) = head_of(name), vectors()
    meaning = torch.tensor([0, 1, 0, 2, 1, 0])
    shares = torch.eye(6).double()
    if mixed:
        shares = 0.7 * shares + 0.3 * shares[torch.tensor([3, 4, 5, 1, 0, 2])]
    weight = shares @ (meaning[:, None] == meaning[None]).double()
    inputs = [text, image, *head.parameters()]
    inputs = [x for x in inputs if x.numel() == 1 or x.shape == text.shape]
    found = pair_loss(head, text, image, meaning, shares)
    wanted = by_hand(head, text, image, weight)
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=0)
    for ours, theirs in zip(
        torch.autograd.grad(found, inputs), torch.autograd.grad(wanted, inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("name", ["two towers", "two towers, sigmoid"])
def test_loss_and_gradients_are_those_of_the_formula(name: str, mixed: bool) -> None:
    check_pair_loss(name, mixed)


def test_without_equal_captions_it_is_clips_cross_entropy() -> None:
    head, (text, image) = head_of(), vectors()
    scores = text @ image.t() * head.scale.exp()
    own = torch.arange(6)
    wanted = (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2
    found = pair_loss(head, text, image, own, torch.eye(6).double()) / 6
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


def check_equal_captions() -> None:
    """An image is not to tell its caption from another that says the same: between the two, nothing
    is left to learn."""
    head = head_of()
    text = unit(torch.tensor([[1.0, 0.5], [1.0, -0.5], [-1.0, 0.0]]).double())
    image = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]).double().requires_grad_()
    loss = pair_loss(head, text, image, torch.tensor([5, 5, 8]), torch.eye(3).double())
    floor = 2 * math.log(2)  # which of the two, nobody can say: −log ½ for each of them
    assert loss.item() == pytest.approx(floor, abs=1e-9)
    (grad,) = torch.autograd.grad(loss, image)
    assert grad.abs().max() < 1e-8


def test_equal_captions_are_no_negatives() -> None:
    check_equal_captions()


def test_an_image_that_is_gone_asks_nothing_of_its_text() -> None:
    head, (text, image) = head_of(), vectors(3)
    shares = torch.eye(3).double()[[1, 1, 2]]  # of the first pair's image nothing is left
    loss = pair_loss(head, text, image, torch.arange(3), shares)
    assert loss.isfinite()
    scores = text @ image.t() * head.scale.exp()
    rows = scores.log_softmax(1)[1, :2].mean() + scores.log_softmax(1)[2, 2]
    columns = scores.log_softmax(0)[1, :2].sum() + scores.log_softmax(0)[2, 2]
    torch.testing.assert_close(loss, -(rows + columns) / 2, atol=1e-10, rtol=0)


def test_each_distinct_text_is_read_once_and_counts_for_each_of_its_images(data: Path) -> None:
    objective, model = opened(recipe(data))
    batch = batch_of(objective)
    assert len(batch.ids) < len(batch.pixels)
    ids, own = batch.ids[batch.caption], torch.arange(len(batch.pixels))
    long = batch._replace(ids=ids, keep=None, caption=own)
    model.eval()
    torch.testing.assert_close(
        objective.loss(model, batch)[0], objective.loss(model, long)[0], atol=1e-9, rtol=0
    )


def check_scale_is_bounded(data: Path) -> None:
    objective, model = opened(recipe(data))
    batch = batch_of(objective)
    with torch.no_grad():
        model.head.scale.fill_(7.0)
    objective.loss(model.eval(), batch)
    assert model.head.scale.item() == 7.0
    objective.loss(model.train(), batch)
    assert model.head.scale.item() == pytest.approx(MOST)


def test_the_scale_stays_below_a_hundred(data: Path) -> None:
    check_scale_is_bounded(data)
    objective, model = opened(recipe(data, {"sigmoid": True}))
    with torch.no_grad():
        model.head.scale.fill_(7.0)
    objective.loss(model.train(), batch_of(objective))
    assert model.head.scale.item() == 7.0  # SigLIP's is free


# --- data -----------------------------------------------------------------------------------------


def test_wordings_are_drawn_by_seed_and_epoch_in_whole_batches(data: Path) -> None:
    objective, _ = opened(recipe(data))
    first, again, later = (objective.examples(epoch) for epoch in (0, 0, 1))
    assert np.array_equal(first.drawn, again.drawn)
    assert not np.array_equal(first.drawn, later.drawn)
    assert not np.array_equal(first.batches[0], later.batches[0])
    assert {len(index) for index in first.batches} == {48}
    assert len(first.batches) == 200 // 48
    texts = first.captions.texts
    for i in range(20):
        assert SIDES[first[i].label] in texts[first.drawn[i]]
    assert len({texts[i] for i in first.drawn}) > 40  # of 4 × 16


def test_pictures_are_read_once_for_all_epochs(data: Path) -> None:
    objective, _ = opened(recipe(data))
    first, later = objective.examples(0), objective.examples(1)
    wanted = first.pixels(np.arange(5))
    assert np.array_equal(later.pixels(np.arange(5)), wanted)
    assert first.origin is later.origin
    assert "_whole" in vars(first.origin)
    assert "_whole" not in vars(later)


def check_wordings_are_new(data: Path) -> None:
    """What is validated with is never trained on."""
    objective, _ = opened(recipe(data))
    trained, held = objective.texts(), objective.validation.captions.texts
    assert not set(trained) & set(held)
    assert len(held) == 4 * 6
    kept = objective.recipe.data
    assert not set(kept.templates) & set(kept.test_templates)


def test_what_is_validated_with_is_never_trained_on(data: Path) -> None:
    check_wordings_are_new(data)


def test_a_frame_gives_every_batch_one_size(data: Path) -> None:
    objective, _ = opened(recipe(data))
    frame = objective.frame()
    shapes = set()
    for epoch in range(2):
        examples = objective.examples(epoch)
        for index in examples.batches:
            batch = objective.collate(examples, index, frame)
            shapes.add((batch.pixels.shape, batch.ids.shape, batch.caption.shape))
            texts = [examples.captions.texts[i] for i in examples.drawn[index]]
            ids = batch.ids[batch.caption]
            assert all(
                objective._tokenizer.encode(text) == row[: len(row.nonzero())].tolist()
                for text, row in zip(texts[:3], ids, strict=False)
            )
    assert len(shapes) == 1


def test_augmentation_is_of_training_alone_and_mixed_images_have_two_captions(data: Path) -> None:
    augment = {"crop": 1, "mixup": 0.8}
    objective, _ = opened(recipe(data, data={"augment": augment}))
    plain, one, same, two = (batch_of(objective, key=key) for key in (None, 1, 1, 2))
    assert torch.equal(plain.shares, torch.eye(48))
    assert torch.equal(one.pixels, same.pixels)
    assert not torch.equal(one.pixels, two.pixels)
    assert torch.allclose(one.shares.sum(1), torch.ones(48))
    assert ((one.shares > 0).sum(1) > 1).any()


def test_names_say_what_a_class_is_called(data: Path) -> None:
    names = {"left": ["left side", "port"], "top": "upper half"}
    asked = recipe(data, data={"names": names, "templates": ["a {}", "{}"]})
    texts = opened(asked)[0].texts()
    assert {"a port", "port", "left side", "upper half", "right"} <= set(texts)
    assert "left" not in texts
    assert len(texts) == 2 * 5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"templates": ["a photo"]}, "must have {} once"),
        ({"templates": []}, "is empty"),
        ({"templates": ["a {}", "my {}."]}, "which data.templates has too"),
        ({"names": {"cat": "dog"}}, "'cat', which is no label"),
        ({"names": {"left": "right"}}, "two classes 'right'"),
        ({"names": {"left": []}}, "data.names.left"),
    ],
)
def test_wordings_that_cannot_be_are_refused(data: Path, changes: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_objective(recipe(data, data=changes))


@pytest.mark.parametrize(
    ("section", "changes", "said"),
    [
        ("train", {"smoothing": 0.1}, r"train.smoothing=0.1 is for labels"),
        ("train", {"z_loss": 1e-4}, r"train.z_loss=0.0001 is for scores over a vocabulary"),
        ("parallel", {"shard": 2}, r"parallel.shard=2: .*use parallel.data"),
        ("parallel", {"pipeline": 2}, r"parallel.pipeline=2"),
    ],
)
def test_what_cannot_be_trained_so_is_refused(
    data: Path, section: str, changes: dict[str, Any], said: str
) -> None:
    asked = recipe(data)
    asked = replace(asked, **{section: replace(getattr(asked, section), **changes)})
    with pytest.raises(ConfigError, match=said):
        open_objective(asked)


def test_a_model_without_two_towers_is_refused(data: Path) -> None:
    given = recipe(data).plain()
    tree = af.config.to_dict(replace(SPREAD["tags"], head=None))
    with pytest.raises(ConfigError, match="reads no images"):
        open_objective(make_recipe({**given, "model": tree}))
    with pytest.raises(ConfigError, match=r"model\.vision is missing"):
        make_recipe({"objective": "contrastive", "data": {"path": str(data)}})


def test_pictures_of_one_class_are_refused(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "cats").mkdir()
    for i in range(4):
        Image.new("RGB", (8, 8), (60 * i, 0, 0)).save(tmp_path / "cats" / f"{i}.png")
    asked = recipe(tmp_path, data={"image": [8, 8], "hold_out": 1})
    with pytest.raises(DataError, match=r"are of 1 class\(es\)"):
        open_objective(asked)


# --- figures --------------------------------------------------------------------------------------


def test_zero_shot_and_recall_by_hand() -> None:
    texts = unit(torch.tensor([[1.0, 0.2], [1.0, -0.4], [0.0, 1.0], [0.8, 1.0]]))
    said, wording = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    images = unit(torch.tensor([[1.0, 0.1], [0.5, 1.0], [1.0, 0.55], [-0.1, 1.0]]))
    wanted = torch.tensor([0, 1, 0, 1])
    assert zero_shot(images, wanted, texts, said, 2) == 1.0
    assert zero_shot(images, wanted, texts[wording == 1], said[wording == 1], 2) == 0.75
    assert worst_wording(images, wanted, texts, said, wording, 2) == 0.75
    assert recall(images, wanted, texts, said) == 1.0
    assert recall(images, torch.tensor([0, 1, 1, 1]), texts, said) == 0.75
    assert recall(texts, said, images, wanted) == 1.0


# --- a run ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    out = tmp_path_factory.mktemp("runs") / "halves"
    asked = recipe(data, train={"steps": 70, "save_every": 200, "average": 1})
    return out, train(asked, out, device="cpu").rows[-1]


def test_a_toy_set_is_learnt_and_told_in_words_never_seen(run: tuple[Path, Any]) -> None:
    row = run[1]
    assert row["validation_accuracy"] > 0.9
    assert row["validation_text_recall"] > 0.9
    assert row["validation_accuracy_worst"] > 0.5
    assert row["validation_image_recall"] > 0.6


def test_a_run_is_a_checkpoint_for_the_tasks(run: tuple[Path, Any]) -> None:
    out, _ = run
    pixels, labels = halves(12, seed=5)
    kit = af.open_image_pipeline(out)
    found = af.classify_image(kit, list(pixels), labels=list(SIDES), template="a photo of a {}.")
    right = [one.label == SIDES[label] for one, label in zip(found, labels, strict=True)]
    assert sum(right) >= 10
    near = af.search_images(kit, "a photo of a top.", list(pixels), top=1)[0]
    assert SIDES[labels[near.index]] == "top"
    assert read_recipe(out / "recipe.yaml").options.labels == SIDES


def test_evaluate_scores_the_test_split_in_words_never_seen(
    run: tuple[Path, Any], data: Path
) -> None:
    asked = ["evaluate", str(run[0]), "--data", str(data), "--split", "test", "--json"]
    found = json.loads(CliRunner().invoke(app, asked).output.splitlines()[-1])
    assert found["examples"] == 40
    assert found["accuracy"] > 0.85
    assert {"accuracy_worst", "text_recall", "image_recall"} <= set(found)


@pytest.mark.parametrize("sigmoid", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_that_goes_on_is_exact(data: Path, tmp_path: Path, sigmoid: bool) -> None:
    model = {"sigmoid": sigmoid}
    augment = {"crop": 1, "cutmix": 1.0}
    asked = recipe(data, model, data={"augment": augment}, train={"average": 1})
    straight = train(asked, tmp_path / "a", device="cpu").run.path
    half = replace(asked, train=replace(asked.train, steps=4))
    train(half, tmp_path / "b", device="cpu")
    train(None, tmp_path / "b", device="cpu", resume=True, overrides=["train.steps=8"])
    ours, theirs = (read_tensors(x / "model.safetensors") for x in (straight, tmp_path / "b"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


# --- several ranks --------------------------------------------------------------------------------


def ranks_look_at_all() -> None:
    """A worker: this rank's half of the pairs; what all sum up is the loss of the whole."""
    import torch.distributed as dist

    head, (text, image) = head_of(), vectors(8)
    meaning = torch.tensor([0, 1, 0, 2, 1, 0, 3, 3])
    eye = torch.eye(8).double()
    shares = torch.block_diag(*[0.8 * eye[:4, :4] + 0.2 * eye[:4, :4].roll(1, 0)] * 2)
    whole = pair_loss(head, text, image, meaning, shares)
    wanted = torch.autograd.grad(whole, [text, image, head.scale])
    mine = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    own, seen = (x.detach()[mine].requires_grad_() for x in (text, image))
    group = dist.new_group()
    loss = pair_loss(head, own, seen, meaning[mine], shares[mine, mine], group)
    found = torch.autograd.grad(loss, [own, seen, head.scale])
    total = loss.detach().clone()
    scale = found[2].clone()
    dist.all_reduce(total)
    dist.all_reduce(scale)
    torch.testing.assert_close(total, whole.detach(), atol=1e-10, rtol=0)
    torch.testing.assert_close(found[0], wanted[0][mine], atol=1e-10, rtol=0)
    torch.testing.assert_close(found[1], wanted[1][mine], atol=1e-10, rtol=0)
    torch.testing.assert_close(scale, wanted[2], atol=1e-10, rtol=0)


def ranks_train_as_one(folder: str, data: str) -> None:
    """A worker: two ranks with half of each batch have the losses of one with all of it."""
    import torch.distributed as dist

    plain, steps = {"augment": {}}, {"steps": 3, "save_every": 10, "average": 1}
    log = {"every": 1}
    whole = recipe(Path(data), data=plain, log=log, train={**steps, "batch_rows": 96})
    half = recipe(Path(data), data=plain, log=log, train={**steps, "batch_rows": 48})
    half = replace(half, parallel=replace(half.parallel, data=2))
    train(half, f"{folder}/two", device="cpu")
    if dist.get_rank() == 0:
        with by_oneself():
            train(whole, f"{folder}/one", device="cpu")
        one, two = (read_metrics(Path(folder) / x) for x in ("one", "two"))
        assert len(one) == len(two) == 4
        for row, other in zip(one, two, strict=True):
            for name in ("nll", "gradient_norm", "validation_nll"):
                assert row.get(name, 0) == pytest.approx(other.get(name, 0), rel=1e-4)


@pytest.mark.slow
def test_ranks_look_at_each_others_pairs(data: Path, tmp_path: Path) -> None:
    start(2, tmp_path / "loss", ranks_look_at_all)
    start(2, tmp_path / "runs", ranks_train_as_one, str(tmp_path / "runs"), str(data))
