"""Downloads, against a server on this machine: checked, resumed, kept, and clear when they fail."""

import hashlib
import http.server
import io
import socket
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from allformer.data import public
from allformer.data.fetch import cache_directory, fetch, unpack
from allformer.data.parallel import open_corpus
from allformer.errors import DataError

CONTENT = bytes(range(256)) * 1000
SUM = hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; keeps the Range header of each request; may ignore it or break off."""

    files: dict[str, bytes]
    ranges: list[str | None]
    can_resume = True
    break_after: int | None = None

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        content = self.server.files.get(self.path.lstrip("/"))
        asked = self.headers["Range"]
        self.server.ranges.append(asked)
        if content is None:
            return self.send_error(404)
        start = int(asked[len("bytes=") : -1]) if asked and self.server.can_resume else 0
        if start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : self.server.break_after])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    server = Server(("127.0.0.1", 0), Handler)
    server.files, server.ranges = {"a.bin": CONTENT}, []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_good_download_is_kept_and_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    for _ in range(2):
        path = fetch(server.url("a.bin"), SUM.upper(), cache=tmp_path / "c", progress=False)
        assert path.read_bytes() == CONTENT
    assert [file.name for file in (tmp_path / "c").iterdir()] == ["a.bin"]
    assert len(server.ranges) == 1


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"has SHA-256 {SUM}, expected {'0' * 64}"):
        fetch(server.url("a.bin"), "0" * 64, cache=tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_copy_is_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"damaged")
    assert fetch(server.url("a.bin"), SUM, cache=tmp_path, progress=False).read_bytes() == CONTENT


def test_a_refusal_names_the_address_the_reason_and_the_way_out(
    server: Server, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as caught:
        fetch(server.url("none.bin"), SUM, cache=tmp_path, progress=False)
    for part in (server.url("none.bin"), "404", str(tmp_path / "none.bin"), "--data DIR"):
        assert part in str(caught.value)


def test_no_connection_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/a.bin"
    with pytest.raises(DataError, match=r"cannot download .*refused.* by hand to .*a.bin"):
        fetch(url, SUM, cache=tmp_path, progress=False)


@pytest.mark.parametrize("can_resume", [True, False])
def test_a_broken_download_goes_on_or_starts_again(
    server: Server, tmp_path: Path, can_resume: bool
) -> None:
    server.break_after, server.can_resume = 100_000, can_resume
    with pytest.raises(DataError, match="broke off after 100000 of 256000 bytes"):
        fetch(server.url("a.bin"), SUM, cache=tmp_path, progress=False)
    assert (tmp_path / "a.bin.part").stat().st_size == 100_000
    server.break_after = None
    assert fetch(server.url("a.bin"), SUM, cache=tmp_path, progress=False).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-"]
    assert not (tmp_path / "a.bin.part").exists()


def test_a_part_longer_than_the_file_starts_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(CONTENT * 2)
    assert fetch(server.url("a.bin"), SUM, cache=tmp_path, progress=False).read_bytes() == CONTENT


def test_without_a_checksum_the_first_download_is_recorded_and_holds(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "a.bin.part").write_bytes(b"of an older version")  # must not be gone on with
    path = fetch(server.url("a.bin"), None, cache=tmp_path, progress=False)
    assert server.ranges == [None]
    assert (tmp_path / "a.bin.sha256").read_text() == f"{SUM}  a.bin\n"
    server.files["a.bin"] = b"a newer version"
    assert fetch(server.url("a.bin"), None, cache=tmp_path, progress=False) == path
    path.unlink()
    with pytest.raises(DataError, match=rf"expected {SUM}.*delete .*a.bin.sha256"):
        fetch(server.url("a.bin"), None, cache=tmp_path, progress=False)


def test_progress_is_plain_lines_where_there_is_no_terminal(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch(server.url("a.bin"), SUM, cache=tmp_path)
    assert capsys.readouterr().err.splitlines() == [
        "a.bin: downloading, 0.0 of 0.3 MB",
        "a.bin: done, 0.3 of 0.3 MB",
    ]


def test_progress_is_a_bar_on_a_terminal(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    fetch(server.url("a.bin"), SUM, cache=tmp_path)
    assert "256.0/256.0 kB" in terminal.getvalue()


def test_only_web_addresses_of_files_are_taken(tmp_path: Path) -> None:
    for url in ("file:///etc/hosts", "https://example.org/"):
        with pytest.raises(DataError, match="not an http or https address"):
            fetch(url, SUM, cache=tmp_path)


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ALLFORMER_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"
    monkeypatch.delenv("ALLFORMER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "allformer"


def zipped(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["../evil.txt", "/evil.txt", "a/../../evil.txt", "..\\evil.txt"])
def test_unpacking_stays_inside_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.zip").write_bytes(zipped(**{"good.txt": "1", name: "2"}))
    with pytest.raises(DataError, match="outside of"):
        unpack(tmp_path / "a.zip", tmp_path / "in")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.zip"]


def test_a_damaged_zip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="not a whole zip file"):
        unpack(tmp_path / "a.zip", tmp_path / "in")


def test_tatoeba_becomes_a_corpus_split_by_english_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"Sentence {i % 50}.\t句子{i}。\tCC-BY 2.0 (France)\n" for i in range(200)]
    folder = tmp_path / "tatoeba-cmn-eng"
    folder.mkdir()
    # By hand, as the message for a machine without a connection says: no request is made.
    (folder / "cmn-eng.zip").write_bytes(zipped(**{"cmn.txt": "".join(lines), "_about.txt": ""}))
    monkeypatch.setattr(public, "_HELD_OUT", 10)
    assert public.public_corpus("tatoeba-cmn-eng", "zh", "en", tmp_path) == folder
    corpus = open_corpus(folder, "zh", "en")
    train, validation = list(corpus.train), list(corpus.validation or ())
    assert (len(train), len(validation)) == (160, 40)
    assert not {english for _, english in train} & {english for _, english in validation}
    assert validation[0][0].startswith("句子")


def test_multi30k_fetches_the_files_of_the_two_languages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(public, "fetch", lambda url, sha256, **_: asked.append((url, sha256)))
    public.public_corpus("multi30k", "fr", "en", tmp_path, progress=False)
    assert [url.rsplit("/", 1)[1] for url, _ in asked] == [
        "train.fr.gz", "train.en.gz", "val.fr.gz", "val.en.gz",
        "test_2016_flickr.fr.gz", "test_2016_flickr.en.gz",
    ]  # fmt: skip
    assert all(len(sha256) == 64 for _, sha256 in asked)


def test_unknown_data_sets_and_languages_are_listed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are multi30k, tatoeba-cmn-eng"):
        public.public_corpus("wmt", "en", "de", tmp_path)
    with pytest.raises(DataError, match="multi30k has no 'zh'; it has en, de, fr"):
        public.public_corpus("multi30k", "en", "zh", tmp_path)
    with pytest.raises(DataError, match="both 'en'"):
        public.public_corpus("multi30k", "en", "en", tmp_path)
