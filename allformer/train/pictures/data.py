"""The data section of objectives over pictures.

data:
  path: fashion-mnist            # with its splits: a folder of folders, idx, CIFAR, …
  augment: {crop: 4, flip: 0.5, randaugment: 2, mixup: 0.8, cutmix: 1.0, erase: 0.25}
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from allformer.config.check import Rule
from allformer.data.pictures import (
    PUBLIC,
    SPLITS,
    Part,
    Pictures,
    open_pictures,
    public_folder,
)
from allformer.errors import DataError
from allformer.train.sections.held_out import held_out, scored_split
from allformer.train.sections.section import Section, at_least, at_most, one_of, positive

_MOST_HELD_OUT = 5_000
_TWO = Rule(lambda x: len(x) == 2, "must be [height, width]", "try [32, 32]")
_THREE = Rule(lambda x: len(x) in (1, 3), "must have a number for each channel", "try [0.5]")
Side = Annotated[int, at_least(1)]
Numbers = Annotated[tuple[float, ...], _THREE]


@dataclass(frozen=True)
class PictureData(Section, section="data"):
    """Where pictures come from, and in which size they are read.

    `image`, `channels`, `mean` and `std` left out are those of the model's checkpoint, else the
    data's own size and 0.5; the run's recipe has them all.
    """

    path: str | None = None
    corpus: str | None = None  # a public set by name, fetched unless `path` says where it lies
    format: str = "auto"
    validation: str | None = None  # a split of `path` (test), or other data; None: val, else held
    # out of train: so many pictures, or a share of them; None: 5 %, at most 5,000
    hold_out: Annotated[float | None, positive("0.1, or 1000 pictures")] = None
    image: Annotated[tuple[Side, ...] | None, _TWO] = None
    channels: Annotated[int | None, Rule(lambda x: x in (1, 3), "must be 1 or 3", "try 3")] = None
    mean: Numbers | None = None  # of values from 0 to 1
    std: Numbers | None = None
    # processes that read files; None: one a core, where files and cores are many; 0: threads
    workers: Annotated[int | None, at_least(0), at_most(1024)] = None
    reduced: bool = (
        False  # JPEGs four times as large as `image` are decoded at a part of their size
    )
    resample: Annotated[str, one_of("bilinear", "bicubic", "nearest", "lanczos")] = "bilinear"

    def opened(self, corpus: Any = None, seed: int = 0) -> tuple[Pictures, Pictures]:
        """The pictures to train on and those to validate on."""
        splits = corpus if corpus is not None else self._splits()
        if self.validation is not None:
            held = self._named(splits)
            return splits.get("train", held), held
        if "train" not in splits:
            raise DataError(f"{self.path} has no train split, only {', '.join(splits)}; add one")
        if "val" in splits:
            return splits["train"], splits["val"]
        return self._held_out(splits["train"], seed)

    def _splits(self) -> dict[str, Pictures]:
        if self.path is None and self.corpus is None:
            raise DataError(
                "data.path is missing: say where the pictures are, give --data DIR, or name a "
                f"public set: data.corpus={' or '.join(PUBLIC)}"
            )
        return open_pictures(self.path or public_folder(self.corpus or ""), self.format)

    def _named(self, splits: dict[str, Pictures]) -> Pictures:
        name = self.validation
        assert name is not None
        if name in SPLITS:
            if name not in splits:
                raise DataError(
                    f"data.validation={name!r}: there is no such split, only {', '.join(splits)}"
                )
            return splits[name]
        other = open_pictures(name, self.format)
        return next(other[split] for split in ("val", "test", "train") if split in other)

    def _held_out(self, train: Pictures, seed: int) -> tuple[Pictures, Pictures]:
        which = held_out(self, len(train), most=_MOST_HELD_OUT, seed=seed, what="pictures")
        return Part(train, which[0]), Part(train, which[1])

    def scored(self, path: str | None, split: str | None) -> tuple[str, PictureData]:
        """The section whose validation pictures are a split (None: test, else val, else all) of its
        own data or of another `path`, and what to call it."""
        here = self if path is None else replace(self, path=path, corpus=None, format="auto")
        splits = here._splits()
        held = path is None and self.validation is None and "val" not in splits
        told, name = scored_split(splits, split, held=held, name=str(here.path or here.corpus))
        return told, self if name is None else replace(here, validation=name)
