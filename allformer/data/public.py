"""Public parallel data sets by name: where they are, and how each becomes a directory of text."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from allformer.data.fetch import cache_directory, fetch, unpack
from allformer.data.parallel import Pair, hold_out, read_tsv
from allformer.errors import DataError

_HELD_OUT = 1000  # English sentences of Tatoeba kept for validation


@dataclass(frozen=True)
class PublicData:
    """A data set that anybody can download: its languages, its terms and its files."""

    languages: tuple[str, ...]
    licence: str
    home: str
    prepare: Callable[[Path, str, str, bool], None]  # fills a directory for two languages


def public_corpus(
    name: str,
    source: str,
    target: str,
    cache: str | Path | None = None,
    *,
    progress: bool = True,
) -> Path:
    """A directory with a public data set, downloaded on first use, for `open_corpus` to read.

    >>> open_corpus(public_corpus("multi30k", "en", "de"), "en", "de").train
    """
    if name not in PUBLIC:
        raise DataError(f"no public data set {name!r}; there are {', '.join(PUBLIC)}")
    data = PUBLIC[name]
    for language in (source, target):
        if language not in data.languages:
            raise DataError(f"{name} has no {language!r}; it has {', '.join(data.languages)}")
    if source == target:
        raise DataError(f"source and target are both {source!r}; choose two languages")
    folder = (Path(cache) if cache is not None else cache_directory()) / name
    if progress and not folder.exists():
        print(f"{name}: from {data.home}; terms: {data.licence}", file=sys.stderr)
    data.prepare(folder, source, target, progress)
    return folder


def _multi30k(folder: Path, source: str, target: str, progress: bool) -> None:
    base = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
    for split in ("train", "val", "test_2016_flickr"):
        for language in (source, target):
            file = f"{split}.{language}.gz"
            fetch(base + file, _MULTI30K[file], cache=folder, progress=progress)


def _tatoeba(folder: Path, source: str, target: str, progress: bool) -> None:
    """English and Mandarin in one list; all translations of an English sentence on one side."""
    if all((folder / f"{split}.{side}").exists() for split in ("train", "val") for side in _SIDES):
        return
    # The list grows with Tatoeba, so no checksum can be given: that of the first download holds.
    url = "https://www.manythings.org/anki/cmn-eng.zip"
    archive = fetch(url, None, cache=folder, progress=progress)
    texts = [path for path in unpack(archive, folder / "unpacked") if path.name == "cmn.txt"]
    if not texts:
        raise DataError(f"{archive} has no cmn.txt in it; see {url.rsplit('/', 1)[0]}")
    train, validation = hold_out(read_tsv(texts[0]), _HELD_OUT)  # English, Chinese, attribution
    _write(validation, folder, "val")
    _write(train, folder, "train")


def _write(pairs: Iterable[Pair], folder: Path, split: str) -> None:
    paths = [folder / f"{split}.{side}" for side in _SIDES]
    parts = [path.with_name(path.name + ".part") for path in paths]
    with (
        parts[0].open("w", encoding="utf-8", newline="\n") as english,
        parts[1].open("w", encoding="utf-8", newline="\n") as chinese,
    ):
        for source, target in pairs:
            english.write(source + "\n")
            chinese.write(target + "\n")
    for part, path in zip(parts, paths, strict=True):
        os.replace(part, path)


_SIDES = ("en", "zh")

_MULTI30K = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.fr.gz": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.fr.gz": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.fr.gz": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
}

PUBLIC = {
    "multi30k": PublicData(
        languages=("en", "de", "fr"),
        licence="non-commercial research and education",
        home="https://github.com/multi30k/dataset",
        prepare=_multi30k,
    ),
    "tatoeba-cmn-eng": PublicData(
        languages=_SIDES,
        licence="CC BY 2.0 FR, Tatoeba.org by way of manythings.org",
        home="https://www.manythings.org/anki/",
        prepare=_tatoeba,
    ),
}
