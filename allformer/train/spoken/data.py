"""The data section of `transcription`.

data: {path: mine}          # train.tsv and val.tsv: a sound file, a tab, its text
data: {path: digits}        # Free Spoken Digit Dataset: 3_theo_17.wav
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from allformer.data.recordings import Recording, Recordings, open_recordings
from allformer.errors import DataError
from allformer.train.sections.held_out import held_out, scored_split
from allformer.train.sections.section import Section, at_least, positive

_MOST_HELD_OUT = 1_000
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class SpokenData(Section, section="data"):
    """Where recordings come from.

    Of a fresh model `seconds` is how long a recording may be; a checkpoint has its own window
    (Whisper's is 30 s). Longer ones are left out, aloud, and so are texts of more than `max_length`
    tokens.
    """

    path: str | None = None
    validation: str | None = None  # a split of `path` (test), or another path; None: val, else held
    # out of train: so many recordings, or a share of them; None: 5 %, at most 1,000
    hold_out: Annotated[float | None, positive("0.1, or 100 recordings")] = None
    seconds: Annotated[float, positive("30.0")] = 30.0
    max_length: Annotated[int, at_least(4)] = 448

    def opened(self, corpus: Any = None, seed: int = 0) -> tuple[list[Recording], list[Recording]]:
        """The recordings to train on and those to validate on; `corpus` is splits by name."""
        splits: Recordings = self._splits() if corpus is None else corpus
        if self.validation is not None:
            held = self._named(splits)
            return splits.get("train", held), held
        if "train" not in splits:
            raise DataError(f"{self.path} has no train split, only {', '.join(splits)}; add one")
        if "val" in splits:
            return splits["train"], splits["val"]
        return self._held_out(splits["train"], seed)

    def _splits(self) -> Recordings:
        if self.path is None:
            raise DataError(
                "data.path is missing: say where the recordings are, or give --data DIR"
            )
        return open_recordings(self.path)

    def _named(self, splits: Recordings) -> list[Recording]:
        name = self.validation
        assert name is not None
        if name not in SPLITS:
            other = open_recordings(name)
            return next(other[split] for split in ("val", "test", "train") if split in other)
        if name not in splits:
            raise DataError(
                f"data.validation={name!r}: there is no such split, only {', '.join(splits)}"
            )
        return splits[name]

    def _held_out(
        self, train: list[Recording], seed: int
    ) -> tuple[list[Recording], list[Recording]]:
        which = held_out(self, len(train), most=_MOST_HELD_OUT, seed=seed, what="recordings")
        kept, held = ([train[i] for i in part] for part in which)
        return kept, held

    def scored(self, path: str | None, split: str | None) -> tuple[str, SpokenData]:
        """The section whose validation recordings are a split (None: test, else val, else all) of
        its own data or of another `path`, and what to call it."""
        here = self if path is None else replace(self, path=path)
        splits = here._splits()
        held = path is None and self.validation is None and "val" not in splits
        told, name = scored_split(splits, split, held=held, name=str(here.path))
        return told, self if name is None else replace(here, validation=name)
