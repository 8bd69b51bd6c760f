"""`load_tokenizer("path/of/a/checkpoint")`: the tokeniser of a Hugging Face directory.

Which files and which steps is decided as transformers 5 does (`AutoTokenizer`): the class that
`tokenizer_config.json` or `config.json` names, else the one of `config.json`'s `model_type`, else
`tokenizer.json` as it is. Where nothing names a class and only older files are there, transformers
gives up; here the files say what they are. One difference is on purpose: a bare `tokenizer.model`
is opened as its own settings ask, whereas `AutoTokenizer` leaves out the space before the text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from allformer.errors import DataError
from allformer.families.kinds import TEXT, check_kind
from allformer.gguf_header import find_gguf
from allformer.json_file import read_object
from allformer.text import steps
from allformer.text.assemble import add_tokens, family_names, finish, put_around
from allformer.text.families import BY_MODEL_TYPE, FAMILIES, Family
from allformer.text.files import CONFIG
from allformer.text.gguf import gguf_tokenizer
from allformer.text.marian_files import read_marian
from allformer.text.sentencepiece import read_sentencepiece
from allformer.text.settings import FAST, SPECIAL_NAMES
from allformer.text.sidecar import Sidecar, read_json, read_sidecar
from allformer.text.vocabulary import Names, check_ids, from_files, from_pipeline
from allformer.text.wrapper import Tokenizer

_OPENAI = {"vocab.json": "encoder.json", "merges.txt": "vocab.bpe"}  # GPT-2's own names
_SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "encoder.json",
          "source.spm", *_SENTENCEPIECE)  # fmt: skip
_KNOWN = ("tokenizer.json", "vocab.txt", "vocab.json + merges.txt", "encoder.json + vocab.bpe",
          *_SENTENCEPIECE, "source.spm + target.spm + vocab.json", "a GGUF file")  # fmt: skip


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """The tokeniser of a checkpoint directory or of a GGUF file, with the ids that transformers
    gives.

    >>> tokenizer = load_tokenizer("bert-base-uncased")
    >>> tokenizer.encode("A dog runs.")
    [101, 1037, 3899, 3216, 1012, 102]
    """
    directory = Path(directory)
    if not any((directory / name).is_file() for name in _FILES):
        file = find_gguf(directory)
        if file is not None:
            return gguf_tokenizer(file)
    if not directory.is_dir():
        raise DataError(f"{directory} is no directory; give the one with the tokeniser's files")
    whole, pipeline = _read_pipeline(directory / "tokenizer.json")
    sidecar = read_sidecar(directory, pipeline)
    name = _class_name(directory, sidecar, pipeline)
    if name == "MarianTokenizer" and pipeline is None:
        return _marian(directory, sidecar)
    if name in FAMILIES:
        return _family(directory, sidecar, name, whole, pipeline)
    return _as_it_is(directory, sidecar, name, whole)


def named_class(directory: Path) -> str | None:
    """transformers' name of a directory's tokeniser class: as its files say it, or its family."""
    return _named_class(directory, read_json(directory / CONFIG) or {})


def _named_class(directory: Path, sidecar: dict[str, Any]) -> str | None:
    config = read_json(directory / "config.json") or {}
    for key in ("tokenizer_class", "model_type"):
        check_kind(key, config.get(key), TEXT, str(directory / "config.json"), DataError)
    name: str | None = sidecar.get("tokenizer_class") or config.get("tokenizer_class")
    return BY_MODEL_TYPE.get(config.get("model_type", "")) if name is None else name


def _class_name(directory: Path, sidecar: Sidecar, pipeline: dict[str, Any] | None) -> str:
    """transformers' name of the class to open the files with; `FAST` for none in particular."""
    name = _named_class(directory, sidecar.config)
    if name is None:
        return FAST if pipeline is not None else _by_files(directory)
    name = (name if name == FAST else name.removesuffix("Fast"))[:80]  # errors show it
    if pipeline is not None and name in FAMILIES:
        # A LLaMA 3 says LlamaTokenizer and is byte-level; its tokenizer.json knows better.
        steps_of_it = json.dumps([pipeline.get("pre_tokenizer"), pipeline.get("decoder")])
        byte_level = name == "LlamaTokenizer" and '"ByteLevel"' in steps_of_it
        if byte_level or pipeline["model"]["type"] != FAMILIES[name].model:
            return FAST
    return name


def _by_files(directory: Path) -> str:
    """The class of older files that nothing names."""
    if (directory / "source.spm").is_file():
        return "MarianTokenizer"
    if (directory / "vocab.txt").is_file():
        return "BertTokenizer"
    vocab = read_json(_file(directory, "vocab.json"))
    if vocab is not None:
        return "RobertaTokenizer" if {"<s>", "</s>", "<mask>"} <= set(vocab) else "GPT2Tokenizer"
    return FAST


def _family(
    directory: Path,
    sidecar: Sidecar,
    name: str,
    whole: tokenizers.Tokenizer | None,
    pipeline: dict[str, Any] | None,
) -> Tokenizer:
    family = FAMILIES[name]
    names = family_names(family, sidecar)
    if pipeline is not None:
        vocabulary, source = from_pipeline(pipeline), "tokenizer.json"
    else:
        vocabulary = from_files(_files(directory, family, name), family.model)
        source = " and ".join(family.files)
    try:
        inner = family.build(vocabulary, names, sidecar.options)
    except Exception as error:  # the library raises plain Exception
        raise DataError(
            f"{directory}: {source} does not make a {name}: {str(error)[:300]}; "
            "are all files of one checkpoint, and is it of this class?"
        ) from None
    if whole is not None and whole.post_processor is not None:
        inner.post_processor = whole.post_processor
    further = vocabulary.symbols
    if further is None:
        further = sidecar.options.get("additional_special_tokens") or []
    if family.further is not None:
        further = family.further(list(further), sidecar.options)
    add_tokens(inner, sidecar, names, further)
    put_around(inner, sidecar, names, family)
    kind = family.saved_as or name
    return finish(inner, sidecar, names, kind, family, max_length=family.max_length)


def _as_it_is(
    directory: Path, sidecar: Sidecar, name: str, whole: tokenizers.Tokenizer | None
) -> Tokenizer:
    """A `tokenizer.json` or a sentencepiece model of no known family."""
    names: Names = {key: sidecar.named(key) for key in SPECIAL_NAMES}
    side = "right"
    further = sidecar.options.get("additional_special_tokens") or []
    if whole is not None:
        inner, padding = whole, whole.padding
        if padding is not None:
            side = padding["direction"]
            if "pad_token" not in sidecar.options:
                names["pad"] = padding["pad_token"]
    else:
        found = [file for file in map(directory.joinpath, _SENTENCEPIECE) if file.is_file()]
        if name not in (FAST, "TokenizersBackend"):
            raise DataError(
                f"{directory} is of class {name}, which is known here from a tokenizer.json alone; "
                f"{_looked_for(directory)}"
            )
        if not found:
            raise DataError(f"{directory} has no tokeniser; {_looked_for(directory)}")
        model = read_sentencepiece(found[0])
        inner = steps.from_sentencepiece(model)
        further = from_files(found[:1], "Unigram").symbols or []
        for key, piece in model.names.items():
            if f"{key}_token" not in sidecar.options:
                names[key] = piece
    add_tokens(inner, sidecar, names, further)
    put_around(inner, sidecar, names, None)
    return finish(inner, sidecar, names, name, None, padding_side=side)


def _marian(directory: Path, sidecar: Sidecar) -> Tokenizer:
    defaults = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
    names: Names = {key: sidecar.named(key, defaults.get(key)) for key in SPECIAL_NAMES}
    inner = read_marian(
        directory,
        {key: str(token) for key, token in names.items() if token is not None},
        sidecar.added,
        sidecar.options.get("extra_special_tokens") or (),
        bool(sidecar.options.get("separate_vocabs")),
    )
    return finish(inner, sidecar, names, "MarianTokenizer", None, max_length=512)


def _read_pipeline(
    file: Path,
) -> tuple[tokenizers.Tokenizer, dict[str, Any]] | tuple[None, None]:
    """A `tokenizer.json` as the library opens it and as it stands, where there is one."""
    if not file.is_file():
        return None, None
    try:
        whole = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise DataError(f"{file} is not a readable tokenizer.json: {str(error)[:300]}") from None
    pipeline = read_object(file, DataError)
    vocab = pipeline["model"].get("vocab")
    check_ids(vocab.values() if isinstance(vocab, dict) else (), str(file))
    if "type" not in pipeline["model"]:  # an old file: the library knows what it is
        pipeline = json.loads(whole.to_str())
    return whole, pipeline


def _files(directory: Path, family: Family, name: str) -> list[Path]:
    files = [_file(directory, file) for file in family.files]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise DataError(
            f"{directory} has no {' and no '.join(missing)}, of which its class {name} is made; "
            f"{_looked_for(directory)}"
        )
    return files


def _file(directory: Path, name: str) -> Path:
    other = directory / _OPENAI.get(name, name)
    return other if other.is_file() and not (directory / name).is_file() else directory / name


def _looked_for(directory: Path) -> str:
    there = sorted(file.name for file in directory.iterdir())
    return (
        f"tokenisers are read from {', '.join(_KNOWN)}; in the directory there is "
        f"{', '.join(there) if there else 'nothing'}; copy the missing file, or name the class "
        "of what is there in tokenizer_config.json (tokenizer_class)"
    )
