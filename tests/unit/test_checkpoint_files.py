"""Weight files: opened lazily, and a damaged one is named with its fault and a way out."""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from allformer.checkpoint.files import in_memory, open_tensors
from allformer.checkpoint.stored import InFile, InMemory, read_whole
from allformer.errors import CheckpointError

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:12ab\nsize 4242\n"


def tensors() -> dict[str, Tensor]:
    return {
        "a.weight": torch.randn(3, 5),
        "a.bias": torch.randn(5).half(),
        "b.weight": torch.randn(2, 3, 2).bfloat16(),
        "c": torch.randn(4).double(),
        "ids": torch.arange(7),
        "mask": torch.tensor([True, False, True]),
        "one": torch.tensor(2.5),
        "none": torch.zeros(0, 4),
    }


def check_equal(files, wanted: dict[str, Tensor]) -> None:
    assert set(files) == set(wanted)
    for name, x in wanted.items():
        stored = files[name]
        assert (stored.shape, stored.dtype) == (tuple(x.shape), x.dtype)
        assert torch.equal(read_whole(stored), x)


def write_raw(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_shards(folder: Path, x: dict[str, Tensor], *, suffix: str = "safetensors") -> Path:
    names = list(x)
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    where = {}
    for i, part in enumerate((names[:3], names[3:])):
        name = f"{stem}-{i + 1:05d}-of-00002.{suffix}"
        some = {n: x[n] for n in part}
        if suffix == "safetensors":
            save_file(some, folder / name)
        else:
            torch.save(some, folder / name)
        where |= dict.fromkeys(part, name)
    index = folder / f"{stem}.{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return index


# --- what is there ------------------------------------------------------------------------------


def test_one_safetensors_file(tmp_path):
    x = tensors()
    save_file(x, tmp_path / "model.safetensors", {"format": "pt"})
    check_equal(open_tensors(tmp_path), x)
    check_equal(open_tensors(tmp_path / "model.safetensors"), x)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards_and_an_index(tmp_path, suffix):
    x = tensors()
    index = write_shards(tmp_path, x, suffix=suffix)
    files = open_tensors(tmp_path)
    check_equal(files, x)
    assert files.where == index
    assert {path.suffix for path in files.paths} == {f".{suffix}"}
    assert len(files.paths) == 2


def test_a_torch_file_is_read_from_its_place_not_through_its_map(tmp_path):
    x = tensors()
    base = torch.randn(6, 4)
    x |= {"tied": x["a.weight"], "rows": base[2:5], "turned": base.T, "flat": base.view(-1)[3:9]}
    torch.save(x, tmp_path / "pytorch_model.bin")
    files = open_tensors(tmp_path)
    check_equal(files, x)
    in_place = {name for name, stored in files.items() if isinstance(stored, InFile)}
    assert in_place == set(x) - {"turned", "none"}


def test_a_torch_file_with_records_that_no_tensor_uses_is_still_right(tmp_path):
    x = {"a": torch.randn(8), "b": torch.randn(8)}
    path = tmp_path / "pytorch_model.bin"
    torch.save(x, path)
    import zipfile

    with zipfile.ZipFile(path, "a") as archive:
        top = archive.namelist()[0].split("/")[0]
        archive.writestr(f"{top}/data/99", b"12345678")
    files = open_tensors(path)
    check_equal(files, x)
    assert all(isinstance(stored, InMemory) for stored in files.values())


def test_safetensors_come_before_bin_and_one_file_before_shards(tmp_path):
    torch.save({"x": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    assert open_tensors(tmp_path).where.name == "pytorch_model.bin"
    index = write_shards(tmp_path, tensors())
    assert open_tensors(tmp_path).where == index
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    assert open_tensors(tmp_path).where.name == "model.safetensors"


def test_opening_reads_the_header_alone(tmp_path):
    path = write_raw(tmp_path / "model.safetensors", {"x": entry(0, 4 << 30, [1 << 30])})
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size + (4 << 30))  # a hole: no disk, but 4 GiB to read
    assert open_tensors(tmp_path)["x"].shape == (1 << 30,)


def test_an_open_file_stays_what_it_was_when_another_takes_its_name(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.ones(4)}, path)
    files = open_tensors(path)
    save_file({"x": torch.zeros(4)}, tmp_path / "new")
    os.replace(tmp_path / "new", path)
    assert torch.equal(read_whole(files["x"]), torch.ones(4))


def test_a_system_without_preadv_reads_the_same(tmp_path, monkeypatch):
    x = tensors()
    save_file(x, tmp_path / "model.safetensors")
    monkeypatch.delattr(os, "preadv")
    check_equal(open_tensors(tmp_path), x)


def test_a_part_of_a_tensor_is_read_alone(tmp_path):
    x = torch.arange(20.0)
    save_file({"x": x}, tmp_path / "model.safetensors")
    out = torch.empty(6)
    for files in (open_tensors(tmp_path), in_memory({"x": x}, "here")):
        files["x"].read_into(out.zero_(), 7)
        assert torch.equal(out, x[7:13])


# --- what is wrong ------------------------------------------------------------------------------


def refused(path: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as error:
        open_tensors(path)
    assert str(path) in str(error.value)


def test_a_missing_path_is_named(tmp_path):
    refused(tmp_path / "nowhere", "is not there")


def test_an_empty_directory_holds_no_weights(tmp_path):
    refused(tmp_path, r"holds no weights.*model\.safetensors.*pytorch_model\.bin")


def test_other_weight_files_are_listed(tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
    refused(tmp_path, r"but consolidated\.safetensors: give the file that is meant")


def test_a_link_into_a_cache_that_was_cleaned_is_named(tmp_path):
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blob")
    refused(tmp_path, "is a link to a file that is gone")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_an_lfs_pointer_is_known(tmp_path, name):
    (tmp_path / name).write_text(LFS)
    refused(tmp_path, "Git LFS pointer.*git lfs pull")


def test_a_safetensors_file_cut_off_anywhere_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(tensors(), path)
    whole = path.read_bytes()
    for count in {*range(0, len(whole), 7), *range(16), len(whole) - 1}:
        path.write_bytes(whole[:count])
        refused(path, "is cut off: it has" if count > 8 else "is cut off|is no safetensors file")


def test_bytes_after_the_end_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(tensors(), path)
    path.write_bytes(path.read_bytes() + b"more")
    refused(path, "has 4 bytes after its last tensor")


@pytest.mark.parametrize(
    ("header", "data", "fault"),
    [
        ({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, 12, "b overlaps the tensor before it"),
        ({"a": entry(0, 8, [2]), "b": entry(0, 8, [2])}, 8, "b overlaps the tensor before it"),
        ({"a": entry(0, 8, [2]), "b": entry(12, 20, [2])}, 20, "b follows a hole"),
        ({"a": entry(0, 8, [3])}, 8, r"a of shape \[3\] in F32 needs 12 bytes, .* say 8"),
        ({"a": entry(8, 0, [2])}, 8, "needs 8 bytes, .* say -8"),
        ({"a": entry(0, 8, [-2])}, 8, r"a has shape \[-2\]"),
        ({"a": entry(0, 8, [2.0])}, 8, r"a has shape \[2.0\]"),
        ({"a": entry(0, 8, [2], "F3")}, 8, "a has dtype F3, known are"),
        ({"a": {"dtype": "F32", "shape": [2]}}, 8, "data_offsets"),
        ({"a": 3}, 8, "damaged header"),
        (b'{"a":3', 8, "damaged header"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{}}', 4, "'a' .* twice"),
        (b'{"a":' + b"[" * 100_000, 0, "damaged header"),
        (b"[1]", 0, "no safetensors file"),
        (b"<html>", 0, "no safetensors file: it begins with"),
    ],
)  # fmt: skip
def test_a_header_that_lies_is_refused(tmp_path, header, data, fault):
    path = write_raw(tmp_path / "model.safetensors", header, bytes(data))
    refused(path, fault)


def test_a_header_of_impossible_length_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 60) + b"{}" + bytes(100))
    refused(path, "no safetensors file")


def test_a_shard_that_is_not_there_is_named(tmp_path):
    index = write_shards(tmp_path, tensors())
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    refused(index, r"1 of 2 shards that are not there: model-00002-of-00002\.safetensors")


def test_a_damaged_shard_is_named(tmp_path):
    index = write_shards(tmp_path, tensors())
    shard = tmp_path / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=re.escape(f"{shard} is cut off")):
        open_tensors(index)


def test_an_index_that_names_a_key_which_its_shard_lacks_is_refused(tmp_path):
    index = write_shards(tmp_path, tensors())
    said = json.loads(index.read_text())
    said["weight_map"]["d.weight"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(said))
    refused(index, r"says that d\.weight is in model-00001-of-00002\.safetensors, but it is not")


def test_a_key_in_another_shard_than_the_index_says_is_refused(tmp_path):
    index = write_shards(tmp_path, tensors())
    said = json.loads(index.read_text())
    said["weight_map"]["ids"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(said))
    refused(index, "says that ids is in model-00001")


def test_a_key_in_two_shards_is_refused(tmp_path):
    x = tensors()
    index = write_shards(tmp_path, x)
    save_file(x, tmp_path / "model-00002-of-00002.safetensors")
    refused(index, r"has a\.weight twice, in model-00001.* and in model-00002")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_a_damaged_index_is_named(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    refused(tmp_path / "model.safetensors.index.json", "no index of shards|not JSON|no JSON object")


def test_an_index_cannot_lead_out_of_its_directory(tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "secret.safetensors")
    inner = tmp_path / "inner"
    inner.mkdir()
    index = inner / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "../secret.safetensors"}}))
    refused(index, "a shard must lie beside its index")


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil-was-here",)


def test_a_pickle_that_would_run_code_is_not_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"x": torch.zeros(1), "evil": Evil()}, tmp_path / "pytorch_model.bin")
    refused(tmp_path / "pytorch_model.bin", "could run code .* it is not loaded")
    assert not (tmp_path / "evil-was-here").exists()


def test_a_file_of_torch_before_1_6_is_refused_with_a_way_out(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save({"x": torch.zeros(1)}, path, _use_new_zipfile_serialization=False)
    refused(path, "is no zip file.*save it as safetensors")


def test_a_bare_pickle_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    refused(tmp_path / "pytorch_model.bin", "is no zip file")
    assert not (tmp_path / "evil-was-here").exists()


def test_a_torch_file_cut_off_is_refused(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save({"x": torch.zeros(1000)}, path)
    path.write_bytes(path.read_bytes()[:2500])
    refused(path, "damaged or cut off")


@pytest.mark.parametrize(
    ("held", "fault"),
    [
        ([torch.zeros(1)], "holds a list"),
        ({"state_dict": {"x": torch.zeros(1)}, "epoch": 3}, "'state_dict', 'epoch'"),
        ({"x": torch.zeros(2).to_sparse()}, "more than tensors by name: 'x'"),
    ],
)
def test_a_torch_file_of_something_else_is_refused(tmp_path, held, fault):
    torch.save(held, tmp_path / "pytorch_model.bin")
    refused(tmp_path / "pytorch_model.bin", fault)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "index"])
def test_damage_anywhere_is_refused_or_harmless_but_never_another_error(tmp_path, name):
    path, random = tmp_path / name, Random(0)
    if name == "model.safetensors":
        save_file(tensors(), path)
    elif name == "index":
        path = write_shards(tmp_path, tensors())
    else:
        torch.save(tensors(), path)
    whole, refusals = path.read_bytes(), 0
    for _ in range(150):
        broken = bytearray(whole)
        for _ in range(random.choice([1, 2, 5])):
            at = random.randrange(len(broken))
            broken[at : at + random.randrange(3)] = random.choices(b'09[]{}",:-\x00\xff', k=1)
        path.write_bytes(broken)
        try:
            for stored in open_tensors(path).values():
                read_whole(stored)
        except CheckpointError:
            refusals += 1
    assert refusals > 75


def test_a_file_cut_off_after_it_was_opened_is_noticed(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.zeros(4000)}, path)
    files = open_tensors(path)
    os.truncate(path, 5000)
    with pytest.raises(CheckpointError, match="ends in the middle of x"):
        read_whole(files["x"])
