"""Public corpora for objectives other than translation: where they are, and how each is read.

Addresses name a commit, so that what lies there never changes; the checksums say so again.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from allformer.data.fetch import cache_directory, fetch
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
    files: Mapping[str, File]  # by split; "whole": one file that is cut in two
    options: Mapping[str, Any] = field(default_factory=dict)  # of open_records


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
    if "whole" in found:
        found = _cut(found["whole"], folder)
    return Splits(**{split: open_records(path, **how) for split, path in found.items()})


def _given(folder: Path, name: str) -> Any:
    """The file of this name in a folder, packed or not; `None`: it is not there."""
    paths = [folder / (name + ending) for ending in ("", *PACKED)]
    return next((path for path in paths if path.is_file()), None)


def _as_splits(folder: Path, corpus: PublicText, how: Mapping[str, Any]) -> Splits:
    splits = open_splits(folder, **how) if folder.is_dir() else Splits()
    if splits.train is None or splits.validation is None:
        names = " and ".join(file.name for file in corpus.files.values())
        there = listing(folder) if folder.is_dir() else "there is no such directory"
        raise DataError(
            f"{folder} has neither {names} nor train.* and val.*; {there}. They are at "
            f"{corpus.home}"
        )
    return splits


def _cut(path: Path, folder: Path) -> dict[str, Path]:
    """The first nine tenths for training, the rest for validation, as nanoGPT has it."""
    with opened(path) as file:
        text = file.read().decode("utf-8")
    folder = folder / f"cut-{sha256(text.encode()).hexdigest()[:8]}"
    border = int(len(text) * 0.9)
    found = {}
    for split, part in (("train", text[:border]), ("validation", text[border:])):
        found[split] = folder / f"{split}.txt"
        if not found[split].exists():
            folder.mkdir(parents=True, exist_ok=True)
            aside = folder / f".{split}.{os.getpid()}"
            aside.write_bytes(part.encode())
            os.replace(aside, found[split])
    return found


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
}
