"""Download a public file once: with progress, resumed if it broke off, checked by its SHA-256."""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from allformer.errors import DataError

_BLOCK = 1 << 16
_TIMEOUT = 30.0  # seconds without a byte
_LINE_EVERY = 10.0  # seconds between progress lines where there is no terminal

Advance = Callable[[int], None]


def cache_directory() -> Path:
    """Where downloads are kept: `$ALLFORMER_CACHE`, or `allformer` in the user's cache directory.

    >>> cache_directory()
    PosixPath('/home/me/.cache/allformer')
    """
    if own := os.environ.get("ALLFORMER_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "allformer"


def fetch(
    url: str, sha256: str | None, *, cache: str | Path | None = None, progress: bool = True
) -> Path:
    """The local copy of `url`, downloaded unless it is there already.

    >>> fetch("https://example.org/train.en.gz", "d79cfa99…")
    PosixPath('/home/me/.cache/allformer/train.en.gz')

    A download that broke off goes on where it stopped if the server can. `sha256=None` is for a
    file that its publisher changes from time to time: the checksum of the first download is
    recorded beside the file (`.sha256`) and holds from then on.
    """
    name = PurePosixPath(urllib.parse.urlsplit(url).path).name
    if urllib.parse.urlsplit(url).scheme not in ("http", "https") or name in ("", ".."):
        raise DataError(f"{url} is not an http or https address of a file")
    folder = Path(cache) if cache is not None else cache_directory()
    path, part = folder / name, folder / (name + ".part")
    wanted = sha256.lower() if sha256 else _recorded(path)
    if path.is_file() and (wanted is None or _sha256(path) == wanted):
        if sha256 is None:
            _record(path)
        return path
    if wanted is None:
        part.unlink(missing_ok=True)  # the file may have changed: half and half would go unseen
    _download(url, part, path, progress)
    found = _sha256(part)
    if wanted is not None and found != wanted:
        part.unlink()
        raise DataError(
            f"{url} has SHA-256 {found}, expected {wanted}; what came was removed: "
            + ("try again" if sha256 else f"delete {_record_path(path)} to take the new version")
            + _by_hand(path)
        )
    os.replace(part, path)
    if sha256 is None:
        _record(path)
    return path


def unpack(archive: str | Path, folder: str | Path) -> list[Path]:
    """Unpack a zip file into a folder, nothing outside of it: `unpack("cmn-eng.zip", "texts")`."""
    folder = Path(folder)
    root = folder.resolve()
    try:
        with zipfile.ZipFile(archive) as opened:
            files = [info for info in opened.infolist() if not info.is_dir()]
            for info in files:
                if not (root / info.filename.replace("\\", "/")).resolve().is_relative_to(root):
                    raise DataError(
                        f"{archive} would write {info.filename!r} outside of {folder}; not unpacked"
                    )
            return [Path(opened.extract(info, folder)) for info in files]
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise DataError(f"{archive} is not a whole zip file ({error}); fetch it again") from error


def _download(url: str, part: Path, path: Path, progress: bool) -> None:
    """Append to `part` until the file is whole."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with _open(url, part.stat().st_size if part.exists() else 0) as response:
            resumed = response.status == 206
            have = part.stat().st_size if resumed else 0
            length = response.headers.get("Content-Length")
            total = have + int(length) if length else None
            with (
                part.open("ab" if resumed else "wb") as file,
                _bar(part.stem, have, total, progress) as advance,
            ):
                while block := response.read(_BLOCK):
                    file.write(block)
                    have += len(block)
                    advance(len(block))
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        reason = f"the server answered {error.code} {error.reason}"
        raise DataError(f"cannot download {url}: {reason}" + _by_hand(path)) from error
    except urllib.error.URLError as error:
        raise DataError(f"cannot download {url}: {error.reason}" + _by_hand(path)) from error
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"the download of {url} broke off: {error}" + _by_hand(path)) from error
    if total is not None and have != total:
        raise DataError(
            f"the download of {url} broke off after {have} of {total} bytes; run it again to go on "
            "from there"
        )


def _open(url: str, have: int) -> Any:
    """The response, from byte `have` on where the server can (status 206), else the whole (200)."""
    headers = {"User-Agent": "allformer"}  # some servers refuse Python's own name
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=_TIMEOUT
        )
    except urllib.error.HTTPError as error:
        if not have or error.code != 416:  # 416: nothing is there after byte `have`
            raise
        error.close()
        return _open(url, 0)
    begins = (response.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
    if response.status == 206 and not begins:
        response.close()
        return _open(url, 0)
    return response


def _by_hand(path: Path) -> str:
    return (
        f". Without a connection, download it by hand to {path}, or give your own data with "
        "--data DIR"
    )


@contextmanager
def _bar(name: str, have: int, total: int | None, wanted: bool) -> Iterator[Advance]:
    """Progress on stderr: a bar on a terminal, a line now and then elsewhere."""
    if not wanted:
        yield lambda count: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

        columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(name, total=total, completed=have)
            yield lambda count: bar.advance(task, count)
    else:
        lines = _Lines(name, have, total)
        yield lines.advance
        lines.show("done")


class _Lines:
    """Plain progress lines: at the start, every few seconds, at the end."""

    def __init__(self, name: str, have: int, total: int | None) -> None:
        self.name, self.have, self.total = name, have, total
        self.show("downloading")

    def advance(self, count: int) -> None:
        self.have += count
        if time.monotonic() - self.shown > _LINE_EVERY:
            self.show("downloading")

    def show(self, word: str) -> None:
        self.shown = time.monotonic()
        size = f"{self.have / 1e6:.1f}" + (f" of {self.total / 1e6:.1f}" if self.total else "")
        print(f"{self.name}: {word}, {size} MB", file=sys.stderr, flush=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _record(path: Path) -> None:
    record = _record_path(path)
    if not record.exists():
        record.write_text(f"{_sha256(path)}  {path.name}\n")  # as `sha256sum -c` reads it


def _recorded(path: Path) -> str | None:
    record = _record_path(path)
    return record.read_text().split()[0] if record.is_file() else None
