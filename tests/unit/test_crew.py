"""Processes that read images: the same pixels, in order, and nobody is left behind."""

from __future__ import annotations

import gc
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
from allformer.images import crew as crews
from allformer.images.crew import Crew, can_crew, read_pixels, usual_crew
from allformer.images.processor import Processor
from allformer.images.read import read_image
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
        for pipe in found._pipes:
            assert pipe.poll(60)  # until then threads would read
        yield found
        assert len(found._begun) == 2
    assert found._helper.poll() is not None


@pytest.fixture
def lent(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whoever wants a crew gets that one, and does not end it; gives what it was asked for."""
    asked: list[str] = []

    class Lent:
        def __init__(self, how: Settings, count: int, enough: int | None = None) -> None:
            assert how.shape == settings().shape

        def read(self, images: Any) -> Any:
            images = list(images)
            asked.extend(Path(source).name for source, _ in images)
            return crew.read(images)

        def fill(self, images: Any, out: Any) -> Any:
            asked.extend(Path(source).name for source, _ in images)
            return crew.fill(images, out)

        def close(self) -> None:
            asked.append("closed")

        def __enter__(self) -> Lent:
            return self

        def __exit__(self, *error: object) -> None:
            self.close()

    monkeypatch.setattr(galleries, "Crew", Lent)
    monkeypatch.setattr(crews, "Crew", Lent)
    return asked


def test_pixels_are_those_of_this_process_and_come_in_order(crew: Crew, folder: Path) -> None:
    paths = sorted(folder.glob("train/*/*.jpg"))
    paths = [paths[i % 16] for i in range(37)]
    wanted = np.stack([Processor(settings())._bytes(path, "x")[0] for path in paths])
    named = [(path if i % 3 else path.read_bytes(), "x") for i, path in enumerate(paths)]
    assert np.array_equal(np.stack(list(crew.read(iter(named)))), wanted)
    for count in (37, 3, 1):
        out = np.zeros((count, 3, 12, 10), np.uint8)
        for each in crew.fill(named[:count], out):
            each.result()
        assert np.array_equal(out, wanted[:count])
    assert crew.fill([], out[:0]) == list(crew.read([])) == []


def test_what_is_wrong_with_a_file_is_said_as_ever(
    crew: Crew, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"bad\.jpg is no image that can be read"):
        list(crew.read([(next(folder.glob("train/cat/*.jpg")), ""), (tmp_path / "bad.jpg", "")]))
    cut = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x03"  # an entry has 12 bytes
    with Image.open(next(folder.glob("train/cat/*.jpg"))) as image:
        image.save(tmp_path / "odd.jpg", exif=cut)
    with pytest.warns(UserWarning, match="EXIF"):
        found = crew.submit([(tmp_path / "odd.jpg", "x")]).result()[0]
    with pytest.warns(UserWarning, match="EXIF"):
        wanted = Processor(settings())._bytes(tmp_path / "odd.jpg", "x")[0]
    assert np.array_equal(found, wanted)


def test_ctrl_c_is_the_callers_alone(crew: Crew, folder: Path) -> None:
    os.kill(crew._helper.pid, signal.SIGINT)
    assert crew.submit([(next(folder.glob("train/cat/*.jpg")), "")]).result().any()


def test_a_process_that_has_ended_is_told(crew: Crew, folder: Path) -> None:
    own = [crew._free.get() for _ in range(2)]
    ours, theirs = Pipe()
    theirs.close()
    crew._free.put((ours, own[0][1]))
    crew._begun.add(ours.fileno())
    with pytest.raises(DataError, match="has ended at a cat or soon"):
        crew.submit([(next(folder.glob("train/cat/*.jpg")), "a cat")]).result()
    crew._begun.remove(ours.fileno())
    crew._free.get()
    for one in own:
        crew._free.put(one)


def test_until_processes_have_begun_threads_read(folder: Path) -> None:
    path = next(folder.glob("train/cat/*.jpg"))
    with Crew(settings(), 1) as begins:
        (found,) = begins.read([(path, "x")])
        assert not begins._begun
    assert begins._helper.poll() is not None
    assert np.array_equal(found, read_pixels(path, "x", settings()))


def test_a_processor_reads_many_files_by_processes(
    lent: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(path) for path in sorted(folder.glob("train/*/*.jpg"))]
    monkeypatch.setattr(crews, "FEW", 20)
    processor = Processor(settings())
    wanted = list(processor.batches(paths, 6, workers=3))
    assert not lent
    found = list(processor.batches(paths, 6, workers=3))
    assert lent == [Path(path).name for path in paths]
    assert [len(x) for x in found] == [6, 6, 4]
    assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))
    assert next(processor.batches(paths[:1], 1)).equal(wanted[0][:1])
    del processor
    gc.collect()
    assert lent[-1] == "closed"
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


def test_large_jpegs_may_be_decoded_at_a_part_of_their_size(tmp_path: Path) -> None:
    wave = np.add.outer(np.arange(100), np.arange(160))[..., None] % 256
    image = Image.fromarray(np.repeat(wave, 3, 2).astype(np.uint8))
    image.save(tmp_path / "a.jpg", quality=95)
    image.save(tmp_path / "a.png")
    sizes = {
        (name, enough): read_image(tmp_path / name, enough=enough).size
        for name in ("a.jpg", "a.png")
        for enough in (None, 12, 24, 26)
    }
    assert sizes["a.jpg", 12] == (40, 25)  # a quarter: twice as many as are enough
    assert sizes["a.jpg", 24] == (80, 50)
    assert all(size == (160, 100) for (_, enough), size in sizes.items() if enough in (None, 26))
    assert sizes["a.png", 12] == (160, 100)
    whole, part = (
        Processor(settings())._bytes(read_image(tmp_path / "a.jpg", enough=enough), "x")[0]
        for enough in (None, 12)
    )
    apart = np.abs(whole.astype(int) - part)
    assert 0 < apart.max() < 12
    assert apart.mean() < 2
