"""Where a checkpoint lies: a directory here, or a repository of the Hugging Face hub.

find_checkpoint("models/gpt2")
find_checkpoint("openai-community/gpt2")           # through huggingface_hub and its cache
find_checkpoint("openai-community/gpt2@607a30d")   # a branch, tag or commit
find_checkpoint("gpt2")                            # from before names had owners
find_checkpoint("owner/name/model-Q4_K_M.gguf")    # one file of a repository
"""

from __future__ import annotations

import re
from pathlib import Path

from allformer.checkpoint.files import INDEX, SINGLE
from allformer.errors import CheckpointError
from allformer.families.kinds import short
from allformer.gguf_header import is_gguf

ID = re.compile(r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?")
GGUF = re.compile(
    r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)/(?P<file>[^@]+\.gguf)(@(?P<revision>[\w./-]+))?"
)
# Who has what was published under a bare name. Other bare names are taken for directories: what
# somebody calls a folder is no business of the network's.
OWNERS = {
    "openai-community": "gpt2 gpt2-medium gpt2-large gpt2-xl",
    "google-bert": (
        "bert-base-uncased bert-base-cased bert-large-uncased bert-large-cased bert-base-chinese "
        "bert-base-multilingual-uncased bert-base-multilingual-cased bert-base-german-cased "
        "bert-large-uncased-whole-word-masking bert-large-cased-whole-word-masking "
        "bert-large-uncased-whole-word-masking-finetuned-squad"
    ),
    "FacebookAI": "roberta-base roberta-large roberta-large-mnli",
    "albert": " ".join(
        f"albert-{size}-v{version}"
        for size in ("base", "large", "xlarge", "xxlarge")
        for version in (1, 2)
    ),
    "google-t5": "t5-small t5-base t5-large t5-3b t5-11b",
}
OWNED = {name: f"{owner}/{name}" for owner, names in OWNERS.items() for name in names.split()}
ADAPTER = "adapter_model.safetensors"
# Configs and tokenisers, and weights as safetensors: never code, nor weights in other forms.
# The folders of sentence-transformers ("0_Transformer", "2_Dense") are part of the checkpoint.
WANTED = ["*.json", "*.txt", "*.jinja", "*.model", "model.safetensors", "model-*.safetensors"]
WANTED += [ADAPTER, "[0-9]_*/model.safetensors", "[1-9]_*/pytorch_model.bin"]
WANTED_BIN = ["pytorch_model.bin", "pytorch_model-*.bin", "0_*/pytorch_model.bin"]
WANTED_BIN += ["adapter_model.bin"]


def find_checkpoint(path_or_id: str | Path) -> Path:
    """The directory of a checkpoint, fetched first if it is a hub id that is not cached yet; a GGUF
    file is given back as it is."""
    try:
        path = Path(path_or_id).expanduser()
        there, file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError) as error:  # too long a name, no such user
        said = str(error).splitlines()[0][:200]
        raise CheckpointError(f"{short(str(path_or_id))} is no path ({said})") from None
    if path_or_id != "" and there:  # Path("") is the current directory
        return path
    if is_gguf(path):  # all that a directory has, in one file
        return path
    if file:
        beside = f", {path.parent}" if (path.parent / "config.json").is_file() else ""
        raise CheckpointError(f"{path} is a file; give the checkpoint's directory{beside}")
    name, at, revision = str(path_or_id).partition("@")
    one = GGUF.fullmatch(str(path_or_id))
    if one is not None:
        return _fetch_gguf(one["name"], one["file"], one["revision"])
    match = ID.fullmatch(OWNED.get(name, name) + at + revision)
    if path.suffix == ".gguf":
        raise CheckpointError(
            f"there is no file {path_or_id}; give a path that is there, or one of the hub: "
            f"owner/name/file.gguf"
        )
    if match is None:
        raise CheckpointError(
            f"{path_or_id} is no directory, and no id of the hub either; give a directory that is "
            f"there, or an id such as openai-community/gpt2"
        )
    return _fetch(match["name"], match["revision"])


def _fetch_gguf(name: str, file: str, revision: str | None) -> Path:
    """One file, or all of a model in several; a repository has a model in many sizes."""
    every = re.sub(r"-\d{5}-of-(\d{5})\.gguf$", r"-*-of-\1.gguf", file)
    found = _fetch(name, revision, [every]) / file
    if not found.is_file():
        raise CheckpointError(
            f"{name} has no {short(file)}; see https://huggingface.co/{name}/tree/main for what it "
            f"has"
        )
    return found


def _fetch(name: str, revision: str | None, only: list[str] | None = None) -> Path:
    """The folder with what a repository has of a checkpoint, or with `only` these files."""
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise CheckpointError(
            f"{name} is no directory here, and fetching it from the hub needs huggingface_hub; "
            f"`pip install huggingface_hub`, or download the checkpoint and give its directory"
        ) from None

    def get(patterns: list[str]) -> Path:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))

    where = f"{name}@{revision}" if revision else name
    try:
        found = get(only or WANTED)
        kinds = (SINGLE, INDEX, ADAPTER)
        if only is None and not any((found / file).is_file() for file in kinds):
            get(WANTED_BIN)  # into the same directory
        return found
    except errors.GatedRepoError:
        fault = (
            f"is gated: ask for access at https://huggingface.co/{name}, then `hf auth login` (or "
            f"set HF_TOKEN)"
        )
    except errors.RepositoryNotFoundError:
        fault = (
            "is neither a directory here nor a public repository of the hub; check the spelling, "
            "or `hf auth login` if it is private"
        )
    except errors.RevisionNotFoundError:
        fault = f"has no revision {revision!r}; give a branch, tag or commit that it has"
    except errors.LocalEntryNotFoundError:
        fault = (
            "is no directory here, is not in the hub's cache, and the hub cannot be reached; go "
            "online once, or copy the checkpoint here and give its directory"
        )
    except Exception as error:  # whatever the network stack of the day raises
        said = str(error).splitlines() or [""]
        fault = f"could not be fetched from the hub ({type(error).__name__}: {said[0]}); try again"
    raise CheckpointError(f"{where} {fault}")
