"""Sets of pictures are read from each of their forms, and what is wrong with one is said."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from allformer.data.pictures import Part, fingerprint, open_pictures
from allformer.data.pictures.cifar import BYTES, TEN
from allformer.data.pictures.idx import FASHION, read_array
from allformer.data.pictures.public import public_folder, unpack_tar
from allformer.errors import ConfigError, DataError
from allformer.images.settings import make_settings
from allformer.train.pictures.augment import AugmentedPictures
from allformer.train.pictures.data import PictureData
from allformer.train.pictures.gallery import Gallery
from tests.drawn import halves, write_array, write_idx

# --- idx --------------------------------------------------------------------------------------


def test_idx_files_give_the_pixels_and_labels_that_were_written(tmp_path: Path) -> None:
    splits = open_pictures(write_idx(tmp_path / "set", 30, 9))
    assert {name: len(part) for name, part in splits.items()} == {"train": 30, "test": 9}
    pixels, labels = halves(30, 0)
    first = splits["train"][4]
    assert isinstance(first.image, np.ndarray)
    assert np.array_equal(first.image[..., 0], pixels[4])
    assert first.label == labels[4]
    assert splits["train"].labels == ("0", "1", "2", "3")


def test_names_of_labels_come_from_a_file_or_are_those_of_fashion(tmp_path: Path) -> None:
    path = write_idx(tmp_path / "set", 30, 9)
    (path / "labels.txt").write_text("left\nright\nabove\nbelow\n", encoding="utf-8")
    assert open_pictures(path)["test"].labels == ("left", "right", "above", "below")
    (path / "labels.txt").write_text("left\nright\n", encoding="utf-8")
    with pytest.raises(DataError, match="2 names, but there are 4 labels"):
        open_pictures(path)
    (path / "labels.txt").unlink()
    labels = np.array([9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9, *range(10), 0, 0, 0, 0])
    write_array(path / "train-labels-idx1-ubyte", labels)
    assert open_pictures(path)["train"].labels == FASHION


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no idx file of bytes"),
        (b"\0\0\x0d\x01\0\0\0\x01" + b"\0" * 4, "no idx file of bytes"),
        (b"\0\0\x08\x03\0\0\0\x01", "ends within its header"),
        (b"\0\0\x08\x01\xff\xff\xff\xff", "says 4294967295 bytes, but has 0"),
        (b"\0\0\x08\x02\0\0\0\x02\0\0\0\x02abc", "says 2 × 2 bytes, but has 3"),
    ],
)
def test_a_damaged_idx_file_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "x-idx1-ubyte"
    path.write_bytes(data)
    with pytest.raises(DataError, match=said):
        read_array(path)
    (tmp_path / "y-idx1-ubyte.gz").write_bytes(data)
    with pytest.raises(DataError):
        read_array(tmp_path / "y-idx1-ubyte.gz")


def test_images_without_labels_and_labels_without_images_are_refused(tmp_path: Path) -> None:
    path = write_idx(tmp_path / "set", 30, 9)
    write_array(path / "t10k-labels-idx1-ubyte", np.zeros(8, np.uint8))
    with pytest.raises(DataError, match=r"has \(9, 8, 8\) numbers, .* \(8,\)"):
        open_pictures(path)
    (path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="has no t10k-labels"):
        open_pictures(path)


# --- folders ------------------------------------------------------------------------------------


def folders(path: Path, *names: str) -> Path:
    for i, name in enumerate(names):
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6 + i, 5), (10 * i, 0, 0)).save(file)
    return path


def test_a_folder_is_a_class_and_what_is_no_image_is_none(tmp_path: Path) -> None:
    path = folders(tmp_path / "set", "b/1.png", "a/2.jpg", "a/deep/3.png", "b/.hidden.png")
    (path / "a" / "notes.txt").write_text("no image", encoding="utf-8")
    found = open_pictures(path)["train"]
    assert found.labels == ("a", "b")
    assert [found[i].label for i in range(len(found))] == [0, 0, 1]
    assert found[0].name == "a/2.jpg"


def test_splits_are_folders_and_share_the_classes(tmp_path: Path) -> None:
    path = folders(tmp_path / "set", "train/a/1.png", "train/b/2.png", "valid/b/3.png")
    splits = open_pictures(path)
    assert splits.keys() == {"train", "val"}
    assert splits["val"][0].label == 1
    folders(path, "test/c/1.png")
    with pytest.raises(DataError, match="a class that the training split has not; it has a, b"):
        open_pictures(path)


def test_what_is_no_set_of_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not there"):
        open_pictures(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no set of pictures that is known"):
        open_pictures(tmp_path)
    with pytest.raises(DataError, match="did you mean folder"):
        open_pictures(tmp_path, "folders")


# --- CIFAR --------------------------------------------------------------------------------------


def cifar() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.integers(0, 256, (8, BYTES), np.uint8), np.array([3, 8, 0, 6, 1, 9, 2, 4])


def check_cifar(path: Path) -> None:
    flat, labels = cifar()
    splits = open_pictures(path)
    assert {name: len(part) for name, part in splits.items()} == {"train": 6, "test": 2}
    picture = splits["test"][1]
    assert (picture.label, splits["test"].labels) == (labels[7], TEN)
    assert isinstance(picture.image, np.ndarray)
    assert np.array_equal(picture.image.transpose(2, 0, 1).ravel(), flat[7])


def test_cifar_is_read_from_its_pickles(tmp_path: Path) -> None:
    """As Python 2 wrote them: keys and names are bytes."""
    flat, labels = cifar()
    path = tmp_path / "cifar-10-batches-py"
    path.mkdir()
    for name, rows in {"data_batch_1": slice(0, 6), "test_batch": slice(6, 8)}.items():
        content = {b"data": flat[rows], b"labels": labels[rows].tolist()}
        (path / name).write_bytes(pickle.dumps(content, protocol=2))
    check_cifar(path)
    check_cifar(tmp_path)  # the folder into which the archive was unpacked
    names = {b"label_names": [x.encode() for x in TEN]}
    (path / "batches.meta").write_bytes(pickle.dumps(names, protocol=2))
    check_cifar(path)


def test_a_pickle_that_runs_something_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "harm"),)

    for name in ("data_batch_1", "test_batch"):
        (tmp_path / name).write_bytes(pickle.dumps({"data": Evil(), "labels": []}))
    with pytest.raises(DataError, match=r"none of CIFAR's files \(it names (posix|nt)\.mkdir\)"):
        open_pictures(tmp_path)
    assert not (tmp_path / "harm").exists()


def test_cifar_is_read_from_its_binary_form(tmp_path: Path) -> None:
    flat, labels = cifar()
    rows = np.concatenate([labels[:, None].astype(np.uint8), flat], 1)
    (tmp_path / "data_batch_1.bin").write_bytes(rows[:4].tobytes())
    (tmp_path / "data_batch_2.bin").write_bytes(rows[4:6].tobytes())
    (tmp_path / "test_batch.bin").write_bytes(rows[6:].tobytes())
    check_cifar(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(rows[6:].tobytes()[:-1])
    with pytest.raises(DataError, match="test ends within an image"):
        open_pictures(tmp_path)


def test_a_hundred_classes_have_a_coarse_label_before_the_fine_one(tmp_path: Path) -> None:
    flat, labels = cifar()
    both = np.stack([labels // 5, labels * 10], 1).astype(np.uint8)
    for name, rows in {"train": slice(0, 6), "test": slice(6, 8)}.items():
        data = np.concatenate([both[rows], flat[rows]], 1)
        (tmp_path / f"{name}.bin").write_bytes(data.tobytes())
    found = open_pictures(tmp_path)["train"]
    assert [found[i].label for i in range(3)] == [30, 80, 0]
    assert len(found.labels) == 100


def test_cifar_is_read_from_sheets(tmp_path: Path) -> None:
    flat, labels = cifar()
    sheet = flat.reshape(8, 3, 1024).transpose(0, 2, 1)  # an image a row
    Image.fromarray(sheet[:4]).save(tmp_path / "data_batch_1.png")
    Image.fromarray(sheet[4:6]).save(tmp_path / "data_batch_2.png")
    Image.fromarray(sheet[6:]).save(tmp_path / "test_batch.png")
    with pytest.raises(DataError, match=r"has no train_labels\.json"):
        open_pictures(tmp_path)
    for name, rows in {"train_lables": slice(0, 6), "test_labels": slice(6, 8)}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(labels[rows].tolist()))
    check_cifar(tmp_path)


# --- sets ---------------------------------------------------------------------------------------


def test_a_set_is_known_again_and_one_that_differs_is_not(tmp_path: Path) -> None:
    path = write_idx(tmp_path / "set", 30, 9)
    first = fingerprint(open_pictures(path)["train"])
    assert fingerprint(open_pictures(path)["train"]) == first
    part = open_pictures(path)["train"]
    assert fingerprint(Part(part, range(29))) != first
    labels = halves(30, 0)[1]
    labels[3] = (labels[3] + 1) % 4
    write_array(path / "train-labels-idx1-ubyte", labels)
    assert fingerprint(open_pictures(path)["train"]) != first
    files = folders(tmp_path / "files", "a/1.png", "b/2.png")
    before = fingerprint(open_pictures(files)["train"])
    Image.new("RGB", (60, 50)).save(files / "a" / "1.png")
    assert fingerprint(open_pictures(files)["train"]) != before


def settings(height: int, width: int, channels: int = 3) -> Any:
    said = {"image_mean": [0.5] * channels, "image_std": [0.5] * channels}
    size = {"height": height, "width": width}
    kind = "ViTImageProcessor"
    return make_settings({"image_processor_type": kind, "size": size, "resample": 2, **said})


def test_pictures_of_many_sizes_are_read_in_one(tmp_path: Path, monkeypatch: Any) -> None:
    found = open_pictures(folders(tmp_path, "a/1.png", "a/2.png", "b/3.png"))["train"]
    kept = Gallery(found, settings(4, 4)).pixels(np.array([2, 0]))
    assert kept.shape == (2, 3, 4, 4)
    assert kept[:, 0, 0, 0].tolist() == [20, 0]
    monkeypatch.setattr("allformer.train.pictures.gallery.MOST_BYTES", 1)
    again = Gallery(found, settings(4, 4))
    assert not again.fits, "read when asked for"
    assert np.array_equal(again.pixels(np.array([2, 0])), kept)


def test_some_of_the_training_pictures_are_held_out_where_nothing_else_is(tmp_path: Path) -> None:
    path = str(write_idx(tmp_path / "set", 40, 9))
    train, held = PictureData(path=path, hold_out=0.25).opened()
    assert (len(train), len(held)) == (30, 10)
    ours = {*train.index.tolist()} | {*held.index.tolist()}  # type: ignore[attr-defined]
    assert ours == set(range(40))
    assert [len(x) for x in PictureData(path=path, validation="test").opened()] == [40, 9]
    assert [len(x) for x in PictureData(path=path, validation=path).opened()] == [40, 9]
    with pytest.raises(DataError, match="no such split, only train, test"):
        PictureData(path=path, validation="val").opened()
    with pytest.raises(ConfigError, match=r"hold_out=40 leaves nothing of 40"):
        PictureData(path=path, hold_out=40).opened()


def test_what_is_scored_is_the_split_that_was_asked_for(tmp_path: Path) -> None:
    path = str(write_idx(tmp_path / "set", 40, 9))
    other = str(folders(tmp_path / "files", "a/1.png", "b/2.png"))
    own = PictureData(path=path, format="idx", hold_out=10)

    def scored(data: PictureData, where: str | None, split: str | None) -> tuple[str, int]:
        name, found = data.scored(where, split)
        return name, len(found.opened()[1])

    assert scored(own, None, None) == ("test", 9)
    assert scored(own, None, "val") == ("val", 10)
    assert scored(own, None, "train") == ("train", 40)
    assert scored(own, other, None) == ("all", 2)
    with pytest.raises(DataError, match="has no val split; it has train, test"):
        PictureData(path=path, validation="test").scored(None, "val")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"image": [32]}, r"data\.image=.* must be \[height, width\]"),
        ({"channels": 2}, r"data\.channels=2 must be 1 or 3"),
        ({"augment": {"flip": 2}}, r"augment\.flip=2\.0 must be in 0 … 1"),
        ({"augment": {"scale": [0.5]}}, "must be two shares of the area"),
        ({"augment": {"blur": 1}}, r"augment\.blur is not known"),
    ],
)
def test_a_data_section_that_cannot_be_is_refused_by_name(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AugmentedPictures.read(given)


# --- public sets ----------------------------------------------------------------------------------


def test_a_public_set_is_fetched_once_and_unpacked(tmp_path: Path, monkeypatch: Any) -> None:
    flat, labels = cifar()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, rows in {"data_batch_1": slice(0, 6), "test_batch": slice(6, 8)}.items():
            content = pickle.dumps({"data": flat[rows], "labels": labels[rows].tolist()}, 2)
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

    def fetch(url: str, sha256: str, *, cache: Path) -> Path:
        assert len(sha256) == 64
        cache.mkdir(parents=True, exist_ok=True)
        path = cache / url.rpartition("/")[2]
        path.write_bytes(packed.getvalue())
        return path

    monkeypatch.setattr("allformer.data.pictures.public.fetch", fetch)
    monkeypatch.setenv("ALLFORMER_CACHE", str(tmp_path))
    check_cifar(public_folder("cifar-10"))
    assert [len(x) for x in PictureData(corpus="cifar-10", validation="test").opened()] == [6, 2]
    with pytest.raises(DataError, match="did you mean cifar-10"):
        public_folder("cifar10")
    with pytest.raises(DataError, match=r"name a public set: data\.corpus=fashion-mnist or"):
        PictureData().opened()


def test_an_archive_writes_nothing_outside_of_its_folder(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../outside"), io.BytesIO())
    with pytest.raises(DataError, match="outside of"):
        unpack_tar(tmp_path / "x.tar.gz", tmp_path / "in")
    assert not (tmp_path / "outside").exists()
