"""`sound_files("recordings")`: the files of sound in a folder."""

from __future__ import annotations

from pathlib import Path

from allformer.errors import DataError
from allformer.sound.read import ENDINGS


def sound_files(folder: str | Path, *, name: str = "data.path") -> list[Path]:
    """All that end like sound, in the folder and below it, in the order of their names.

    >>> sound_files("recordings")[0]
    PosixPath('recordings/0_george_0.wav')

    `name` is what an error calls the folder.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise DataError(f"{name}={str(folder)!r} is no folder; give one with recordings")
    found = sorted(p for p in root.rglob("*") if p.suffix.lower() in ENDINGS and p.is_file())
    if not found:
        raise DataError(
            f"{name}={str(folder)!r} holds no sound: no file ends with {', '.join(ENDINGS)}; give "
            f"a folder that does"
        )
    return found
