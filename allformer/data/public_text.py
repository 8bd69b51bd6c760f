"""Public corpora for objectives other than translation: where they are, and how each is read.

Addresses name a commit, so that what lies there never changes; the checksums say so again. What is
drawn by a grammar is made on first use instead.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from allformer.data.fetch import cache_directory, fetch
from allformer.data.listops import write_listops
from allformer.data.parallel import listing
from allformer.data.records import Splits, open_records, open_splits
from allformer.data.records.format import PACKED
from allformer.data.records.lines import opened
from allformer.data.records.records import Warn
from allformer.errors import DataError, did_you_mean

_GITHUB = "https://raw.githubusercontent.com/"


@dataclass(frozen=True)
class File:
    """A file at its public home."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        """What the file is called there."""
        return PurePosixPath(self.url).name


@dataclass(frozen=True)
class PublicText:
    """A corpus that anybody can download: its files by split, its terms and how it is read."""

    home: str
    licence: str
    files: Mapping[str, File]  # by split; "whole": one file that is cut
    options: Mapping[str, Any] = field(default_factory=dict)  # of open_records
    cut: Callable[[bytes], Mapping[str, bytes]] | None = None  # of a whole file, its splits
    make: Callable[[Path], Any] | None = None  # of what is drawn, not fetched: fills a folder


def open_public(
    name: str,
    data: str | Path | None = None,
    *,
    cache: str | Path | None = None,
    progress: bool = True,
    warn: Warn = warnings.warn,
    **options: Any,
) -> Splits:
    """The splits of a public corpus: `open_public("sst2").train`.

    Downloaded on first use; or, with `data`, read from a folder of yours that holds the same files
    (packed or not, under their names at home or as train.*, val.*). `options` are those of
    `open_records`, over the corpus's own.
    """
    if name not in PUBLIC_TEXTS:
        raise DataError(
            f"no public corpus {name!r}; {did_you_mean(name, PUBLIC_TEXTS)}"
            f"there are {', '.join(PUBLIC_TEXTS)}"
        )
    corpus = PUBLIC_TEXTS[name]
    folder = (Path(cache) if cache is not None else cache_directory()) / name
    how = {**corpus.options, **options, "warn": warn}
    if corpus.make is not None:
        return _as_splits(
            _made(name, corpus, folder, progress) if data is None else Path(data), corpus, how
        )
    if data is None:
        if progress and not folder.exists():
            print(f"{name}: from {corpus.home}; terms: {corpus.licence}", file=sys.stderr)
        found = {
            split: fetch(file.url, file.sha256, cache=folder, progress=progress)
            for split, file in corpus.files.items()
        }
    else:
        found = {split: _given(Path(data), file.name) for split, file in corpus.files.items()}
        if None in found.values():
            return _as_splits(Path(data), corpus, how)
    if corpus.cut is not None:
        found = _cut(found["whole"], corpus.cut, folder)
    return Splits(**{split: open_records(path, **how) for split, path in found.items()})


def _given(folder: Path, name: str) -> Any:
    """The file of this name in a folder, packed or not; `None`: it is not there."""
    bare = next((name.removesuffix(ending) for ending in PACKED if name.endswith(ending)), name)
    paths = [folder / (bare + ending) for ending in ("", *PACKED)]
    return next((path for path in paths if path.is_file()), None)


def _as_splits(folder: Path, corpus: PublicText, how: Mapping[str, Any]) -> Splits:
    splits = open_splits(folder, **how) if folder.is_dir() else Splits()
    if splits.train is None or splits.validation is None:
        names = " and ".join(file.name for file in corpus.files.values())
        wanted = f"neither {names} nor train.* and val.*" if names else "no train.* and val.*"
        there = "there is no such directory"
        if folder.is_dir():
            there = listing(folder)
        elif folder.is_file():
            there = "it is a file, not their directory"
        raise DataError(f"{folder} has {wanted}; {there}. They are at {corpus.home}")
    return splits


def _made(name: str, corpus: PublicText, folder: Path, progress: bool) -> Path:
    """The folder with what is drawn, once: it takes the place of none, whole."""
    assert corpus.make is not None
    if not folder.exists():
        if progress:
            print(f"{name}: drawn into {folder}; see {corpus.home}", file=sys.stderr)
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = folder.with_name(f".{folder.name}.{os.getpid()}")
        corpus.make(aside)
        try:
            os.replace(aside, folder)
        except OSError:  # another process was first
            shutil.rmtree(aside)
    return folder


def _cut(path: Path, cut: Callable[[bytes], Mapping[str, bytes]], folder: Path) -> dict[str, Path]:
    """A file's splits beside it in the cache, each a file of its own."""
    with opened(path) as file:
        content = file.read()
    folder = folder / f"cut-{sha256(content).hexdigest()[:8]}"
    found = {}
    for split, part in cut(content).items():
        found[split] = folder / f"{split}.txt"
        if not found[split].exists():
            folder.mkdir(parents=True, exist_ok=True)
            aside = folder / f".{split}.{os.getpid()}"
            aside.write_bytes(part)
            os.replace(aside, found[split])
    return found


def _nine_tenths(content: bytes) -> dict[str, bytes]:
    """Of the characters for training, the rest for validation, as nanoGPT has it."""
    text = content.decode("utf-8")
    border = int(len(text) * 0.9)
    return {"train": text[:border].encode(), "validation": text[border:].encode()}


def _ninety_five_five(content: bytes) -> dict[str, bytes]:
    """90, 5 and 5 of a hundred bytes, as everybody cuts enwik8; of another file where a character
    begins (there they do)."""
    borders = [0]
    for share in (0.9, 0.95):
        border = int(len(content) * share)
        while border and content[border] & 0xC0 == 0x80:  # inside a character
            border -= 1
        borders.append(border)
    pairs = zip(borders, [*borders[1:], len(content)], strict=True)
    names = ("train", "validation", "test")
    return {name: content[a:b] for name, (a, b) in zip(names, pairs, strict=True)}


_SHAKESPEARE = f"{_GITHUB}karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data"
_WIKITEXT = (
    f"{_GITHUB}pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8"
    "/word_language_model/data/wikitext-2"
)
_SST2 = (
    f"{_GITHUB}clairett/pytorch-sentiment-classification"
    "/457ffd83de90a9d6d472d8ffc31bbffe40a8b236/data/SST2"
)
_WNUT17 = f"{_GITHUB}leondz/emerging_entities_17/e52a2d2a71ac1a051ca2d532eef28653c5c02603"

PUBLIC_TEXTS = {
    "tiny-shakespeare": PublicText(
        home="https://github.com/karpathy/char-rnn",
        licence="public domain",
        files={
            "whole": File(
                f"{_SHAKESPEARE}/tinyshakespeare/input.txt",
                "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            ),
        },
        options={"unit": "file"},
        cut=_nine_tenths,
    ),
    "enwik8": PublicText(
        home="https://mattmahoney.net/dc/textdata.html",  # fetched from a copy that keeps still
        licence="CC BY-SA, Wikipedia's authors",
        files={
            "whole": File(
                f"{_GITHUB}lucidrains/native-sparse-attention-pytorch"
                "/5a6146095249162c1ecccc0be2ddaf7fc2fb40ad/data/enwik8.gz",
                "d52ea2118b505f79007e084b2f49acef9fd0e45fb481f84b2cab0a7191a7ef60",
            ),
        },
        options={"unit": "file"},
        cut=_ninety_five_five,
    ),
    "wikitext-2": PublicText(
        home="https://github.com/pytorch/examples",  # its first home, an S3 bucket, is gone
        licence="CC BY-SA, Wikipedia's authors",
        files={
            "train": File(
                f"{_WIKITEXT}/train.txt",
                "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
            ),
            "validation": File(
                f"{_WIKITEXT}/valid.txt",
                "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
            ),
        },
        # An article begins with its title between single signs; sections have several.
        options={"unit": "document", "begins": " = [^=].* = "},
    ),
    "sst2": PublicText(
        home="https://github.com/clairett/pytorch-sentiment-classification",
        licence="none stated; Stanford Sentiment Treebank",
        files={
            "train": File(
                f"{_SST2}/train.tsv",
                "ec192f833a64da08f475488a77b0d0b47db47acd0f458bd18433fc793b569920",
            ),
            "validation": File(
                f"{_SST2}/dev.tsv",
                "eddea6b39e601dd4e7a672b53cc40fdf6019fa80522f351206c24340ca5d9359",
            ),
        },
        options={"columns": {"text": 0, "label": 1}},
    ),
    "wnut17": PublicText(
        home="https://github.com/leondz/emerging_entities_17",
        licence="CC BY 4.0",
        files={
            "train": File(
                f"{_WNUT17}/wnut17train.conll",
                "731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5",
            ),
            "validation": File(
                f"{_WNUT17}/emerging.dev.conll",
                "e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8",
            ),
        },
        options={"columns": {"tokens": "tokens", "tags": "tags"}},
    ),
    "listops": PublicText(
        home="https://github.com/google-research/long-range-arena (drawn by the same grammar)",
        licence="none: it is drawn here",
        files={},
        options={"columns": {"text": "Source", "label": "Target"}},
        make=write_listops,
    ),
}
