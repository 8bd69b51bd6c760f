"""Drawing: what text-to-image learns, what comes of a text, and which of it a CLIP keeps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from PIL import Image
from torch.nn import functional as F
from typer.testing import CliRunner

import allformer as af
from allformer.cli.main import app
from allformer.codecs import DVAE
from allformer.config import ColourHead, DecoderOnly
from allformer.core.model import build
from allformer.data.fixed_rows import fixed_rows
from allformer.errors import ConfigError, LengthError, TaskError
from allformer.families import imagegpt
from allformer.generate.codes import draw_codes, pick
from allformer.images import Processor
from allformer.images.settings import make_settings
from allformer.tasks.drawing_kit import TextKit
from allformer.train.batch import uncounted
from allformer.train.loop import open_objective, train
from allformer.train.predictions import Predictions
from allformer.train.recipe import Recipe, make_recipe
from allformer.train.sections.vocabulary import Vocabulary
from allformer.train.stream import Place, micro_batches
from allformer.train.tokenizing import make_tokenizer
from tests import seeing
from tests.drawn import write_idx
from tests.models import loud

NAMES = {"0": "left", "1": "right", "2": "top", "3": "arch"}
TEMPLATES = ["a picture of a {}", "{}"]
TEXT = 8


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = prepared(tmp_path_factory.mktemp("drawing"), steps=6)
    seeing.clip(root / "clip")
    return root


def prepared(root: Path, steps: int) -> Path:
    """Pictures of which one half is bright, a codec that nobody trained, and a short run."""
    write_idx(root / "data", 90, 20)
    tree = DVAE(codes=12, image=(8, 8), channels=1, hidden=8, groups=2, per_group=1, start=8)
    af.save(build(tree, seed=0).eval(), root / "codec", family="allformer")
    train(recipe(root, steps=steps), root / "run", device="cpu")
    return root


def recipe(
    root: Path, steps: int = 4, data: dict[str, Any] | None = None, **options: Any
) -> Recipe:
    own = {"path": str(root / "data"), "hold_out": 20, "text": TEXT, "templates": TEMPLATES}
    return make_recipe(
        {
            "objective": {"is": "text-to-image", "codec": str(root / "codec"), **options},
            "data": {**own, "names": NAMES, **(data or {})},
            "tokenizer": {"kind": "bpe", "vocab": 80},
            "model": {"dim": 16, "heads": 2, "layers": 2, "feed": 32, "dropout": 0.0},
            "optim": {"name": "adamw", "rate": 1e-2},
            "train": {"steps": steps, "batch_rows": 16, "save_every": 100, "average": 1},
            "log": {"every": 2, "tensorboard": False},
        }
    )


def opened(root: Path, **options: Any) -> tuple[Any, Any]:
    """An objective with its examples, and a loud model for it."""
    objective = open_objective(recipe(root, **options))
    tokenizer = make_tokenizer(objective, lambda line: None)
    objective.encode(tokenizer, lambda line: None)
    return objective, loud(objective.config(Vocabulary.of(tokenizer)))


# --- learning -------------------------------------------------------------------------------------


def check_loss(root: Path) -> None:
    objective, model = opened(root)
    batch = objective.collate(objective.examples(0), np.arange(7), objective.frame())
    assert batch.text.shape == (16, TEXT), "filled up to the frame"
    loss, nll = objective.loss(model, batch)
    words, pad = model.config.decoder.source.words, model.config.decoder.source.pad_id
    ids = torch.cat([batch.text, batch.codes + words], 1)[:7]
    logits = model(input_ids=ids).logits[:, :-1]
    each = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    text = each[:, : TEXT - 1][ids[:, 1:TEXT] != pad]
    image = each[:, TEXT - 1 :]
    assert batch.counts == (image.numel(), text.numel())
    torch.testing.assert_close(nll, torch.stack([image.sum(), text.sum()]))
    torch.testing.assert_close(loss, torch.stack([image.sum() * 7 / 8, text.sum() / 8]))


def test_the_loss_is_an_eighth_text_and_seven_eighths_image(there: Path) -> None:
    check_loss(there)


def test_captions_are_drawn_anew_each_epoch_some_left_out_and_images_mirrored(there: Path) -> None:
    objective, _ = opened(there, data={"flip": True}, drop=0.3)
    first, again, other = (objective.examples(i) for i in (0, 0, 1))
    assert np.array_equal(first.which, again.which)
    assert not np.array_equal(first.which, other.which)
    assert 0.1 < (first.which == 0).mean() < 0.5, "the empty caption is the first"
    assert not (objective.validation.which == 0).any()
    codes = objective.splits[0].codes
    pixels = torch.from_numpy(np.stack([objective.pictures[0][i].image for i in range(5)]))
    pixels = pixels.permute(0, 3, 1, 2)
    for side, x in zip(codes, (pixels, pixels.flip(-1)), strict=True):
        assert side[:5].tolist() == objective.codec.encode(x).tolist()
    drawn = (first.codes[:, None] == codes.transpose(1, 0, 2)).all(-1)
    assert drawn.any(1).all()
    assert len(set(drawn.argmax(1).tolist())) == 2


def test_captions_come_from_templates_or_from_the_pictures(there: Path, tmp_path: Path) -> None:
    objective, _ = opened(there)
    assert len(objective.texts()) == 8
    assert "a picture of a arch" in objective.texts()
    for i, image in enumerate(np.arange(3 * 64, dtype=np.uint8).reshape(3, 8, 8)):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    lines = ["0.png\tone thing", "0.png\tthe same thing", "1.png\tanother", "2.png\tone thing"]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    data = {"path": str(tmp_path), "names": {}, "hold_out": 1}
    objective, _ = opened(there, data=data)
    assert set(objective.texts()) <= {"one thing", "the same thing", "another"}
    assert len(objective.examples(0)) == 2


def test_rows_of_one_length() -> None:
    rows, cut = fixed_rows([[1, 5, 2], [1, 5, 6, 7, 2]], 4, 0)
    assert (rows.tolist(), cut) == ([[1, 5, 2, 0], [1, 5, 6, 2]], 1)


def test_codes_are_kept_for_the_next_time(there: Path, tmp_path: Path) -> None:
    data = {"cache": str(tmp_path / "kept"), "flip": True}
    first, _ = opened(there, data=data)
    files = sorted((tmp_path / "kept").iterdir())
    assert len(files) == 3, "both sides of those to train on, one of the others"
    made = {file: file.stat().st_mtime_ns for file in files}
    again, _ = opened(there, data=data)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "kept").iterdir()} == made
    for one, other in zip(first.splits, again.splits, strict=True):
        assert np.array_equal(one.codes, other.codes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"codec": None}, "objective.codec is missing"),
        ({"data": {"image": [9, 9]}}, r"data.image=\(9, 9\) is not what objective.codec reads"),
        ({"data": {"channels": 3}}, "data.channels=3"),
        ({"data": {"mean": [0.5]}}, "data.mean"),
    ],
)
def test_what_does_not_fit_is_refused(there: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        open_objective(recipe(there, **changes))


def test_another_model_is_refused_and_a_tree_is_fitted(there: Path) -> None:
    asked = recipe(there).plain()
    with pytest.raises(ConfigError, match="needs a DecoderOnly with JoinedHead"):
        open_objective(make_recipe({**asked, "model": {"preset": "gpt2"}}))
    tree = open_objective(make_recipe({**asked, "model": {"preset": "dalle"}})).config(
        Vocabulary(30)
    )
    source = tree.decoder.source
    assert (source.vocab, source.words, source.length, source.shape) == (42, 30, TEXT, (4, 4))
    assert {block.attention.mixer.width for block in tree.decoder.blocks} == {4}


def test_a_run_keeps_what_it_draws_for_its_report(there: Path) -> None:
    found = Predictions.load(there / "run")
    assert found is not None
    assert [len(seen.drawn) for seen in found.pictures] == [8] * 4
    assert found.pictures[2].wanted == "a picture of a top"
    assert found.pictures[0].drawn[0].image


@pytest.mark.slow
def test_two_batches_share_one_graph(there: Path) -> None:
    objective, model = opened(there)
    items = micro_batches(objective, objective.recipe.train, objective.frame(), Place())
    batches = [next(items)[0] for _ in range(6)]  # the fifth ends an epoch, and is filled up
    items.close()
    torch._dynamo.reset()
    graphs = torch._dynamo.testing.CompileCounter()
    step = torch.compile(
        lambda batch: objective.loss(model, batch), backend=graphs, fullgraph=True, dynamic=False
    )
    for batch in batches:
        loss, _ = step(uncounted(batch))
        torch.testing.assert_close(loss, objective.loss(model, batch)[0])
    assert graphs.frame_count == 1


# --- drawing --------------------------------------------------------------------------------------


def same(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(a.image, b.image) for a, b in zip(one, other, strict=True))


def test_a_run_draws_with_its_own_codec_the_same_by_the_same_seed(
    there: Path, tmp_path: Path
) -> None:
    shutil.copytree(there / "run", tmp_path / "moved")
    kit = af.open_drawing(tmp_path / "moved")
    found = af.draw(kit, "a picture of a left", count=5)
    assert [one.image.shape for one in found] == [(8, 8, 1)] * 5
    assert found[0].image.dtype == np.uint8
    assert same(found, af.draw(kit, "a picture of a left", count=5, batch=2)), "batches matter"
    assert not same(found, af.draw(kit, "a picture of a left", count=5, seed=1))
    both = af.draw(kit, ["a picture of a left", "right"], count=5, batch=3)
    assert same(found, both[0])
    assert [one.text for one in both[1]] == ["right"] * 5
    heard: list[int] = []
    af.draw(kit, count=3, batch=2, progress=heard.append)
    assert heard == [2, 3]
    shutil.rmtree(tmp_path / "moved" / "codec")
    with pytest.raises(TaskError, match="no folder codec/"):
        af.open_drawing(tmp_path / "moved")


def check_codes(root: Path, guidance: float = 1.0) -> None:
    """Step by step with what was read before, as from the whole row each time."""
    kit = af.open_drawing(root / "run")
    assert isinstance(kit, TextKit)
    model = loud(kit.model.config)
    rows = kit.rows(["a picture of a left", "right", ""])
    which, source = torch.tensor([1, 0, 1]), kit.source
    noise = 1 - torch.rand(3, source.cells, generator=torch.Generator().manual_seed(0)).double()
    options = {"temperature": 0.8, "top_k": 7}
    found = draw_codes(model, rows[:2], which, noise, guidance=guidance, empty=rows[2], **options)
    ids = rows[which]
    for place in range(source.cells):
        with torch.no_grad():
            scores = model(input_ids=ids).logits[:, -1, source.words :]
            none = torch.cat([rows[2].expand(3, -1), ids[:, source.length :]], 1)
            without = model(input_ids=none).logits[:, -1, source.words :]
        code = pick(without + guidance * (scores - without), noise[:, place], **options)
        assert code.tolist() == found[:, place].tolist()
        ids = torch.cat([ids, code[:, None] + source.words], 1)


@pytest.mark.parametrize("guidance", [1.0, 2.5])
def test_codes_are_drawn_as_from_the_whole_row(there: Path, guidance: float) -> None:
    check_codes(there, guidance)


def check_pick() -> None:
    """Over all of 0 … 1, each code as often as its share; of the likeliest few alone."""
    scores = torch.tensor([[0.0, 1.0, -1.0, 2.0, 0.5]])
    chance = (torch.arange(2000) + 0.5) / 2000
    for temperature, top_k in ((1.0, None), (0.5, None), (1.0, 2), (2.0, 3)):
        found = pick(scores.expand(2000, -1), chance, temperature, top_k)
        logits = scores[0] / temperature
        if top_k is not None:
            logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], float("-inf"))
        shares = torch.bincount(found, minlength=5) / 2000
        torch.testing.assert_close(shares, logits.softmax(-1), rtol=0, atol=1e-3)
    ends = torch.tensor([1e-300, 1.0], dtype=torch.float64)
    some = torch.tensor([[-9.0, 0.0, 3.0]]).expand(2, -1)
    assert pick(some, ends, 1.0, 2).tolist() == [1, 2], "what is left out is never drawn"


def test_a_code_is_drawn_as_often_as_it_is_likely() -> None:
    check_pick()


def test_a_clip_keeps_the_nearest(there: Path) -> None:
    kit, clip = af.open_drawing(there / "run"), af.open_image_pipeline(there / "clip")
    found = af.draw(kit, "left", count=2, rerank=clip, candidates=9)
    every = af.draw(kit, "left", count=9)
    scores = af.image_similarity(clip, [one.image for one in every], "left")
    order = scores.argsort(descending=True)[:2].tolist()
    assert same(found, [every[i] for i in order])
    assert [one.score for one in found] == pytest.approx(scores[order].tolist())
    assert len(af.draw(kit, "left", count=1, rerank=there / "clip")) == 1


def test_what_cannot_be_drawn_is_refused(there: Path, tmp_path: Path) -> None:
    kit = af.open_drawing(there / "run")
    for options, why in (
        ({"count": 0}, "count=0"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"top_k": 0}, "top_k=0"),
        ({"rerank": there / "clip", "candidates": 2, "count": 3}, "candidates=2"),
    ):
        with pytest.raises(ConfigError, match=why):
            af.draw(kit, "left", **options)
    with pytest.raises(ConfigError, match="rerank chooses"):
        af.draw(kit, rerank=there / "clip")
    with pytest.raises(LengthError, match="reads 8 of a caption"):
        af.draw(kit, "a picture " * 9)
    with pytest.raises(TaskError, match="does not draw"):
        af.open_drawing(there / "clip")


def test_imagegpt_draws_pixel_after_pixel_without_a_text(tmp_path: Path) -> None:
    sizes = {"vocab_size": 10, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 20}
    tree = imagegpt.FAMILY.make(sizes)
    assert isinstance(tree, DecoderOnly)
    assert isinstance(tree.head, ColourHead)
    model = loud(tree)
    af.save(model, tmp_path)
    colours = np.random.default_rng(0).uniform(-1, 1, (9, 3)).tolist()
    raw = {"image_processor_type": "ImageGPTImageProcessor", "clusters": colours}
    Processor(make_settings({**raw, "size": {"height": 4, "width": 5}})).save(tmp_path)
    found = af.draw(tmp_path, count=3)
    assert [one.image.shape for one in found] == [(4, 5, 3)] * 3
    assert not same(found[:1], found[1:2])
    (likely,) = af.draw(tmp_path, count=1, top_k=1)
    ids = model.generate(torch.tensor([[9]]), max_new_tokens=20)[0, 1:]
    painted = np.rint(127.5 * (np.array(colours)[ids] + 1)).astype(np.uint8)
    assert np.array_equal(likely.image, painted.reshape(4, 5, 3))
    with pytest.raises(ConfigError, match="reads no text"):
        af.draw(tmp_path, "a cat")
    with pytest.raises(TaskError, match="guidance=2"):
        af.draw(tmp_path, guidance=2.0)


def test_the_verb_writes_a_grid_and_tells_where_each_image_is(there: Path, tmp_path: Path) -> None:
    out, run = tmp_path / "grid.png", CliRunner()
    asked = ["draw", str(there / "run"), "left", "right", "--count", "3", "--out", str(out)]
    said = run.invoke(app, [*asked, "--rerank", str(there / "clip"), "--json"])
    assert said.exit_code == 0, said.output
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    assert [(row["text"], row["row"], row["column"]) for row in rows[2:5]] == [
        ("left", 0, 2), ("right", 1, 0), ("right", 1, 1),
    ]  # fmt: skip
    assert rows[0]["score"] >= rows[1]["score"]
    assert Image.open(out).size == (3 * 96 + 8, 2 * 96 + 4)
    said = run.invoke(app, [*asked[:3], "--count", "5", "--out", str(out)])
    assert "5 images in" in said.output
    assert Image.open(out).size == (3 * 96 + 8, 2 * 96 + 4)
    refused = run.invoke(app, [*asked[:3], "--out", str(tmp_path / "grid.jpg")])
    assert "grid.jpg writes a PNG; give x.png" in str(refused.exception)
    assert not (tmp_path / "grid.jpg").exists()
