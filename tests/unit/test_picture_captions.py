"""Tables of image files and captions: what is read, what is refused, and a run over them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allformer.data.pictures import open_pictures
from allformer.errors import DataError
from allformer.train.loop import train
from allformer.train.pictures.captions import made_captions, own_captions
from allformer.train.recipe import make_recipe

Image = pytest.importorskip("PIL.Image")
COLOURS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220)}


def write(folder: Path, count: int = 4, table: str = "train.tsv", seed: int = 0) -> list[str]:
    """Squares of one colour each in `images`, and a table that says which; its lines."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    draw, lines = np.random.default_rng(seed), []
    for i in range(count):
        name = list(COLOURS)[i % len(COLOURS)]
        noise = draw.integers(-20, 20, (8, 8, 3))
        pixels = (np.array(COLOURS[name]) + noise).clip(0, 255).astype(np.uint8)
        file = f"{table.split('.')[0]}-{i}.png"
        Image.fromarray(pixels).save(folder / "images" / file)
        lines.append(f"{file}\ta {name} square")
    (folder / table).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return lines


def test_a_line_is_a_file_and_its_caption(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, 2, "val.tsv")
    found = open_pictures(tmp_path)
    assert {name: len(part) for name, part in found.items()} == {"train": 4, "val": 2}
    first = found["train"][0]
    assert first.captions == ("a red square",)
    assert first.image == tmp_path / "images" / "train-0.png"
    assert found["train"].labels == ()
    assert found["train"].pixels is None


def test_a_header_may_name_the_columns_in_any_order_and_a_table_may_be_packed(
    tmp_path: Path,
) -> None:
    lines = write(tmp_path)
    turned = ["caption\tid\timage", *(f"{y}\t7\t{x}" for x, y in (x.split("\t") for x in lines))]
    (tmp_path / "train.tsv").unlink()
    with gzip.open(tmp_path / "photos.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(turned))
    found = open_pictures(tmp_path)["train"]
    assert [found[i].captions for i in range(2)] == [("a red square",), ("a green square",)]
    assert len(open_pictures(tmp_path / "photos.tsv.gz", "tsv")["train"]) == 4


def test_captions_of_one_image_are_put_together(tmp_path: Path) -> None:
    write(tmp_path, 1)
    lines = [f"train-0.png#{i}\t{x}" for i, x in enumerate(("a square", "red", "a square"))]
    (tmp_path / "train.tsv").write_text("\n".join(lines), encoding="utf-8")
    found = open_pictures(tmp_path)["train"]
    assert len(found) == 1
    assert found[0].captions == ("a square", "red")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train-0.png a square", "line 5: there is no tab"),
        ("train-0.png\t ", r"line 5: the caption of train-0\.png is empty"),
        ("nowhere.png\tnothing", r"line 5: there is no image nowhere\.png"),
    ],
)
def test_what_cannot_be_read_is_refused_by_file_and_line(
    tmp_path: Path, line: str, said: str
) -> None:
    lines = write(tmp_path)
    (tmp_path / "train.tsv").write_text("\n".join([*lines, line]), encoding="utf-8")
    with pytest.raises(DataError, match=said):
        open_pictures(tmp_path)


def test_pictures_without_captions_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    pictures: Any = open_pictures(tmp_path)["train"]
    pictures.files[2] = (pictures.files[2][0], ())
    with pytest.raises(DataError, match=r"train-2\.png has no caption"):
        own_captions(pictures, "contrastive")


def test_a_picture_is_given_captions_of_its_own_alone(tmp_path: Path) -> None:
    write(tmp_path)
    pictures: Any = open_pictures(tmp_path)["train"]
    pictures.files[1] = (pictures.files[1][0], ("a red square", "another"))
    captions = own_captions(pictures, "contrastive")
    assert captions.texts == ("a red square", "another", "a blue square")
    seen = [{captions.texts[captions.drawn(0, epoch)[i]] for epoch in range(40)} for i in range(4)]
    assert seen == [
        {"a red square"}, {"a red square", "another"}, {"a blue square"}, {"a red square"},
    ]  # fmt: skip


def test_every_wording_of_a_class_is_drawn_and_no_other(tmp_path: Path) -> None:
    names = [("cat",), ("dog", "hound")]
    captions = made_captions(np.array([1, 0, 1]), names, ("a {}", "one {}", "{}"))
    drawn = np.stack([captions.drawn(epoch) for epoch in range(200)])
    wanted = {f"{x}{name}" for x in ("a ", "one ", "") for name in names[1]}
    assert {captions.texts[i] for i in drawn[:, 0]} == wanted
    assert {captions.texts[i] for i in drawn[:, 1]} == {"a cat", "one cat", "cat"}
    assert captions.meaning.tolist() == [0] * 3 + [1] * 6
    assert captions.wording.tolist() == [0, 1, 2] * 3


def test_a_table_is_learnt_from(tmp_path: Path) -> None:
    write(tmp_path / "data", 48)
    write(tmp_path / "data", 12, "val.tsv", seed=1)
    small = {"dim": 16, "heads": 2, "feed": 32, "layers": 1, "dropout": 0.0}
    recipe = make_recipe(
        {
            "objective": "contrastive",
            "data": {"path": str(tmp_path / "data"), "image": [8, 8]},
            "model": {"vision": {"patch": 4, **small}, "text": small, "width": 8},
            "tokenizer": {"kind": "bpe", "vocab": 60},
            "optim": {"name": "adamw", "rate": 1e-2},
            "schedule": {"kind": "constant", "warmup": 3},
            "train": {"steps": 30, "batch_rows": 16, "save_every": 100, "average": 1},
            "log": {"every": 10, "tensorboard": False},
        }
    )
    row = train(recipe, tmp_path / "run", device="cpu").rows[-1]
    assert "validation_accuracy" not in row
    assert row["validation_text_recall"] > 0.9
    assert row["validation_image_recall"] > 0.9
