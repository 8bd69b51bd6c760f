"""Parallel text: what is read, what is skipped, and that every fault names its file and line."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from allformer.data.parallel import hold_out, open_corpus, read_parallel, read_tsv
from allformer.errors import DataError

Two = Callable[[str | bytes, str | bytes], tuple[Path, Path]]


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def two(tmp_path: Path) -> Two:
    def files(source: str | bytes, target: str | bytes) -> tuple[Path, Path]:
        return write(tmp_path / "a.en", source), write(tmp_path / "a.de", target)

    return files


def test_pairs_are_read_again_on_each_pass(two: Two) -> None:
    pairs = read_parallel(*two("one\ntwo\n", "eins\nzwei\n"))
    assert list(pairs) == list(pairs) == [("one", "eins"), ("two", "zwei")]
    assert "a.en" in pairs.description


@pytest.mark.parametrize(
    "content",
    ["one\ntwo\n", "one\ntwo", "one\r\ntwo\r\n", "\ufeffone\ntwo\n", "\ufeffone\r\n two \r\n"],
)
def test_line_ends_byte_order_marks_and_margins_do_not_matter(two: Two, content: str) -> None:
    assert list(read_parallel(*two(content, "eins\nzwei\n"))) == [("one", "eins"), ("two", "zwei")]


def test_only_newline_ends_a_line(two: Two) -> None:
    line = "a\u2028b\u0085c\x0bd\x1ce\u2029f\rg"
    assert list(read_parallel(*two(f"{line}\nh\n", "1\n2\n"))) == [(line, "1"), ("h", "2")]


def test_unequal_line_counts_name_both(two: Two) -> None:
    with pytest.raises(DataError, match=r"a.en has 3 and .*a.de has 1;"):
        list(read_parallel(*two("1\n2\n3\n", "1\n")))
    with pytest.raises(DataError, match=r"a.en has 1 and .*a.de has 2;"):
        list(read_parallel(*two("1\n", "1\n2\n")))


def test_empty_sides_are_skipped_and_counted(two: Two) -> None:
    said: list[str] = []
    pairs = read_parallel(*two("1\n\n3\n \n5\n", "1\n2\n\n\n5\n"), warn=said.append)
    assert list(pairs) == [("1", "1"), ("5", "5")]
    assert (pairs.skipped.one_side_empty, pairs.skipped.both_empty) == (2, 1)
    assert len(said) == 1
    assert "skipped 2 pairs with one side empty" in said[0]
    list(pairs)
    assert pairs.skipped.one_side_empty == 2  # of the last pass, not of all


def test_empty_sides_warn_by_default(two: Two) -> None:
    with pytest.warns(UserWarning, match="skipped 1 pairs"):
        list(read_parallel(*two("1\n2\n", "1\n\n")))


def test_files_without_text_are_refused(two: Two) -> None:
    with pytest.raises(DataError, match=r"a.en is empty"):
        list(read_parallel(*two("", "")))
    with pytest.raises(DataError, match="every line is empty"):
        list(read_parallel(*two("\n\n", "\n\n")))


def test_a_missing_file_is_named_with_what_is_there(tmp_path: Path) -> None:
    write(tmp_path / "a.en", "1\n")
    with pytest.raises(DataError, match=r"no such file: .*a.de; there is a.en"):
        read_parallel(tmp_path / "a.en", tmp_path / "a.de")
    with pytest.raises(DataError, match=r"no such file: .*there is no directory"):
        read_tsv(tmp_path / "not" / "there.tsv")


def test_bytes_that_are_not_utf8_are_located(tmp_path: Path, two: Two) -> None:
    with pytest.raises(DataError, match=r"a.de, line 2, byte 12: not UTF-8.*iconv .* -f latin1"):
        list(read_parallel(*two("1\n2\n", "gut\nüber".encode() + b" gr\xfc\xdfe\n")[::-1]))
    wide = write(tmp_path / "wide.tsv", "a\tb\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"line 1, byte 0: .* -f utf-16"):
        list(read_tsv(wide))


@pytest.mark.parametrize("damage", ["cut", "flipped", "not gzip"])
def test_damaged_gzip_is_refused(tmp_path: Path, damage: str) -> None:
    whole = bytearray(gzip.compress("".join(f"{i}\t{i * i}\n" for i in range(999)).encode()))
    if damage == "flipped":
        whole[len(whole) // 2] ^= 255
    data = {"cut": whole[:-20], "flipped": whole, "not gzip": bytearray(b"a\tb\n")}
    (tmp_path / "a.tsv.gz").write_bytes(data[damage])
    with pytest.raises(DataError, match=r"a.tsv.gz is not a whole gzip file"):
        list(read_tsv(tmp_path / "a.tsv.gz"))


def test_tsv_columns_can_be_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "\ufeffone\teins\tCC\r\ntwo\tzwei\tCC\r\n")
    assert list(read_tsv(path)) == [("one", "eins"), ("two", "zwei")]
    assert list(read_tsv(path, columns=(1, 0))) == [("eins", "one"), ("zwei", "two")]
    with pytest.raises(DataError, match="columns"):
        read_tsv(path, columns=(-1, 0))


def test_tsv_line_with_too_few_columns_is_located(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "one\teins\n\ntwo zwei\n")
    with pytest.raises(DataError, match=r"a.tsv, line 3: 1 column\(s\) where 2 are needed"):
        list(read_tsv(path))


def test_tsv_empty_cells_do_not_shift_the_columns(tmp_path: Path) -> None:
    said: list[str] = []
    pairs = read_tsv(write(tmp_path / "a.tsv", "\teins\ntwo\tzwei\ndrei\t\n"), warn=said.append)
    assert list(pairs) == [("two", "zwei")]
    assert pairs.skipped.one_side_empty == 2


@pytest.mark.parametrize("validation", ["val", "valid", "validation", "dev"])
def test_a_directory_of_language_files_opens(tmp_path: Path, validation: str) -> None:
    for name in ("train", validation, "test"):
        write(tmp_path / f"{name}.en.gz", f"{name}\n")
        write(tmp_path / f"{name}.de", f"{name} deutsch\n")
    corpus = open_corpus(tmp_path, "de", "en")
    assert list(corpus.train) == [("train deutsch", "train")]
    assert list(corpus.validation or ()) == [(f"{validation} deutsch", validation)]
    assert list(corpus.test or ()) == [("test deutsch", "test")]


def test_a_directory_of_tables_opens(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv.gz", "one\teins\n")
    write(tmp_path / "val.tsv", "two\tzwei\n")
    corpus = open_corpus(str(tmp_path), columns=(1, 0))
    assert list(corpus.train) == [("eins", "one")]
    assert list(corpus.validation or ()) == [("zwei", "two")]
    assert corpus.test is None


def test_two_files_or_one_table_open(tmp_path: Path, two: Two) -> None:
    source, target = two("one\n", "eins\n")
    corpus = open_corpus(f"{source},{target}")
    assert list(corpus.train) == [("one", "eins")]
    assert corpus.validation is None
    table = write(tmp_path / "t.tsv.gz", "one\teins\n")
    assert list(open_corpus(table).train) == [("one", "eins")]


def test_data_that_does_not_fit_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the directory is empty"):
        open_corpus(tmp_path)
    write(tmp_path / "train.en", "1\n")
    with pytest.raises(DataError, match=r"has no counterpart train.fr\[.gz\]; there is train.en"):
        open_corpus(tmp_path, "en", "fr")
    with pytest.raises(DataError, match=r"looked for train.cs.*train.fr.*train.tsv.*train.en"):
        open_corpus(tmp_path, "cs", "fr")
    with pytest.raises(DataError, match=r"not .tsv"):
        open_corpus(tmp_path / "train.en")
    with pytest.raises(DataError, match="no such file or directory"):
        open_corpus(tmp_path / "nowhere")


def test_hold_out_keeps_all_pairs_of_a_sentence_on_one_side() -> None:
    pairs = [(f"s{i % 100}", f"t{i}") for i in range(300)]
    train, validation = hold_out(pairs, 10, seed=1)
    assert sorted([*train, *validation]) == sorted(pairs)
    assert len({source for source, _ in validation}) == 10
    assert len(list(validation)) == 30
    assert not {source for source, _ in train} & {source for source, _ in validation}


def test_hold_out_depends_on_the_sentences_and_the_seed_alone() -> None:
    pairs = [(f"s{i}", f"t{i}") for i in range(200)]
    chosen = {seed: set(hold_out(pairs, 20, seed)[1]) for seed in (0, 1)}
    assert set(hold_out(pairs[::-1], 20, 0)[1]) == chosen[0] != chosen[1]
    assert sorted(hold_out(pairs, 3)[1]) == [
        ("s107", "t107"),
        ("s126", "t126"),
        ("s181", "t181"),
    ]


def test_hold_out_refuses_what_it_cannot_do() -> None:
    pairs = [("a", "1"), ("b", "2")]
    with pytest.raises(DataError, match="count=2 leaves nothing"):
        hold_out(pairs, 2)
    with pytest.raises(DataError, match="count=0"):
        hold_out(pairs, 0)
    with pytest.raises(DataError, match="several times"):
        hold_out(iter(pairs), 1)
