"""`load`: a model from a Hugging Face directory, a hub id, a directory of our own, or a file.

    model = load("path/to/bert")                       # config.json + safetensors
    model = load("openai-community/gpt2", device="cuda", dtype=torch.bfloat16)
    model = load("model-Q4_K_M.gguf", quantised=True)  # llama.cpp's files, as they are or widened

Nothing that a file says is executed: safetensors, or `.bin` through torch's weights-only reader.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import allformer.codecs  # noqa: F401  (registers them)
from allformer.checkpoint.account import renamed
from allformer.checkpoint.adapter.below import grown, task_config, with_new
from allformer.checkpoint.adapter.files import CONFIG, is_adapter, open_adapter
from allformer.checkpoint.adapter.on_body import check_fresh, on_body, own_tree
from allformer.checkpoint.adapter.put import put_adapter
from allformer.checkpoint.files import TensorFiles, find_gguf_weights, open_tensors
from allformer.checkpoint.gguf_file import gguf_config, read_gguf
from allformer.checkpoint.hub import find_checkpoint
from allformer.checkpoint.older_run import older_generation
from allformer.checkpoint.openai_clip import is_open_clip, read_openai_clip
from allformer.checkpoint.openai_whisper import is_openai_whisper, read_openai_whisper
from allformer.checkpoint.quantised import place, plain_keys
from allformer.checkpoint.quantization_config import FIELD, open_packed
from allformer.checkpoint.transfer import load_weights, own_map, own_names
from allformer.config import Codec, Model, SoundCodec, from_dict
from allformer.core.model import AnyModel, build
from allformer.core.quantise import quantise
from allformer.count import count
from allformer.errors import CheckpointError, ConfigError
from allformer.families.buffers import BUFFERS
from allformer.families.config_json import file_keys, find_family, read_config
from allformer.families.family import Family
from allformer.families.weights import Ignored, Op, Renamed, WeightMap
from allformer.gguf_header import is_gguf
from allformer.images.processor import FILES
from allformer.json_file import read_object

GENERATION = "generation_config.json"
SLACK = 1_000_000  # parameters; what is missing by less than that is named, key by key


def load(
    path: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    architecture: str | None = None,
    ignore: Iterable[str] = (),
    base: str | Path | None = None,
    quantised: bool = False,
) -> AnyModel:
    """The model in a directory (or of a hub id), in eval mode: `load("openai-community/gpt2")`.

    Weights keep the dtype of their file unless `dtype` is given, and go straight to `device`
    ("meta": shapes alone, every key checked). `architecture` takes another head than config.json
    names, e.g. "BertModel" for the bare model. `ignore` names fields of config.json to overlook.
    OpenAI's files of Whisper are read as they are: `load("tiny.en.pt")`. So are GGUF files of
    LLaMA's kind, or a directory with one: `load("model-Q4_K_M.gguf")` widens its numbers, and with
    `quantised` matrices keep the bits that they have there. An adapter of PEFT's is put on the
    model that it names, or on `base`: `load("path/to/adapter", base="path/to/gpt2")`.
    """
    if is_openai_whisper(Path(path)):
        return read_openai_whisper(path, device=device, dtype=dtype)
    directory = find_checkpoint(path)
    how = _How(device, dtype, architecture, tuple(ignore))
    if is_adapter(directory):
        return _with_adapter(directory, base, how)
    if base is not None:
        raise CheckpointError(
            f"base={str(base)!r} is for adapters, and {directory} is none: it has no {CONFIG}; "
            f"leave base out"
        )
    if (gguf := find_gguf_weights(directory)) is not None:
        return read_gguf(
            gguf, device=device, dtype=dtype, architecture=architecture, ignore=ignore,
            quantised=quantised,
        )  # fmt: skip
    if quantised:
        raise CheckpointError(
            f"quantised=True keeps the bits of a GGUF file, and {directory} is none; leave it out "
            f"(--dtype quantised): a directory is as it was written"
        )
    if is_open_clip(directory):
        return read_openai_clip(directory, device=device, dtype=dtype)
    model = _load(directory, read_json(directory / "config.json"), open_tensors(directory), how)
    model.provenance.source = str(path)
    return model


@dataclass(frozen=True)
class _How:
    """What the caller of `load` wants."""

    device: torch.device | str
    dtype: torch.dtype | None
    architecture: str | None
    ignore: tuple[str, ...]


def _with_adapter(directory: Path, base: str | Path | None, how: _How) -> AnyModel:
    """The model below an adapter, with it on; what is new to its task comes from the adapter."""
    adapter = open_adapter(directory)
    below = adapter.find_base(base)
    if is_adapter(below):
        raise CheckpointError(
            f"{below}, the base of {directory}, is an adapter itself; merge it first (allformer "
            f"convert {below} OUT --merge), and give base=OUT"
        )
    tree = own_tree(adapter) if how.architecture is None else None
    if tree is not None:
        trained = _below(below, adapter.quantised, how)
        found, fresh = on_body(tree, trained, adapter)
        model: AnyModel = found
    elif find_gguf_weights(below) is not None:
        kind = how.architecture
        model = load(below, device=how.device, dtype=how.dtype, architecture=kind)
        fresh = []
    else:
        raw, files = read_json(below / "config.json"), open_tensors(below)
        larger = grown(adapter, raw, files)
        files, task = (
            with_new(files, larger.new),
            task_config(adapter, larger.raw, how.architecture),
        )
        how = replace(how, architecture=task.named)
        model, fresh = _load(below, task.raw, with_new(files, task.new), how), []
    model.provenance.source = str(base or adapter.base)
    put_adapter(model, adapter)
    check_fresh(model, fresh, adapter)
    if (directory / GENERATION).is_file():  # what a run says goes before its base
        model.provenance.generation = read_json(directory / GENERATION)
    model.provenance.images |= _image_files(directory)
    return model.eval()


def _below(directory: Path, kind: str | None, how: _How) -> AnyModel:
    """The model below an adapter, rounded as it was when the adapter was trained."""
    if kind is None:
        return load(directory, device=how.device, dtype=how.dtype, ignore=how.ignore)
    return load_in_bits(directory, kind, device=how.device, dtype=how.dtype, ignore=how.ignore)


def load_in_bits(
    path: str | Path,
    kind: str,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    ignore: Iterable[str] = (),
) -> AnyModel:
    """A checkpoint whose matrices are rounded before they reach the device.

    >>> load_in_bits("meta-llama/Llama-2-7b-hf", "int4", device="cuda")
    """
    model = quantise(load(path, ignore=ignore), kind)
    model.provenance.quantised = kind
    return model.to(device=device, dtype=dtype)


def _load(directory: Path, raw: dict[str, Any], files: TensorFiles, how: _How) -> AnyModel:
    """The model that a config.json means, with the weights of some files."""
    if FIELD not in how.ignore:
        raw, files = open_packed(raw, files)
    if "is" in raw:
        model = _build_own(directory, raw, files)
        ops = place(model, own_map(model), files)
    else:
        family = find_family(raw)
        model_config, provenance = read_config(
            raw, _told(files, family), architecture=how.architecture, ignore=how.ignore
        )
        check_size(model_config, files)
        model = build(model_config, device="meta")
        model.provenance = provenance
        named = family.weights(model_config, provenance.architecture)
        held = place(model, named, files, family.prefix)
        ops = [*_bridge(family, held, files, how.architecture is not None), *held, *BUFFERS]
    loaded = load_weights(model, ops, files, device=how.device, dtype=how.dtype)
    model.provenance.fates, model.provenance.aside = loaded.fates, loaded.aside
    model.provenance.images = _image_files(directory)
    if (directory / GENERATION).is_file():
        model.provenance.generation = read_json(directory / GENERATION)
    elif "is" in raw:
        model.provenance.generation = older_generation(directory, model.config)
    return model.eval()


def _image_files(directory: Path) -> dict[str, str]:
    """What says how images are prepared, as it stands: a model that sees is saved with it."""
    found = (directory / name for name in FILES if (directory / name).is_file())
    try:
        return {path.name: path.read_bytes().decode() for path in found}
    except UnicodeDecodeError:
        raise CheckpointError(
            f"{directory}: {' or '.join(FILES)} is not UTF-8; download it again"
        ) from None


def read_config_of(path: Path) -> Any:
    """The config tree that a config.json means, in our own or in Hugging Face's dialect; or what a
    GGUF file says, where it is that, or is in place of it."""
    if not path.is_file() or is_gguf(path):
        gguf = find_gguf_weights(path if is_gguf(path) else path.parent)
        if gguf is not None:
            return read_config(gguf_config(gguf))[0]
    raw = read_json(path)
    raw.pop(FIELD, None)
    if "is" in raw:
        return from_dict(raw)
    try:
        keys = _told(open_tensors(path.parent), find_family(raw))
    except CheckpointError:
        keys = set()  # a config.json alone: what it leaves open is as the family has it
    return read_config(raw, keys)[0]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a checkpoint, or an error that names the file."""
    if not path.is_file():
        raise CheckpointError(
            f"{path.parent} has no {path.name}; give a directory with config.json and weights"
        )
    return read_object(path, CheckpointError)


def check_size(tree: Model | Codec | SoundCodec, files: TensorFiles) -> None:
    """Refuse a config far larger than its files, before anything of that size is built."""
    wanted = tree.parameters if isinstance(tree, Codec | SoundCodec) else count(tree).parameters
    held = sum(math.prod(stored.shape) for stored in files.values())
    if wanted > SLACK + 2 * held:
        raise CheckpointError(
            f"config.json describes a model of {wanted:,} parameters, but {files.where} holds "
            f"{held:,}; use the config.json that the weights were saved with"
        )


def _build_own(directory: Path, raw: dict[str, Any], files: TensorFiles) -> AnyModel:
    try:
        tree = from_dict(raw)
        check_size(tree, files)
        return build(tree, device="meta")
    except ConfigError as error:
        raise CheckpointError(f"{directory / 'config.json'}: {error}") from None


def _told(files: TensorFiles, family: Family) -> set[str]:
    """The names that tell a reader something, with and without their first part."""
    keys = plain_keys(own_names(files, family.tables))
    return keys | {key.split(".", 1)[-1] for key in keys}


def _bridge(family: Family, ops: WeightMap, files: TensorFiles, chosen: bool) -> list[Op]:
    """Between a base model's names and those within a model with a head.

    Some published files of a model with a head leave the prefix out (GPT-2); a bare model may be
    wanted of a file with a head, if the user has chosen so: then the head's tensors stay behind.
    """
    prefix, ours = family.prefix, file_keys(ops)
    if not prefix or (ours <= set(files) and not chosen):
        return []
    needs = any(key.startswith(prefix) for key in ours)
    has = any(key.startswith(prefix) for key in files)
    bridge: list[Op] = []
    if needs and not has:
        base = [key for key in files if prefix + key in ours]
        bridge = [Renamed(f"^{re.escape(key)}$", prefix + key) for key in base]
    elif has and not needs:
        bridge = [Renamed(f"^{re.escape(prefix)}", "")]
    if chosen:
        names = {key.removeprefix(prefix) for key in ours}
        known = renamed(files, ops)
        others = [k for k in known if not k.startswith(prefix) and k not in names]
        pattern = "|".join(map(re.escape, others)) or "(?!)"
        bridge.append(Ignored(pattern, "of a head that was not asked for"))
    return bridge
