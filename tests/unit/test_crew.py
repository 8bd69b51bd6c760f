"""Processes that read images: the same pixels, in order, and nobody is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from allformer.data.pictures.folder import read_folder
from allformer.errors import ConfigError, DataError
from allformer.images import processor as processing
from allformer.images.crew import Crew, can_crew, usual_crew
from allformer.images.processor import Processor
from allformer.images.settings import Settings, make_settings
from allformer.train.objectives.image_classification import ImageClassification
from allformer.train.pictures import gallery as galleries
from allformer.train.pictures.gallery import Gallery
from allformer.train.recipe import make_recipe
from allformer.train.stream import Place, micro_batches

Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of eight JPEGs of different sizes."""
    home = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for i in range(16):
        place = home / "train" / ("cat" if i % 2 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (20 + i, 30 - i, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{i:02}.jpg")
    return home


def settings(**more: Any) -> Settings:
    size = {"size": {"height": 12, "width": 10}}
    return make_settings({"image_processor_type": "ViTImageProcessor", **size, **more})


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """One for all tests: it takes seconds to begin. It is asked in `settings()`."""
    with Crew(settings(), 2) as found:
        yield found
    assert found._helper.poll() == 0  # it has ended, and so have those whom it waits for


@pytest.fixture
def lent(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whoever wants a crew gets that one, and does not end it; gives what it was asked for."""
    asked: list[str] = []

    class Lent:
        def __init__(self, how: Settings, count: int) -> None:
            assert how.shape == settings().shape

        def submit(self, source: Any, name: str, into: Any = None) -> Any:
            asked.append(Path(source).name)
            return crew.submit(source, name, into)

        def close(self) -> None:
            asked.append("closed")

        def __enter__(self) -> Lent:
            return self

        def __exit__(self, *error: object) -> None:
            self.close()

    monkeypatch.setattr(galleries, "Crew", Lent)
    monkeypatch.setattr(processing, "Crew", Lent)
    return asked


def test_pixels_are_those_of_this_process_and_come_in_order(crew: Crew, folder: Path) -> None:
    paths = sorted(folder.glob("train/*/*.jpg"))
    into = np.zeros((len(paths), 3, 12, 10), np.uint8)
    reading = [crew.submit(path, "x", row) for path, row in zip(paths, into, strict=True)]
    for path, row, each in zip(paths, into, reading, strict=True):
        assert np.shares_memory(each.result(), row)
        assert np.array_equal(row, Processor(settings())._bytes(path, "x")[0])
    assert np.array_equal(crew.submit(paths[3].read_bytes()).result(), into[3])


def test_what_is_wrong_with_a_file_is_said_as_ever(
    crew: Crew, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"bad\.jpg is no image that can be read"):
        crew.submit(tmp_path / "bad.jpg").result()
    cut = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x03"  # an entry has 12 bytes
    with Image.open(next(folder.glob("train/cat/*.jpg"))) as image:
        image.save(tmp_path / "odd.jpg", exif=cut)
    with pytest.warns(UserWarning, match="EXIF"):
        found = crew.submit(tmp_path / "odd.jpg").result()
    with pytest.warns(UserWarning, match="EXIF"):
        wanted = Processor(settings())._bytes(tmp_path / "odd.jpg", "x")[0]
    assert np.array_equal(found, wanted)


def test_ctrl_c_is_the_callers_alone(crew: Crew, folder: Path) -> None:
    os.kill(crew._helper.pid, signal.SIGINT)
    assert crew.submit(next(folder.glob("train/cat/*.jpg"))).result().any()


def test_a_process_that_has_ended_is_told(crew: Crew, folder: Path) -> None:
    own = [crew._free.get() for _ in range(2)]
    ours, theirs = Pipe()
    theirs.close()
    crew._free.put((ours, own[0][1]))
    with pytest.raises(DataError, match="has ended while it read cat"):
        crew.submit(next(folder.glob("train/cat/*.jpg")), "cat").result()
    crew._free.get()
    for one in own:
        crew._free.put(one)


def test_a_processor_reads_many_files_by_processes(
    lent: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(path) for path in sorted(folder.glob("train/*/*.jpg"))]
    wanted = list(Processor(settings()).batches(paths, 6, workers=3))
    assert not lent
    monkeypatch.setattr(processing, "FEW", 10)
    found = list(Processor(settings()).batches(paths, 6, workers=3))
    assert lent == [*(Path(path).name for path in paths), "closed"]
    assert [len(x) for x in found] == [6, 6, 4]
    assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))
    assert not can_crew(settings(size={"shortest_edge": 12}))  # who knows how large they will be


def recipe(workers: int | None) -> Any:
    return make_recipe({
        "objective": "image-classification",
        "data": {"path": "x", "image": [12, 10], "hold_out": 2, "workers": workers},
        "model": {"patch": 2, "dim": 8, "heads": 2, "layers": 1, "feed": 8},
        "train": {"steps": 2, "batch_rows": 4},
    })  # fmt: skip


def test_batches_are_the_same_and_the_next_is_begun_before_it_is_asked_for(
    lent: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    monkeypatch.setattr(galleries, "MOST_BYTES", 0)  # nothing is kept
    for workers in (0, 2):
        objective = ImageClassification(recipe(workers))
        objective.open(read_folder(folder))
        objective.encode(None, lambda line: None)
        stream = micro_batches(objective, objective.recipe.train, None, Place(0, 1))
        found.append([next(stream)[0].pixels for _ in range(3)])
        if workers:
            assert len(set(lent)) == len(lent) == 12  # the second, the third, the fourth: once each
        stream.close()
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


def test_pictures_that_fit_are_read_once_and_the_processes_end(
    lent: list[str], folder: Path
) -> None:
    pictures = read_folder(folder)["train"]
    gallery = Gallery(pictures, settings())
    gallery.workers = 2
    first = gallery.pixels(np.array([3, 1]))
    assert len(lent) == 17
    assert lent[-1] == "closed"
    gallery.expect(np.array([4]))
    plain = Gallery(pictures, settings())
    plain.workers = 0
    assert np.array_equal(first, plain.pixels(np.array([3, 1])))
    assert len(lent) == 17


def test_how_many_is_asked_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    whole = usual_crew()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert usual_crew() == max(1, whole // 2)
    with pytest.raises(ConfigError, match=r"data\.workers=-1"):
        recipe(-1)
