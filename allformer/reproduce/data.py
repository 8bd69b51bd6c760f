"""An entry's data: a folder of the user's or the public home, and whether it is the right one."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from allformer.data.public_text import PUBLIC_TEXTS, open_public
from allformer.data.records.format import PACKED
from allformer.data.records.lines import opened
from allformer.data.records.records import Records
from allformer.errors import DataError
from allformer.train.pictures.data import PictureData
from allformer.train.sections.data import PairData, TextData


def named_data(section: Any, corpus: str, folder: str | Path | None) -> Any:
    """The data section for a public corpus: fetched, or read from a folder of the same files."""
    if folder is not None and not Path(folder).is_dir():
        raise DataError(f"--data {folder} is no directory; give the folder with the files")
    where = None if folder is None else str(Path(folder).absolute())
    if isinstance(section, PairData | TextData | PictureData):
        return replace(section, corpus=corpus, path=where)
    splits = open_public(corpus, where)  # labelled records: by their files
    return replace(section, path=_file(splits.train), validation=_file(splits.validation))


def _file(records: Records | None) -> str:
    assert records is not None
    return str(records.sources[0].path.absolute())


def changed_files(corpus: str, folder: str | Path | None) -> list[str]:
    """The files of a folder that are not those of the public corpus, to the byte."""
    if folder is None or corpus not in PUBLIC_TEXTS:
        return []
    changed = []
    for file in PUBLIC_TEXTS[corpus].files.values():
        for path in (Path(folder) / (file.name + ending) for ending in ("", *PACKED)):
            if path.is_file():
                with opened(path) as content:
                    if sha256(content.read()).hexdigest() != file.sha256:
                        changed.append(path.name)
                break
        else:
            changed.append(f"{file.name} (under another name)")
    return changed
