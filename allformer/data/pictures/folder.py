"""A folder with one folder of images a class, perhaps inside one folder a split.

flowers/rose/1.jpg  flowers/tulip/2.png          a single set, to be trained on
flowers/train/rose/1.jpg  flowers/val/rose/…     with splits (also valid, validation, test)
"""

from __future__ import annotations

from pathlib import Path

from allformer.data.pictures.open import reads
from allformer.data.pictures.picture import Array, Picture, Pictures
from allformer.errors import DataError
from allformer.images.read import ENDINGS

NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


class InFiles:
    """Pictures in files, with the number of their folder."""

    def __init__(self, files: list[tuple[Path, int]], labels: tuple[str, ...]) -> None:
        self.files, self.labels = files, labels

    @property
    def pixels(self) -> Array | None:
        """Files are of many sizes."""
        return None

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Picture:
        path, label = self.files[index]
        return Picture(path, label, name=f"{path.parent.name}/{path.name}")


def _folders(path: Path) -> list[Path]:
    return sorted(x for x in path.iterdir() if x.is_dir() and not x.name.startswith("."))


def _images(path: Path) -> list[Path]:
    """The images below a folder, by name."""
    files = (x for x in path.rglob("*") if x.suffix.lower() in ENDINGS and x.is_file())
    return sorted(x for x in files if not x.name.startswith("."))


def _knows(path: Path) -> bool:
    return path.is_dir() and any(_images(folder) for folder in _folders(path))


@reads("folder", knows=_knows)
def read_folder(path: Path) -> dict[str, Pictures]:
    """The classes are those of the training split, sorted by name; others' must be among them."""
    folders = _folders(path)
    named = {NAMES[x.name.lower()]: x for x in folders if x.name.lower() in NAMES}
    if not named:
        return {"train": _read(path, None)}
    first = named.get("train", next(iter(named.values())))
    labels = tuple(x.name for x in _folders(first))
    return {name: _read(folder, labels) for name, folder in named.items()}


def _read(path: Path, labels: tuple[str, ...] | None) -> InFiles:
    folders = _folders(path)
    if labels is None:
        labels = tuple(x.name for x in folders)
    files: list[tuple[Path, int]] = []
    for folder in folders:
        if folder.name not in labels:
            raise DataError(
                f"{folder} is of a class that the training split has not; it has "
                f"{', '.join(labels)}: rename or remove the folder"
            )
        files += [(file, labels.index(folder.name)) for file in _images(folder)]
    return InFiles(files, labels)
