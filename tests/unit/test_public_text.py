"""Public corpora by name: fetched from a server on this machine, or read from a folder."""

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from allformer.data import public_text
from allformer.data.listops import Shape, write_listops
from allformer.data.public_text import PUBLIC_TEXTS, File, open_public
from allformer.errors import DataError
from allformer.train.objectives.classification import ClassData
from allformer.train.supervised.data import open_labelled
from tests.unit.test_fetch import Server, server  # noqa: F401

SHARED = Path(__file__).parents[3] / "shared" / "data"  # beside the checkout

SMALL = {
    "tiny-shakespeare": {"input.txt": "".join(f"LINE {i}.\n\n" for i in range(10))},
    "enwik8": {"enwik8.gz": "".join(f"ſ{i}" for i in range(20))},
    "wikitext-2": {"train.txt": " \n = A = \n \n text \n", "valid.txt": " \n = B = \n \n more \n"},
    "sst2": {"train.tsv": 'a "fine film\t1\n', "dev.tsv": "dull\t0\n"},
    "wnut17": {"wnut17train.conll": "Rome\tB-location\n\t\n", "emerging.dev.conll": "a\tO\n"},
}
FIRST = {
    "wikitext-2": {"text": " = A = \n \n text "},
    "sst2": {"text": 'a "fine film', "label": "1"},
    "wnut17": {"tokens": ["Rome"], "tags": ["B-location"]},
}


@pytest.fixture
def home(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:  # noqa: F811
    """Every corpus at home on this machine, with little in it."""
    for name, files in SMALL.items():
        corpus, moved = PUBLIC_TEXTS[name], {}
        for split, file in corpus.files.items():
            content = files[file.name].encode()
            server.files[f"{name}/{file.name}"] = content
            url = server.url(f"{name}/{file.name}")
            moved[split] = File(url, hashlib.sha256(content).hexdigest())
        monkeypatch.setitem(PUBLIC_TEXTS, name, replace(corpus, files=moved))
    return server


@pytest.mark.parametrize("name", SMALL)
def test_a_corpus_is_fetched_once_and_read_as_it_should_be(
    home: Server, tmp_path: Path, name: str
) -> None:
    for _ in range(2):
        splits = open_public(name, cache=tmp_path, progress=False)
    assert len(home.ranges) == len(SMALL[name])
    assert splits.train is not None
    assert splits.validation is not None
    train, validation = list(splits.train), list(splits.validation)
    assert len(train) == len(validation) == 1
    if name == "tiny-shakespeare":  # nine tenths and one tenth of the characters, none lost
        whole = SMALL[name]["input.txt"]
        assert train[0]["text"] + validation[0]["text"] == whole
        assert len(train[0]["text"]) == int(len(whole) * 0.9)
    elif name == "enwik8":  # 90 : 5 : 5 of 70 bytes: 63, and 66 is inside a character
        whole, test = SMALL[name]["enwik8.gz"], list(splits.test or ())
        parts = [part[0]["text"].encode() for part in (train, validation, test)]
        assert [len(part) for part in parts] == [62, 4, 4]
        assert b"".join(parts) == whole.encode()
    else:
        assert train == [FIRST[name]]


@pytest.mark.parametrize("name", SMALL)
def test_a_folder_of_ones_own_is_read_instead(home: Server, tmp_path: Path, name: str) -> None:
    fetched = open_public(name, cache=tmp_path / "cache", progress=False)
    home.ranges.clear()
    own = tmp_path / "own"
    own.mkdir()
    for file, text in SMALL[name].items():
        (own / f"{file.removesuffix('.gz')}.gz").write_bytes(gzip.compress(text.encode()))
    given = open_public(name, own, cache=tmp_path / "other", progress=False)
    assert list(given.train or ()) == list(fetched.train or ())
    assert list(given.validation or ()) == list(fetched.validation or ())
    assert home.ranges == []


def test_a_corpus_that_is_drawn_is_made_once(tmp_path: Path, monkeypatch) -> None:
    def make(folder: Path) -> None:
        write_listops(folder, 6, 3, 2, shape=Shape(depth=4, args=4, low=10, high=60))

    listops = replace(PUBLIC_TEXTS["listops"], make=make)
    monkeypatch.setitem(PUBLIC_TEXTS, "listops", listops)
    made = open_public("listops", cache=tmp_path, progress=False)
    monkeypatch.setitem(PUBLIC_TEXTS, "listops", replace(listops, make=pytest.fail))
    again = open_public("listops", cache=tmp_path, progress=False)
    given = open_public("listops", tmp_path / "listops")
    for splits in (made, again, given):
        assert splits.train is not None
        assert len(list(splits.train)) == 6
        assert list(splits.train) == list(made.train or ())
        assert set(next(iter(splits.train))) == {"text", "label"}
    with pytest.raises(DataError, match=r"no train\.\* and val\.\*; there is no such"):
        open_public("listops", tmp_path / "none")
    data = ClassData(corpus="listops", path=str(tmp_path / "listops"), text="Source")
    held = open_labelled(data, {"text": "Source", "label": "Target"})
    assert list(held.train) == list(made.train or ())
    assert len(list(held.validation)) == 3
    with pytest.raises(DataError, match="has its own validation"):
        open_labelled(replace(data, validation="x"), {"text": "Source"})


def test_own_files_may_be_called_after_their_split(home: Server, tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("a O\n")
    with pytest.raises(DataError, match=r"neither wnut17train.conll and .* there is train.conll"):
        open_public("wnut17", tmp_path)
    (tmp_path / "val.conll").write_text("b O\n\nc O\n")
    splits = open_public("wnut17", tmp_path)
    assert splits.validation is not None
    assert [record["tokens"] for record in splits.validation] == [["b"], ["c"]]


def test_options_go_over_those_of_the_corpus(home: Server, tmp_path: Path) -> None:
    splits = open_public("wikitext-2", cache=tmp_path, progress=False, unit="line", begins="")
    assert [record["text"] for record in splits.train or ()] == [" = A = ", " text "]


def test_the_terms_are_shown_before_the_first_download(
    home: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_public("wnut17", cache=tmp_path)
    assert "wnut17: from https://github.com/leondz" in capsys.readouterr().err


def test_an_unknown_corpus_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(DataError, match="did you mean wnut17"):
        open_public("wnut-17")


def test_addresses_name_a_commit_and_checksums_are_whole() -> None:
    for corpus in PUBLIC_TEXTS.values():
        for file in corpus.files.values():
            assert len(file.url.split("/")[5]) == 40
            assert len(file.sha256) == 64


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared/data beside the checkout")
@pytest.mark.parametrize(
    ("name", "folder", "train", "validation"),
    [("tiny-shakespeare", "tinyshakespeare", 1, 1), ("wikitext-2", "wikitext-2", 600, 60),
     ("sst2", "sst2", 6920, 872), ("wnut17", "wnut17", 3394, 1009)],
)  # fmt: skip
def test_the_real_files_have_the_published_sizes(
    tmp_path: Path, name: str, folder: str, train: int, validation: int
) -> None:
    for file in PUBLIC_TEXTS[name].files.values():
        path = public_text._given(SHARED / folder, file.name)
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert hashlib.sha256(data).hexdigest() == file.sha256
    splits = open_public(name, SHARED / folder, cache=tmp_path)
    assert splits.train is not None
    assert splits.validation is not None
    assert (splits.train.count(), splits.validation.count()) == (train, validation)
