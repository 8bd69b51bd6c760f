"""Finding a checkpoint: a directory, or a hub id through huggingface_hub; never the network."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest

import allformer
from allformer.checkpoint.hashes import sha256
from allformer.checkpoint.hub import find_checkpoint
from allformer.errors import CheckpointError


class NotFound(OSError):
    pass


class Gated(NotFound):  # as in huggingface_hub
    pass


class NoRevision(OSError):
    pass


class NotCached(FileNotFoundError):
    pass


class Hub:
    """A repository with these files, or an error; it remembers what was asked."""

    def __init__(self, folder: Path, files: list[str], error: Exception | None = None) -> None:
        self.folder, self.files, self.error = folder, files, error
        self.asked: list[tuple[str, str | None]] = []

    def snapshot_download(self, name: str, *, revision: str | None, allow_patterns: list[str]):
        self.asked.append((name, revision))
        if self.error is not None:
            raise self.error
        for file in self.files:
            if any(fnmatch(file, pattern) for pattern in allow_patterns):
                (self.folder / file).parent.mkdir(exist_ok=True)
                (self.folder / file).write_text("")
        return str(self.folder)

    def got(self) -> set[str]:
        return {str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file()}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    made = Hub(tmp_path / "snapshot", [])
    made.folder.mkdir()
    module, errors = ModuleType("huggingface_hub"), ModuleType("huggingface_hub.errors")
    errors.RepositoryNotFoundError, errors.GatedRepoError = NotFound, Gated
    errors.RevisionNotFoundError, errors.LocalEntryNotFoundError = NoRevision, NotCached
    module.errors, module.snapshot_download = errors, made.snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    monkeypatch.chdir(tmp_path)
    return made


SMALL = ["config.json", "tokenizer.json", "merges.txt", "spiece.model", "chat_template.jinja"]
UNWANTED = ["modeling_x.py", "tf_model.h5", "flax_model.msgpack", "model.fp16.safetensors"]


def test_a_directory_is_itself_even_if_it_looks_like_an_id(hub, tmp_path):
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert find_checkpoint("owner/name") == Path("owner/name")
    assert find_checkpoint(tmp_path) == tmp_path
    assert hub.asked == []


def test_the_steps_of_a_sentence_encoder_come_with_it(hub):
    steps = ["modules.json", "0_Transformer/model.safetensors", "1_Pooling/config.json"]
    steps += ["2_Dense/pytorch_model.bin", "3_Dense/model.safetensors"]
    hub.files = [*steps, "openvino/model.safetensors"]
    find_checkpoint("owner/name")
    assert hub.got() == set(steps)


def test_an_id_fetches_configs_tokenisers_and_safetensors_and_no_code(hub):
    hub.files = [*SMALL, *UNWANTED, "1_Pooling/config.json"]
    hub.files += ["model.safetensors", "pytorch_model.bin", "onnx/model.safetensors"]
    assert find_checkpoint("owner/name") == hub.folder
    assert hub.asked == [("owner/name", None)]
    assert hub.got() == {*SMALL, "1_Pooling/config.json", "model.safetensors"}


def test_shards_are_fetched(hub):
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    hub.files = ["config.json", "model.safetensors.index.json", *shards, "pytorch_model.bin"]
    find_checkpoint("owner/name")
    assert hub.got() == set(hub.files) - {"pytorch_model.bin"}


def test_bin_is_fetched_where_there_are_no_safetensors(hub):
    hub.files = [*SMALL, *UNWANTED, "pytorch_model.bin", "training_args.bin"]
    assert find_checkpoint("owner/na.me-2") == hub.folder
    assert hub.got() == {*SMALL, "pytorch_model.bin"}


def test_an_adapter_is_fetched_as_safetensors_if_it_can_be(hub):
    hub.files = ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"]
    find_checkpoint("owner/name")
    assert hub.got() == {"adapter_config.json", "adapter_model.safetensors"}
    hub.files.remove("adapter_model.safetensors")
    (hub.folder / "adapter_model.safetensors").unlink()
    find_checkpoint("owner/name")
    assert hub.got() == {"adapter_config.json", "adapter_model.bin"}


def test_a_revision_is_passed_on(hub):
    hub.files = ["model.safetensors"]
    find_checkpoint("owner/name@refs/pr/7")
    assert hub.asked == [("owner/name", "refs/pr/7")]


@pytest.mark.parametrize(
    ("bare", "asked"),
    [
        ("gpt2", ("openai-community/gpt2", None)),
        ("bert-base-uncased@main", ("google-bert/bert-base-uncased", "main")),
        ("albert-xxlarge-v2", ("albert/albert-xxlarge-v2", None)),
    ],
)
def test_models_from_before_names_had_owners_are_found(hub, bare, asked):
    hub.files = ["model.safetensors"]
    find_checkpoint(bare)
    assert hub.asked == [asked]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Gated("403"), "is gated: ask for access at https://huggingface.co/owner/name, then"),
        (NotFound("404"), "is neither a directory here nor a public repository"),
        (NoRevision("404"), "has no revision 'v9'"),
        (NotCached("x"), "is not in the hub's cache, and the hub cannot be reached"),
        (OSError(28, "No space left on device"), r"No space left on device\); try again"),
        (TypeError(), r"could not be fetched from the hub \(TypeError: \)"),
    ],
)
def test_what_the_hub_refuses_is_said_with_a_way_out(hub, error, said):
    hub.error = error
    with pytest.raises(CheckpointError, match=rf"^owner/name@v9 .*{said}"):
        find_checkpoint("owner/name@v9")


@pytest.mark.parametrize(
    "what",
    ["my-gpt2", "./a/b", "/no/where", "a/b/c", "a/", "../x", "a b/c", "~/models", "a/.b", ""],
)
def test_what_is_no_id_never_asks_the_hub(hub, what):
    with pytest.raises(CheckpointError, match="no directory, and no id of the hub"):
        find_checkpoint(what)
    assert hub.asked == []


def test_a_file_points_to_its_directory(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("")
    with pytest.raises(CheckpointError, match="is a file; give the checkpoint's directory"):
        find_checkpoint(path)


def test_without_huggingface_hub_a_local_path_works_and_an_id_says_what_to_install(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert find_checkpoint(tmp_path) == tmp_path
    with pytest.raises(CheckpointError, match="pip install huggingface_hub"):
        find_checkpoint("owner/name")


def test_the_cache_of_the_real_library_serves_offline(tmp_path):
    repository = tmp_path / "hub" / "models--owner--name"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    (snapshot / "model.safetensors").write_text("")
    code = """
from allformer.checkpoint.hub import find_checkpoint
print(find_checkpoint("owner/name"))
try:
    find_checkpoint("owner/other")
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(allformer.__file__).parents[1],
        env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found, miss = done.stdout.splitlines()
    assert found == str(snapshot)
    assert miss.startswith("CheckpointError owner/other is no directory here, is not in the hub's")


def test_a_file_s_hash_is_its_sha256(tmp_path):
    data = os.urandom(300_000)
    (tmp_path / "x").write_bytes(data)
    assert sha256(tmp_path / "x") == hashlib.sha256(data).hexdigest()


def test_one_file_of_a_repository_comes_alone_and_one_in_parts_with_its_others(hub):
    parts = [f"big/model-0000{i}-of-00002.gguf" for i in (1, 2)]
    hub.files = [*SMALL, "model-Q4_0.gguf", "model-Q8_0.gguf", *parts]
    assert find_checkpoint("owner/name/model-Q4_0.gguf") == hub.folder / "model-Q4_0.gguf"
    assert hub.got() == {"model-Q4_0.gguf"}
    assert find_checkpoint(f"owner/name/{parts[0]}@v2") == hub.folder / parts[0]
    assert hub.got() == {"model-Q4_0.gguf", *parts}
    assert hub.asked == [("owner/name", None), ("owner/name", "v2")]
    with pytest.raises(CheckpointError, match=r"owner/name has no 'model-Q2\.gguf'; see https"):
        find_checkpoint("owner/name/model-Q2.gguf")
