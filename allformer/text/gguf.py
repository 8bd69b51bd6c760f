"""The tokeniser of a GGUF file, which has its vocabulary and its chat template in the metadata.

    tokenizer = gguf_tokenizer("model.gguf")            # as `load_tokenizer("model.gguf")` does

Two kinds are known: "gpt2" (BPE over bytes, with its merges) and "llama" (sentencepiece's BPE, with
scores). The steps before BPE are not in a file; it names them (`tokenizer.ggml.pre`), and
llama.cpp's llama-vocab.cpp says what is meant. transformers takes GPT-2's steps for names that it
does not know, so that its ids of numbers differ for SmolLM, whose digits stand alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, pre_tokenizers

from allformer.errors import DataError
from allformer.families.kinds import FLAG, LIST, TEXT, TEXTS, Kind, check_kind, short
from allformer.gguf_header import read_gguf_header
from allformer.text import steps
from allformer.text.assemble import add_tokens, finish, put_around
from allformer.text.sentencepiece import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Piece,
    SentencePiece,
)
from allformer.text.settings import FAST, SPECIAL_NAMES
from allformer.text.sidecar import Sidecar
from allformer.text.vocabulary import Names, Vocabulary
from allformer.text.wrapper import Tokenizer

START = "tokenizer.ggml."
_IDS = {
    "bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id",
    "pad": "padding_token_id", "eot": "eot_token_id",
}  # fmt: skip
ADDED = (UNKNOWN, CONTROL, USER_DEFINED)  # known in a text as they stand, before all else
NONE = 2**32 - 1  # −1 in 32 bits: there is no such token


@dataclass(frozen=True)
class Steps:
    """What happens before BPE: the text is cut by each pattern in turn. `whole`: a word that is a
    token as it stands is not merged; `bos`: the first token is put before a text, unless the file
    says otherwise."""

    patterns: tuple[str, ...]
    whole: bool = False
    bos: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE = {
    **dict.fromkeys(("gpt-2", "mpt", "olmo", "jais", "phi-2"), Steps((_GPT2,))),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b"),
        Steps((r"\p{N}", _GPT2)),
    ),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3"), Steps((_LLAMA3,), True, True)),
    **dict.fromkeys(("smaug-bpe", "dbrx"), Steps((_LLAMA3,))),
    "tekken": Steps((_TEKKEN,), True, True),
}


def gguf_tokenizer(path: str | Path) -> Tokenizer:
    """The tokeniser of a file: `gguf_tokenizer("model.gguf").encode("Hello")`."""
    metadata = read_gguf_header(Path(path)).metadata
    try:
        return tokenizer_of(metadata)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def tokenizer_of(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokeniser that a file's metadata describe."""
    kind = _said(metadata, "model", TEXT)
    if kind not in _KINDS:
        raise DataError(
            f"{START}model={short(kind)} is no kind of tokeniser that is known here; known are "
            f"{', '.join(_KINDS)}: give the tokeniser of the original checkpoint"
        )
    pieces = _pieces(metadata)
    inner, bos = _KINDS[kind](metadata, pieces)
    ids = special_ids(metadata)
    names: Names = {x: pieces[ids[x]].text if x in ids else None for x in SPECIAL_NAMES}
    sidecar = _sidecar(metadata, pieces, bos and names["bos"] is not None)
    add_tokens(inner, sidecar, names, ())
    put_around(inner, sidecar, names, None)
    # As LLaMA's, it pads at the left: a decoder goes on at the right.
    return finish(inner, sidecar, names, FAST, None, padding_side="left")


def _sidecar(metadata: Mapping[str, Any], pieces: list[Piece], bos: bool) -> Sidecar:
    """What a tokenizer_config.json would say."""
    length = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    options = {
        "add_bos_token": _said(metadata, "add_bos_token", FLAG, bos),
        "add_eos_token": _said(metadata, "add_eos_token", FLAG, False),
        "model_max_length": length if type(length) is int else None,
    }
    added = {
        i: AddedToken(piece.text, normalized=False, special=piece.kind != USER_DEFINED)
        for i, piece in enumerate(pieces)
        if piece.kind in ADDED and piece.text
    }
    return Sidecar(options, added, {}, _templates(metadata), {})


def _templates(metadata: Mapping[str, Any]) -> str | dict[str, str] | None:
    """The chat template; beside it there may be others, by name."""
    key = "tokenizer.chat_template"
    found = {"default": metadata.get(key)}
    found |= {
        name.removeprefix(f"{key}."): text
        for name, text in metadata.items()
        if name.startswith(f"{key}.")
    }
    for name, text in found.items():
        check_kind(f"{key} ({name[:80]})", text, TEXT, "the metadata", DataError)
    there = {name: text for name, text in found.items() if text}
    return there.get("default") if there.keys() <= {"default"} else there


def special_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    """The ids of special tokens: `{"bos": 1, "eos": 2, "eot": 7}`, those that are said."""
    most = len(metadata.get(f"{START}tokens") or ())
    ids: dict[str, int] = {}
    for name, key in _IDS.items():
        i = metadata.get(START + key)
        if i is None or i == NONE:
            continue
        if type(i) is not int or not 0 <= i < most:
            raise DataError(f"{START}{key}={short(i)} is none of the {most:,} tokens; correct it")
        ids[name] = i
    return ids


def _said(metadata: Mapping[str, Any], name: str, kind: Kind, default: Any = None) -> Any:
    value = metadata.get(START + name, default)
    if value is None:
        raise DataError(
            f"there is no {START}{name}, so that it has no tokeniser; give that of the original "
            f"checkpoint"
        )
    check_kind(START + name, value, kind, "the metadata", DataError)
    return value


def _pieces(metadata: Mapping[str, Any]) -> list[Piece]:
    """Texts, scores and kinds; the kinds have sentencepiece's numbers."""
    texts = _said(metadata, "tokens", TEXTS)
    scores = _said(metadata, "scores", LIST, [0.0] * len(texts))
    kinds = _said(metadata, "token_type", LIST, [NORMAL] * len(texts))
    if not len(texts) == len(scores) == len(kinds) or not texts:
        raise DataError(
            f"there are {len(texts):,} tokens, {len(scores):,} scores and {len(kinds):,} kinds of "
            f"tokens, which must be as many; the file is damaged: download it again"
        )
    return [Piece(*each) for each in zip(texts, scores, kinds, strict=True)]


def _numbered(pieces: list[Piece]) -> dict[str, int]:
    """Each text's id; of one that is there twice that of the special token, else the last."""
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    return ids | {piece.text: i for i, piece in enumerate(pieces) if piece.kind in ADDED}


Made = tuple[tokenizers.Tokenizer, bool]  # and whether a text begins with <s>, if nobody says


def _byte_level(metadata: Mapping[str, Any], pieces: list[Piece]) -> Made:
    """BPE over bytes, cut by the steps that the file names."""
    how = _steps(metadata)
    tokens = _numbered(pieces)
    inner = steps.byte_bpe(Vocabulary(tokens, _merges(metadata, tokens)), {}, {})
    _cut_by(inner, how)
    return inner, how.bos


def _cut_by(inner: tokenizers.Tokenizer, how: Steps) -> None:
    inner.model.ignore_merges = how.whole
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in how.patterns]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([*cuts, last])


def _merges(metadata: Mapping[str, Any], tokens: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for said in _said(metadata, "merges", TEXTS):
        left, _, right = said.partition(" ")
        if not {left, right, left + right} <= tokens.keys():
            raise DataError(
                f"{START}merges has {short(said)}, which joins no two tokens to a third; the file "
                f"is damaged: download it again"
            )
        merges.append((left, right))
    return merges


def _steps(metadata: Mapping[str, Any]) -> Steps:
    name = _said(metadata, "pre", TEXT, "default")
    if name == "default":
        warnings.warn(
            f"the file does not say how its tokeniser cuts words ({START}pre), as old ones do not: "
            f"GPT-2's way is taken; if numbers and names come out wrong, take a newer file",
            stacklevel=6,
        )
        return PRE["gpt-2"]
    if name not in PRE:
        raise DataError(
            f"{START}pre={short(name)} names steps that are not known here; known are "
            f"{', '.join(PRE)}: give the tokeniser of the original checkpoint"
        )
    return PRE[name]


def _sentencepiece(metadata: Mapping[str, Any], pieces: list[Piece]) -> Made:
    """sentencepiece's BPE: the pair with the best score is joined first."""
    tokens = _numbered(pieces)
    if f"{START}merges" in metadata:
        merges = _merges(metadata, tokens)
    else:
        merges = SentencePiece(Path(), tuple(pieces), "bpe", True, 0, {}, b"", True, False).merges()
    space = _said(metadata, "add_space_prefix", FLAG, True)
    options = {"add_prefix_space": space}
    return steps.llama(Vocabulary(tokens, merges), {}, options), True


_KINDS = {"gpt2": _byte_level, "llama": _sentencepiece}
