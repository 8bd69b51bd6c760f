"""Open a Marian checkpoint's files: `source.spm`, `target.spm`, `vocab.json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken

from allformer.errors import DataError
from allformer.families.kinds import short
from allformer.text.marian import MarianPipeline
from allformer.text.sentencepiece import read_sentencepiece
from allformer.text.sidecar import read_json


def read_marian(
    directory: Path,
    names: dict[str, str],
    added: dict[int, AddedToken],
    extra: Sequence[str | AddedToken],
    separate: bool,
) -> MarianPipeline:
    """The pipeline of a directory's files; that of its target language is its `target`."""
    files = ["source.spm", "target.spm", "vocab.json"] + ["target_vocab.json"] * separate
    missing = [name for name in files if not (directory / name).is_file()]
    if missing:
        raise DataError(
            f"{directory} has no {' and no '.join(missing)}: a MarianTokenizer needs it"
        )
    tokens = {token.content: token for _, token in sorted(added.items())}
    for token in (*names.values(), *extra):
        tokens.setdefault(
            str(token),
            token if isinstance(token, AddedToken) else AddedToken(token, special=True),
        )
    vocabs = [_read_vocab(directory / name, names["unk"], tokens, added) for name in files[2:]]
    written = {i: token for token, i in vocabs[-1].items()}
    sides = [
        MarianPipeline(read_sentencepiece(directory / name), vocab, written, tokens,
                       names["unk"], names["eos"])
        for name, vocab in zip(files, (vocabs[0], vocabs[-1]), strict=False)
    ]  # fmt: skip
    for side in sides:
        side.target = sides[1]
        side.files = {name: (directory / name).read_bytes() for name in files}
    return sides[0]


def _read_vocab(
    file: Path, unk: str, tokens: dict[str, AddedToken], added: dict[int, AddedToken]
) -> dict[str, int]:
    vocab = read_json(file) or {}
    odd = [name for name, i in vocab.items() if type(i) is not int or not 0 <= i < 2**31]
    if odd:
        raise DataError(
            f"{file} gives {short(odd[0])} the id {short(vocab[odd[0]])}; copy it again"
        )
    if unk not in vocab:
        raise DataError(f"{file} has no {unk}, the token of what it lacks: a Marian model needs it")
    vocab |= {token.content: i for i, token in added.items()}
    for token in tokens:
        vocab.setdefault(token, len(vocab))
    return vocab
