"""Images are classified by recipe: learnt, augmented by place, scored, shown and used."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

import allformer as af
from allformer.checkpoint.weights import read_tensors
from allformer.cli.main import app
from allformer.errors import ConfigError, DataError
from allformer.families import preset
from allformer.generate.graph import WARM
from allformer.images.thumbnail import as_bytes
from allformer.train.batch import mapped
from allformer.train.loop import open_objective, train
from allformer.train.objectives.image_classification import ImageClassification
from allformer.train.predictions import Predictions
from allformer.train.recipe import Recipe, make_recipe
from allformer.train.step import Stepper, StepSettings
from allformer.train.stream import Place, micro_batches
from tests.drawn import halves, write_idx

SMALL = {"patch": 4, "dim": 16, "heads": 2, "layers": 2, "feed": 32}
EVERYTHING = {
    "crop": 1, "scale": [0.5, 1.0], "flip": 0.5, "randaugment": 2, "erase": 0.5, "mixup": 0.8,
    "cutmix": 1.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_idx(tmp_path_factory.mktemp("data") / "halves", 600, 80)


def recipe(
    data: Path, *, augment: Any = None, model: Any = None, hold_out: int = 40, **more: Any
) -> Recipe:
    return make_recipe(
        {
            "objective": "image-classification",
            "data": {"path": str(data), "hold_out": hold_out, "augment": augment or {}},
            "model": model or SMALL,
            "optim": {"name": "adamw", "rate": 5e-3},
            "schedule": {"kind": "constant", "warmup": 5},
            "train": {"steps": 150, "batch_rows": 32, "average": 1, "validate_every": 50, **more},
            "log": {"every": 20, "tensorboard": False},
        }
    )


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "halves"
    train(recipe(data, augment={"erase": 0.2}, best="accuracy"), out, device="cpu")
    return out


def opened(data: Path, **more: Any) -> ImageClassification:
    objective: ImageClassification = open_objective(recipe(data, **more))
    objective.encode(None, lambda line: None)
    return objective


# --- from data to a run that is used --------------------------------------------------------------


def test_a_small_vit_learns_which_half_is_bright(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [r for r in rows if "validation_accuracy" in r][-1]["validation_accuracy"] > 0.9
    assert af.load(run).config.head.labels == ("0", "1", "2", "3")


def test_the_test_split_is_scored_and_so_are_other_pictures(run: Path, tmp_path: Path) -> None:
    asked = ["evaluate", str(run), "--json", "--device", "cpu"]
    found = json.loads(CliRunner().invoke(app, asked).stdout)
    assert (found["split"], found["examples"]) == ("test", 80)
    assert found["accuracy"] > 0.9
    other = write_idx(tmp_path / "other", 24, 16)
    found = json.loads(CliRunner().invoke(app, [*asked, "--data", str(other)]).stdout)
    assert (found["split"], found["examples"]) == ("test", 16)
    found = json.loads(CliRunner().invoke(app, [*asked, "--split", "val"]).stdout)
    assert (found["split"], found["examples"]) == ("val", 40)


def test_a_run_classifies_a_file(run: Path, tmp_path: Path) -> None:
    from PIL import Image

    pixels, labels = halves(1, seed=7)
    Image.fromarray(pixels[0]).save(tmp_path / "x.png")
    asked = ["classify-image", str(run), str(tmp_path / "x.png"), "--json", "--device", "cpu"]
    found = json.loads(CliRunner().invoke(app, asked).stdout)
    assert found["labels"][0]["label"] == str(labels[0])


def test_the_report_has_pictures_labels_guesses_and_scores(run: Path) -> None:
    kept = Predictions.load(run)
    assert kept is not None
    assert len(kept.pictures) == 40
    assert sum(map(sum, kept.confusion)) == 40
    first = kept.pictures[0]
    assert as_bytes(first.image).startswith(b"\x89PNG")
    assert (first.wanted == first.given) == first.right


# --- what is done on the device -------------------------------------------------------------------


def test_what_is_drawn_depends_on_seed_epoch_and_place_alone(data: Path) -> None:
    objective = opened(data, augment=EVERYTHING)
    train = objective.recipe.train

    def drawn(begin: Place) -> list[Any]:
        stream = micro_batches(objective, train, objective.frame(), begin)
        return [objective.onto(next(stream)[0], "cpu") for _ in range(3)]

    torch.manual_seed(1)
    first = drawn(Place(0, 0))
    torch.manual_seed(2)
    again = drawn(Place(0, 1))
    assert torch.equal(first[1].pixels, again[0].pixels)
    assert torch.equal(first[2].labels, again[1].labels)
    later = drawn(Place(1, 0))
    assert len({batch.key for batch in first + later}) == 6


def test_a_resumed_run_with_every_augmentation_is_exact(data: Path, tmp_path: Path) -> None:
    model = {**SMALL, "drop_path": 0.3}
    settings: dict[str, Any] = {"augment": EVERYTHING, "model": model, "save_every": 4, "ema": 0.9}
    train(recipe(data, steps=8, **settings), tmp_path / "once", device="cpu")
    train(recipe(data, steps=4, **settings), tmp_path / "twice", device="cpu")
    train(None, tmp_path / "twice", device="cpu", resume=True, overrides=["train.steps=8"])
    once, twice = read_tensors(tmp_path / "once"), read_tensors(tmp_path / "twice")
    assert all(torch.equal(x, twice[name]) for name, x in once.items())


def test_labels_are_mixed_as_images_are_and_filler_has_none(data: Path) -> None:
    objective = opened(data, augment={"mixup": 0.8})
    examples, frame = objective.examples(0), objective.frame()
    assert frame is not None
    batch = objective.collate(examples, np.arange(20), frame)._replace(key=5)
    assert batch.pixels.shape[0] == frame.sentences == 32
    made = objective.onto(batch, "cpu")
    shares = made.labels.sum(1)
    torch.testing.assert_close(shares[:20], torch.ones(20))
    assert not shares[20:].any()
    assert (made.labels[:20] > 0).sum(1).max() == 2
    black = objective.normalised(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))
    assert torch.equal(made.pixels[20:], black.expand(12, -1, -1, -1))


def test_validation_sees_images_as_the_tasks_do(data: Path, run: Path) -> None:
    from allformer.images import load_processor

    objective = opened(data, augment=EVERYTHING)
    batch = objective.collate(objective.validation, np.arange(6))
    made = objective.onto(batch, "cpu").pixels
    wanted = load_processor(run)([x[0] for x in batch.pixels.numpy()])
    torch.testing.assert_close(made, wanted, atol=1e-6, rtol=0)


def test_the_loss_is_torchs_with_smoothing_and_sums_over_images(data: Path) -> None:
    objective = opened(data)
    model = af.build(objective.config(None), seed=0).double().eval()
    batch = objective.onto(objective.collate(objective.examples(0), np.arange(10)), "cpu")
    batch = batch._replace(pixels=batch.pixels.double(), labels=batch.labels.double())
    loss, nll = objective.loss(model, batch, smoothing=0.1)
    logits, labels = model(pixel_values=batch.pixels).logits, batch.labels.argmax(1)
    wanted = F.cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(nll, F.cross_entropy(logits, labels, reduction="sum"))


def test_a_batch_that_is_filled_up_gives_the_same_step(data: Path) -> None:
    found = []
    for framed in (False, True):
        objective = opened(data, augment={"flip": 0.5, "cutmix": 1.0})
        model = af.build(objective.config(None), seed=0).train()
        stepper = Stepper(model, objective, StepSettings(smoothing=0.1))
        frame = objective.frame() if framed else None
        batch = objective.collate(objective.examples(0), np.arange(20), frame)._replace(key=3)
        stepper([objective.onto(batch, "cpu")], 1e-3)
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*found, atol=2e-5, rtol=0)


# --- what models and data it takes ----------------------------------------------------------------


def test_a_preset_is_fitted_to_the_images(data: Path) -> None:
    change = {"encoder.source.patch": 4, "encoder.source.image": [224, 224],
              "encoder.position.shape": [56, 56]}  # fmt: skip
    objective = opened(data, model={"preset": "vit-tiny", "change": change})
    tree = objective.config(None)
    assert (tree.encoder.source.image, tree.encoder.source.channels) == ((8, 8), 1)
    assert tree.encoder.position.shape == (2, 2)
    assert tree.head.at == "first"


def test_a_trained_vit_goes_on_with_other_labels(run: Path, data: Path, tmp_path: Path) -> None:
    """The body, its size and its mean stay; the head is fresh where it is asked for."""
    folders = tmp_path / "halves"
    from PIL import Image

    pixels, labels = halves(24, seed=5)
    for i, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        folder = folders / "train" / ("left-right" if label < 2 else "above-below")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).resize((20, 16)).save(folder / f"{i}.png")
    model = {"checkpoint": str(run), "head": {"kind": "classes"}}
    objective = opened(folders, model=model, hold_out=4)
    tree = objective.config(None)
    assert tree.head.labels == ("above-below", "left-right")
    assert objective.data.image == (8, 8)
    assert objective.examples(0).pixels(np.arange(2)).shape == (2, 1, 8, 8)
    train(recipe(folders, model=model, hold_out=4, steps=1), tmp_path / "on", device="cpu")
    assert af.load(tmp_path / "on").config.head.labels == ("above-below", "left-right")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"dim": 32}, r"model\.patch is missing"),
        ({"patch": 4, "dim": 16, "heads": 3}, r"model\.heads=3 must divide model\.dim=16"),
        ({"preset": "bert-base"}, "reads no images; give a ViT"),
    ],
)
def test_a_model_that_cannot_see_is_refused(data: Path, model: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        opened(data, model=model)


def test_labels_that_the_model_has_not_are_refused(run: Path, tmp_path: Path) -> None:
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / name / "1.png")
    asked = ["evaluate", str(run), "--data", str(tmp_path), "--device", "cpu"]
    result = CliRunner().invoke(app, asked)
    assert isinstance(result.exception, DataError)
    assert "labels that the model has not: cat, dog" in str(result.exception)


def test_a_small_vit_can_be_written_for_transformers(data: Path, tmp_path: Path) -> None:
    objective = opened(data, model={**SMALL, "drop_path": 0.2})
    af.save(af.build(objective.config(None)), tmp_path / "vit", family="vit")
    assert json.loads((tmp_path / "vit" / "config.json").read_text())["num_channels"] == 1
    assert preset("vit-tiny").encoder.blocks[0].drop_path == 0


# --- on a GPU ---------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_batch_is_made_ready_without_waiting_for_the_device_and_as_on_a_cpu(data: Path) -> None:
    objective = opened(data, augment=EVERYTHING | {"scale": None})
    batch = objective.collate(objective.examples(0), np.arange(20), objective.frame())
    for key in range(6):  # by hand, captured, and replayed
        keyed = batch._replace(key=key)
        wanted = objective.onto(keyed, "cpu")
        moved = mapped(keyed, lambda x: x.pin_memory())
        if key > WARM:  # what is made once is made
            torch.cuda.set_sync_debug_mode("error")
        try:
            found = objective.onto(moved, "cuda")
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.testing.assert_close(found.pixels.cpu(), wanted.pixels, atol=1e-4, rtol=0)
        torch.testing.assert_close(found.labels.cpu(), wanted.labels)
    (still,) = objective._stage._stills.values()
    assert still.graph.captured is not None, still.graph.refused


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_step_with_dropped_paths_is_captured_and_learns(data: Path, tmp_path: Path) -> None:
    model = {**SMALL, "drop_path": 0.1}
    asked = recipe(data, augment={"erase": 0.2}, model=model, precision="bf16", steps=200)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="no CUDA graph")
        train(asked, tmp_path / "run", device="cuda", compile=True)
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [r["nll"] for r in rows if "nll" in r][-1] < 0.9
