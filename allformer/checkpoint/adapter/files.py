"""An adapter's directory: what it says, what it holds, and on which model it stands.

files = open_adapter("path/to/adapter")
files.base                                    # "openai-community/gpt2"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allformer.checkpoint.adapter.form import Tensors
from allformer.checkpoint.files import open_tensors
from allformer.checkpoint.hub import find_checkpoint
from allformer.checkpoint.stored import read_whole
from allformer.core.quantise import KINDS
from allformer.errors import CheckpointError
from allformer.families.kinds import TEXT, check_kind, short
from allformer.json_file import read_object

CONFIG = "adapter_config.json"
WEIGHTS = (
    "adapter_model.safetensors", "adapter_model.bin",
    "adapter.safetensors", "pytorch_adapter.bin",  # the `adapters` library's
)  # fmt: skip
HEADS = ("model_head.safetensors", "pytorch_model_head.bin")  # the same's, beside them
BEFORE = ("base_model.model.", "base_model.")


@dataclass(frozen=True)
class AdapterFiles:
    """`raw` is adapter_config.json; `tensors` are read when they are asked for."""

    directory: Path
    raw: Mapping[str, Any]

    @property
    def file(self) -> Path:
        """Its adapter_config.json."""
        return self.directory / CONFIG

    @property
    def base(self) -> str | None:
        """The model below, as the file names it: a directory, or an id of the hub."""
        name, revision = self.raw.get("base_model_name_or_path"), self.raw.get("revision")
        name = name or self.raw.get("model_name")  # the `adapters` library's
        for field, value in (("base_model_name_or_path", name), ("revision", revision)):
            check_kind(field, value, TEXT, str(self.file))
        if not name:
            return None
        return f"{name}@{revision}" if revision and not Path(name).is_dir() else str(name)

    @property
    def quantised(self) -> str | None:
        """How the model below was rounded when it was loaded; None: it was as it is."""
        kind = self.raw.get("quantised")
        if kind is not None and kind not in KINDS:
            raise CheckpointError(
                f"{self.file} has quantised={short(kind)}; it must be {' or '.join(KINDS)}"
            )
        return kind

    @property
    def tensors(self) -> Tensors:
        """All of them, by the file's names."""
        for name in WEIGHTS:
            if (self.directory / name).is_file():
                heads = HEADS if name in WEIGHTS[2:] else ()
                beside = next((h for h in heads if (self.directory / h).is_file()), None)
                files = [self.directory / each for each in (name, beside) if each is not None]
                return {key: read_whole(x) for f in files for key, x in open_tensors(f).items()}
        raise CheckpointError(
            f"{self.directory} has {CONFIG} but no {WEIGHTS[0]}; download it, or train it to its "
            f"end"
        )

    def find_base(self, given: str | Path | None) -> Path:
        """The directory of the model below: the one that is given, or that the file names."""
        named = self.base if given is None else given
        if named is None:
            raise CheckpointError(
                f"{self.file} names no base_model_name_or_path; give the model that it was trained "
                f"on: load({str(self.directory)!r}, base=…)"
            )
        beside = self.directory / named
        if given is None and not Path(named).is_dir() and beside.is_dir():
            named = beside
        try:
            found = find_checkpoint(named)
        except CheckpointError as error:
            if given is not None:
                raise
            raise CheckpointError(
                f"{self.file} names base_model_name_or_path={str(named)!r}, but {error}; or give "
                f"the model: load({str(self.directory)!r}, base=…)"
            ) from None
        if found.resolve() == self.directory.resolve():
            raise CheckpointError(f"{self.file} names itself for its base; give base=…")
        return found


def is_adapter(directory: Path) -> bool:
    """Whether a directory holds an adapter and no model of its own."""
    return (directory / CONFIG).is_file()


def source_of(directory: Path, *names: str) -> Path:
    """Where a checkpoint has one of some files: its directory, or of an adapter the base's.

    `source_of(directory, "tokenizer.json")`: PEFT leaves the tokeniser with the base, or not.
    """
    if not is_adapter(directory) or any((directory / name).is_file() for name in names):
        return directory
    return open_adapter(directory).find_base(None)


def open_adapter(path: str | Path) -> AdapterFiles:
    """An adapter's directory, or one of the hub: `open_adapter("someone/gpt2-lora")`."""
    directory = find_checkpoint(path)
    if not is_adapter(directory):
        raise CheckpointError(
            f"{directory} has no {CONFIG}: it is no adapter; give the directory that PEFT or "
            f"af.save_adapter wrote"
        )
    return AdapterFiles(directory, read_object(directory / CONFIG, CheckpointError))


def plain_names(tensors: Tensors, before: str = BEFORE[0]) -> Tensors:
    """Without what PEFT puts before the names of modules.

    With `bias="all"` it writes a module that is trained whole under three names: its own, that of
    its copy and that of the original, which the base has.
    """
    plain = {name.removeprefix(before): x for name, x in tensors.items()}
    return {
        name: x
        for name, x in plain.items()
        if ".original_module." not in name and not (set(_of_copy(name)) & plain.keys())
    }


def _of_copy(name: str) -> list[str]:
    """What a tensor of a copy is called otherwise, with the adapter's name in it or not."""
    module, copy, tensor = name.partition(".modules_to_save.")
    return [f"{module}.{tensor}", f"{module}.{tensor.partition('.')[2]}"] if copy else []
