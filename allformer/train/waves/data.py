"""The data section of objectives over recordings.

data:
  path: recordings              # a folder of wav, flac, … files, and what is below it
  test: "*_[0-4].wav"           # these names are the test split, and are not trained on
  seconds: 0.5                  # of each crop
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

from allformer.errors import DataError
from allformer.sound.folder import sound_files
from allformer.train.sections.held_out import held_out
from allformer.train.sections.section import Section, one_of, positive

_MOST_HELD_OUT = 500
_FOLDERS = {"train": "train", "test": "test", "val": "val", "valid": "val", "dev": "val"}
Files = list[Path]


@dataclass(frozen=True)
class WaveData(Section, section="data"):
    """Where recordings come from, and how they are cut.

    `test` is a pattern of file names; files below a folder named train, val (valid, dev) or test
    are of that split. Without a val, `hold_out` of train is for validation: so many recordings, or
    a share of them; None: 5 %, at most 500. `validation` names another split to look at.
    """

    path: str | None = None
    test: str | None = None
    validation: Annotated[str | None, one_of("test", "val", "train", "all")] = None
    hold_out: Annotated[float | None, positive("0.1, or 100 recordings")] = None
    seconds: Annotated[float, positive("0.5")] = 1.0

    def opened(self, corpus: Any = None, seed: int = 0) -> tuple[Files, Files]:
        """The recordings to train on and those to validate on.

        `corpus` is files by split, to take instead of those in `path`: `{"train": …, "val": …}`.
        """
        found = self._splits() if corpus is None else dict(corpus)
        name = self.validation or "val"
        if name == "all":
            every = [file for part in found.values() for file in part]
            return every, every
        if not found.get("train"):
            raise DataError(
                f"data.path={self.path!r} leaves no recording to train on: all are held out"
            )
        if "val" not in found:
            found["train"], found["val"] = self._held_out(found["train"], seed)
        if name not in found:
            self.refuse("validation", f"is not there, only {', '.join(found)}", "give data.test")
        return found["train"], found[name]

    def _splits(self) -> dict[str, Files]:
        """The files that the folder holds, by the split that their names say."""
        if self.path is None:
            raise DataError(
                "data.path is missing: say where the recordings are, or give --data DIR"
            )
        found: dict[str, Files] = {}
        for file in sound_files(self.path):
            found.setdefault(self._split_of(file), []).append(file)
        return found

    def _split_of(self, file: Path) -> str:
        if self.test is not None and fnmatch(file.name, self.test):
            return "test"
        below = file.relative_to(self.path or "").parts[:-1]
        return next((_FOLDERS[part] for part in below if part in _FOLDERS), "train")

    def _held_out(self, files: Files, seed: int) -> tuple[Files, Files]:
        which = held_out(self, len(files), most=_MOST_HELD_OUT, seed=seed, what="recordings")
        train, held = ([files[i] for i in part] for part in which)
        return train, held

    def scored(self, path: str | None, split: str | None) -> tuple[str, WaveData]:
        """The section whose validation recordings are a split of its own data (None: test, else
        val), or of another `path` (None: test, else all), and what to call it."""
        here = self if path is None else replace(self, path=path)
        there = "test" in here._splits()
        name = split or ("test" if there else "val" if path is None else "all")
        return name, replace(here, validation=name)
