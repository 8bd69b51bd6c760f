"""Public sets of pictures by name: fetched once, checked by their SHA-256, read like any folder."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from allformer.data.fetch import cache_directory, fetch
from allformer.errors import DataError, did_you_mean

_FASHION = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
    "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion/"
)


@dataclass(frozen=True)
class PublicPictures:
    """A set that anybody can download: its files by address, and its terms."""

    home: str
    licence: str
    files: Mapping[str, str]  # address → SHA-256


PUBLIC = {
    "fashion-mnist": PublicPictures(
        "https://github.com/zalandoresearch/fashion-mnist",
        "MIT",
        {
            f"{_FASHION}train-images-idx3-ubyte.gz":
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            f"{_FASHION}train-labels-idx1-ubyte.gz":
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            f"{_FASHION}t10k-images-idx3-ubyte.gz":
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            f"{_FASHION}t10k-labels-idx1-ubyte.gz":
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
    "cifar-10": PublicPictures(
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "none stated",
        {
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz":
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        },
    ),
}  # fmt: skip


def public_folder(name: str, cache: str | Path | None = None) -> Path:
    """The folder of a public set, fetched on first use: `public_folder("fashion-mnist")`."""
    if name not in PUBLIC:
        raise DataError(
            f"no public set of pictures {name!r}; {did_you_mean(name, PUBLIC)}there are "
            f"{', '.join(PUBLIC)}"
        )
    folder = (Path(cache) if cache is not None else cache_directory()) / name
    for url, sha256 in PUBLIC[name].files.items():
        path = fetch(url, sha256, cache=folder)
        if path.name.endswith(".tar.gz"):
            unpack_tar(path, folder)
    return folder


def unpack_tar(archive: Path, folder: Path) -> None:
    """The plain files of an archive, each where its name says and nothing outside of the folder;
    what is there in its size already stays."""
    root = folder.resolve()
    try:
        with tarfile.open(archive) as opened:
            for member in opened:
                into = root / PurePosixPath(member.name)
                if not into.resolve().is_relative_to(root):
                    raise DataError(f"{archive} would write {member.name!r} outside of {folder}")
                content = opened.extractfile(member) if member.isfile() else None
                if content is None or (into.is_file() and into.stat().st_size == member.size):
                    continue
                into.parent.mkdir(parents=True, exist_ok=True)
                part = into.with_name(into.name + ".part")
                part.write_bytes(content.read())
                part.replace(into)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{archive} cannot be unpacked ({error}); fetch it again") from None
