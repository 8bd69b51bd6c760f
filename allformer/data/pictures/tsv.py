"""Pictures with captions: a table with tabs between, an image's file and a caption on each line.

photos/train.tsv          dogs/1.jpg <tab> A dog runs on the beach.
photos/val.tsv            image <tab> caption            a first line may name the columns

A file is looked for beside its table, and in a folder `images` there. An image may stand on several
lines, a caption each; Flickr's `1.jpg#0` is understood.
"""

from __future__ import annotations

from pathlib import Path

from allformer.data.pictures.open import reads
from allformer.data.pictures.picture import Array, Picture, Pictures
from allformer.data.records.format import Options, Reading
from allformer.data.records.lines import numbered_lines
from allformer.errors import DataError

SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val",
          "test": "test"}  # fmt: skip
IMAGE = ("image", "path", "file", "filename", "filepath", "image_path")
CAPTION = ("caption", "text", "title", "sentence")
ENDINGS = (".tsv", ".tab", ".tsv.gz", ".tab.gz")
FOLDERS = ("", "images")


class Captioned:
    """Pictures in files, each with its captions."""

    labels: tuple[str, ...] = ()

    def __init__(self, files: list[tuple[Path, tuple[str, ...]]]) -> None:
        self.files = files

    @property
    def pixels(self) -> Array | None:
        """Files are of many sizes."""
        return None

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Picture:
        path, captions = self.files[index]
        return Picture(path, captions=captions, name=path.name)


def _tables(path: Path) -> dict[str, Path]:
    """The tables of a path by split; a single one is all train."""
    if path.is_file():
        return {"train": path} if path.name.lower().endswith(ENDINGS) else {}
    files = sorted(x for x in path.iterdir() if x.name.lower().endswith(ENDINGS) and x.is_file())
    found: dict[str, Path] = {}
    for file in files:
        split = SPLITS.get(file.name.lower().split(".")[0])
        if split is not None:
            found.setdefault(split, file)
    return {"train": files[0]} if len(files) == 1 and not found else found


@reads("tsv", knows=lambda path: bool(_tables(path)))
def read_tsv(path: Path) -> dict[str, Pictures]:
    """train, val and test, of those the tables that are there."""
    tables = _tables(path)
    if not tables:
        raise DataError(
            f"{path} has no table of captions; name it train.tsv, a file and a caption on a line"
        )
    return {split: Captioned(_read(table)) for split, table in tables.items()}


def _read(table: Path) -> list[tuple[Path, tuple[str, ...]]]:
    found: dict[Path, list[str]] = {}
    places: tuple[int, int] | None = None
    for number, line in numbered_lines(table, Reading(Options())):
        if isinstance(line, DataError):
            raise line
        if not line.strip():
            continue
        cells = line.split("\t")
        if places is None:
            places = _columns(cells)
            if places is not None:
                continue
            places = (0, 1)
        where = f"{table}, line {number}"
        if len(cells) <= max(places):
            raise DataError(f"{where}: there is no tab; a line has an image's file and a caption")
        image, caption = (cells[place].strip() for place in places)
        if not caption:
            raise DataError(f"{where}: the caption of {image} is empty; mend or remove the line")
        found.setdefault(_file(table.parent, image, where), []).append(caption)
    return [(path, tuple(dict.fromkeys(captions))) for path, captions in found.items()]


def _columns(cells: list[str]) -> tuple[int, int] | None:
    """Where image and caption stand, if this line is a header."""
    names = [cell.strip().lower() for cell in cells]
    image = next((names.index(name) for name in IMAGE if name in names), None)
    caption = next((names.index(name) for name in CAPTION if name in names), None)
    return None if image is None or caption is None else (image, caption)


def _file(folder: Path, name: str, where: str) -> Path:
    for image in (name, name.rpartition("#")[0]):
        for inner in FOLDERS if image else ():
            if (path := folder / inner / image).is_file():
                return path
    raise DataError(f"{where}: there is no image {name} in {folder} (or {folder}/images); add it")
