"""`convert`: a checkpoint in another layout, dtype or cut into other shards, with a certificate.

    convert("gpt2", "out", dtype=torch.bfloat16)         # Hugging Face → the same, in bf16
    convert("gpt2", "out", family="allformer")           # → our own names
    convert("runs/demo", "out", family="marian")         # what we trained → transformers' Marian
    convert("stories260K.bin", "out", tokenizer="tok512.bin")       # llama2.c → Hugging Face
    convert("ViT-B-32.safetensors", "out")               # OpenAI's CLIP → Hugging Face
    convert("tiny.en.pt", "out")                         # OpenAI's Whisper → Hugging Face
    convert("model-Q4_K_M.gguf", "out")                  # llama.cpp's, widened → Hugging Face
    convert("roberta-base", "out", length=4096, mixer=Window(512, 512))   # → a Longformer
    convert("llama", "out", quantise="int4")             # matrices in four bits; "none" widens them
    convert("path/to/adapter", "out", merge=True)        # an adapter in its base's weights

`out/certificate.json` says what became of each key, which files these are (SHA-256), and how far
the results of the two are apart, ours and transformers' where that is installed.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allformer.checkpoint.adapter.files import is_adapter
from allformer.checkpoint.files import find_gguf_weights, open_tensors
from allformer.checkpoint.hashes import sha256
from allformer.checkpoint.hub import find_checkpoint
from allformer.checkpoint.leftovers import CERTIFICATE, remove_leftovers
from allformer.checkpoint.lengthen import WINDOW, lengthen
from allformer.checkpoint.llama2c import read_llama2c, read_pieces, write_sentencepiece
from allformer.checkpoint.load import GENERATION, load, read_json
from allformer.checkpoint.merged import check_merge, describe_adapter, is_narrow, read_merged
from allformer.checkpoint.older_run import generation_of, own_tokenizer
from allformer.checkpoint.openai_clip import read_openai_clip
from allformer.checkpoint.openai_whisper import is_openai_whisper, read_openai_whisper
from allformer.checkpoint.save import OWN, save, write_json
from allformer.checkpoint.transfer import SHARD, own_state
from allformer.checkpoint.verify import WIDTH, open_with_transformers, verify
from allformer.config import EncoderDecoder, Mixer
from allformer.config.longer import seen_by_all
from allformer.core.model import AnyModel
from allformer.core.quantise import quantise as quantise_model
from allformer.core.quantised import is_quantised, size_of, widen_all
from allformer.errors import CheckpointError, ConfigError, DataError
from allformer.gguf_header import is_gguf
from allformer.text.files import CONFIG, PIPELINE, TEMPLATE
from allformer.version import __version__

LARGEST = 2 * 10**9  # parameters; larger models are converted but not run
LENGTHS = {  # where else the longest text is told
    "tokenizer_config.json": "model_max_length", "sentence_bert_config.json": "max_seq_length",
}  # fmt: skip
STATE_DICTS = (".safetensors", ".pt", ".pth")  # llama2.c's end in .bin
WEIGHTS = ("*.safetensors", "*.bin", "*.safetensors.index.json", "*.bin.index.json")
OTHERS = (
    "tokenizer*", "vocab*", "merges.txt", "*.model", "*.spm", "special_tokens_map.json",
    "added_tokens.json", "generation_config.json", "chat_template*", "modules.json",
    "sentence_bert_config.json", "config_sentence_transformers.json", "[1-9]_*", "README.md",
    "preprocessor_config.json", "processor_config.json",
)  # fmt: skip


def convert(
    source: str | Path,
    target: str | Path,
    *,
    family: str | None = None,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = SHARD,
    tokenizer: str | Path | None = None,
    length: int | None = None,
    mixer: Mixer | None = None,
    quantise: str | None = None,
    group: int | None = None,
    calibrate: Tensor | None = None,
    merge: bool = False,
    base: str | Path | None = None,
    run: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Write `source` to the directory `target`; returns the certificate that is written there.

    `family` is the layout to write (one of transformers', or "allformer"; by default that of the
    source); `length` and `mixer` make the model longer (`lengthen`); `quantise`, `group` and
    `calibrate` are as in `core.quantise`, and "none" makes a quantised model plain; `merge`
    computes an adapter into the weights of the model that it names, or of `base`; `run=False`
    leaves the comparison out. `tell` hears what is being done.
    """
    if quantise is None and (group is not None or calibrate is not None):
        raise ConfigError('group= and calibrate= belong to quantise=; give it, such as "int4"')
    if mixer is not None and length is None:
        raise ConfigError(f"mixer={mixer!r} belongs to a length; give it, such as length=4096")
    target = Path(target)
    where = Path(source) if Path(source).is_file() else find_checkpoint(source)
    if where.resolve() == target.resolve():
        raise CheckpointError(f"{target} is the source itself; give another directory")
    adapter = check_merge(where, merge)
    tell(f"reading {source}")
    original = read_file(where) if where.is_file() else load(where, base=base)
    model = original
    if merge:
        model = read_merged(where, base)
    if length is not None:
        model = lengthen(model, length, WINDOW if mixer is None else mixer, separator_of(where))
        _check_certain(model, mixer)
    if quantise is not None:
        model = in_bits(model, quantise, group, calibrate, dtype, tell)
    tell(f"writing {target}")
    another = (target / "config.json").is_file()
    save(model, target, family=family, dtype=dtype, max_shard_bytes=max_shard_bytes)
    new = set() if model.provenance.generation is None else {GENERATION}
    if where.is_dir():
        if adapter is not None:
            new |= copy_others(adapter.find_base(base), target)
        new |= copy_others(where, target)
        new |= tell_class(where, target)
        if length is not None:
            tell_length(target, length)
        if not original.provenance.family and "is" not in read_json(target / "config.json"):
            new |= open_to_others(where, target, model)
    if find_gguf_weights(where) is not None:
        new |= write_gguf_tokenizer(where, target)
    elif is_openai_whisper(where):
        new |= {
            *original.provenance.images,
            *write_whisper_tokenizer(tokenizer, target, model, tell),
        }
    elif where.is_file() and tokenizer is not None:
        new |= write_llama2c_tokenizer(Path(tokenizer), target, model)
    remove_leftovers(target, new, another=another)
    certificate = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "source": describe(where) if adapter is None else describe_adapter(adapter, base),
        "target": describe(target),
        "parameters": size_of(model),
        **({} if quantise is None else {"quantised": _told(quantise, group, calibrate)}),
        "keys": original.provenance.fates,
        **compare(model, original, where, target, run, tell),
    }
    write_json(target / CERTIFICATE, certificate)
    return certificate


def in_bits(
    model: AnyModel,
    kind: str,
    group: int | None,
    calibrate: Tensor | None,
    dtype: torch.dtype | None,
    tell: Callable[[str], None],
) -> AnyModel:
    """A copy in few bits, or in plain numbers of the dtype that the rest has."""
    few = deepcopy(model)
    few.provenance = model.provenance
    if kind != "none":
        return quantise_model(few, kind, group=group, calibrate=calibrate, tell=tell)
    if not is_quantised(few) or group is not None or calibrate is not None:
        raise ConfigError('quantise="none" makes a quantised model plain, and takes nothing more')
    widen_all(few, dtype or next(few.parameters()).dtype)
    return few


def _told(kind: str, group: int | None, calibrate: Tensor | None) -> dict[str, Any]:
    tokens = 0 if calibrate is None else calibrate.numel()
    return {"kind": kind, "group": group, "calibrated_by_tokens": tokens}


def read_file(file: Path) -> AnyModel:
    """The model of one file: GGUF, OpenAI's Whisper, its CLIP as a state dict, or llama2.c's."""
    if is_gguf(file):
        return load(file)
    if is_openai_whisper(file):
        return read_openai_whisper(file)
    return read_openai_clip(file) if file.suffix in STATE_DICTS else read_llama2c(file)


def compare(
    model: AnyModel,
    original: AnyModel,
    source: Path,
    target: Path,
    run: bool,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Weights bit by bit; results of the source, the target, and transformers on both. `model` is
    what was written: the original, or what was made of it."""
    tell("comparing the weights")
    written = load(target)
    ours, theirs = own_state(model), own_state(written)
    same = all(a.dtype == theirs[n].dtype and torch.equal(a, theirs[n]) for n, a in ours.items())
    weights = {"identical": same, "largest_difference": 0.0}
    if not same:
        gaps = [(a.double() - theirs[n].double()).abs().max().item() for n, a in ours.items()]
        weights["largest_difference"] = max(gaps)
    rounded = any(a.dtype != theirs[n].dtype for n, a in ours.items())
    rounded = rounded or (is_adapter(source) and is_narrow(model))  # merging rounds once more
    sound = rounded or same
    size = size_of(model)
    if not run or size > LARGEST:
        why = "not asked for" if not run else f"{size:,} parameters are more than {LARGEST:,}"
        return {"sound": sound, "weights": weights, "outputs": [], "outputs_not_compared": why}
    tell("comparing results")
    found = verify(*_two(model, original, written))
    sound = sound and (rounded or all(c.sound for c in found))
    for path, place in ((target, "target"), (source, "source")):
        known = (written if path == target else original).provenance
        reference = None
        plain = path.is_dir() and not is_adapter(path)
        if known.family and plain and _is_theirs(path):
            reference = open_with_transformers(path, known.architecture)
        if reference is None and path == target and is_quantised(written):
            tell("transformers is not asked: it needs the package compressed-tensors for this")
        if reference is not None:
            tell(f"comparing with transformers on the {place}")
            subject = written if path == target else original
            pair = (f"allformer on the {place}", f"transformers on the {place}")
            against = verify(subject, reference, pair)
            sound = sound and all(c.sound for c in against)
            found += against
    return {"sound": sound, "weights": weights, "outputs": [c.as_dict() for c in found]}


def _two(
    model: AnyModel, original: AnyModel, written: AnyModel
) -> tuple[AnyModel, AnyModel, tuple[str, str], int]:
    """What must give the same: the source and the target, unless the numbers were changed on
    purpose; and how many tokens are compared: of a longer model others differ, as they must."""
    ours = "allformer on the target"
    if is_quantised(model) != is_quantised(original):
        return model, written, ("allformer before it was written", ours), WIDTH
    near = [] if model is original else [seen_by_all(x.config) for x in (original, model)]
    most = min((WIDTH, *(sight for sight in near if sight is not None)))
    return original, written, ("allformer on the source", ours), most


def _check_certain(model: AnyModel, mixer: Mixer | None) -> None:
    """Refuse what computes another function than the trained one: nothing certifies it."""
    if seen_by_all(model.config) == 0:
        raise ConfigError(
            f"mixer={mixer!r} computes something else than the trained model, whatever the length; "
            f"take af.lengthen(model, length, mixer) and train on, or a window"
        )


def _is_theirs(directory: Path) -> bool:
    """Whether transformers opens it as it opens its own."""
    return not find_gguf_weights(directory) and "is" not in read_json(directory / "config.json")


def describe(where: Path) -> dict[str, Any]:
    """The files of a checkpoint and their hashes."""
    if find_gguf_weights(where) is not None:
        hashes = {file.name: sha256(file) for file in open_tensors(where).paths}
        return {"path": where.name, "layout": "gguf", "files": hashes}
    if where.is_file():
        layout = "openai" if where.suffix in STATE_DICTS else "llama2.c"
        return {"path": where.name, "layout": layout, "files": {where.name: sha256(where)}}
    raw = read_json(where / "config.json")
    files = sorted({file for pattern in WEIGHTS for file in where.glob(pattern)})
    return {
        "path": where.name,
        "layout": OWN if "is" in raw else raw.get("model_type"),
        "files": {file.name: sha256(file) for file in [where / "config.json", *files]},
    }


def versions() -> dict[str, str]:
    """Of everything that had a part in it."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"allformer": __version__, "python": platform.python_version()}
    for name in ("torch", "safetensors", "tokenizers", "transformers", "compressed-tensors"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def copy_others(source: Path, target: Path) -> set[str]:
    """Tokeniser, generation settings and the like go along as they are; gives their names."""
    names = set()
    for pattern in OTHERS:
        for file in source.glob(pattern):
            names.add(file.name)
            if file.is_dir():
                shutil.copytree(file, target / file.name, dirs_exist_ok=True)
            else:
                shutil.copyfile(file, target / file.name)
    return names


def tell_class(source: Path, target: Path) -> set[str]:
    """The tokeniser's class, where the source's family told it, and the new one's is another; gives
    the file's name."""
    from allformer.text.load import named_class

    name = named_class(source)
    if name is None or name == named_class(target):
        return set()
    path = target / CONFIG
    write_json(path, {**(read_json(path) if path.is_file() else {}), "tokenizer_class": name})
    return {CONFIG}


def separator_of(source: Path) -> int | None:
    """The token between two texts, as the tokeniser beside a checkpoint has it, if there is one."""
    from allformer.text.load import load_tokenizer

    try:
        return load_tokenizer(source).sep_id
    except DataError:
        return None


def tell_length(target: Path, length: int) -> None:
    """What goes along says how long texts may be, too: they were cut there."""
    for file, name in LENGTHS.items():
        path = target / file
        if path.is_file():
            raw = read_json(path)
            if isinstance(raw.get(name), int):
                write_json(path, {**raw, name: length})


def open_to_others(source: Path, target: Path, model: AnyModel) -> set[str]:
    """What transformers must know of a model that we trained: its tokens, and how it begins.

    transformers stops after 20 tokens where nothing says how many. Gives the names of the files.
    """
    names = set()
    if (source / "tokenizer.json").is_file():
        names |= {PIPELINE, CONFIG}
        own_tokenizer(source, model.config).save(target)
    if isinstance(model.config, EncoderDecoder):
        said = model.provenance.generation or generation_of(model.config, beams=1)
        write_json(target / GENERATION, {"max_length": 256, **said})
        names.add(GENERATION)
    return names


def write_whisper_tokenizer(
    file: str | Path | None, target: Path, model: AnyModel, tell: Callable[[str], None]
) -> set[str]:
    """OpenAI's vocabulary as tokenizer.json, where there is one; gives the names of the files."""
    from allformer.text.tiktoken import openai_whisper_tokenizer

    try:
        openai_whisper_tokenizer(model.config.writer.source.vocab, file).save(target)
    except DataError as error:
        if file is not None:
            raise
        tell(f"without a tokeniser: {error}")
        return set()
    return {PIPELINE, CONFIG}


def write_gguf_tokenizer(where: Path, target: Path) -> set[str]:
    """The tokeniser inside as tokenizer.json, with its chat template; gives the files' names."""
    from allformer.text.load import load_tokenizer

    tokenizer = load_tokenizer(where)
    tokenizer.save(target)
    return {PIPELINE, CONFIG, *([TEMPLATE] if tokenizer.settings.chat_template else [])}


def write_llama2c_tokenizer(file: Path, target: Path, model: AnyModel) -> set[str]:
    """llama2.c's pieces as tokenizer.json; gives the names of the files."""
    from allformer.text.load import load_tokenizer

    tokens = model.config.decoder.source  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        write_sentencepiece(read_pieces(file, tokens.vocab), directory / "tokenizer.model")
        write_json(
            directory / "tokenizer_config.json",
            {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True},
        )
        load_tokenizer(directory).save(target)
    return {PIPELINE, CONFIG}
