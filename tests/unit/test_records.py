"""Records of every format: what is read, what is refused, and with which file and line."""

import bz2
import gzip
import json
import lzma
import pickle
import sys
import tracemalloc
import types
from pathlib import Path

import pytest

from allformer.data.records import FORMATS, Pass, hold_out, open_records, open_splits
from allformer.errors import DataError


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    packers = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
    path.write_bytes(packers.get(path.suffix, lambda same: same)(data))
    return path


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".bz2"])
def test_lines_of_text_packed_or_not_are_read_again_on_each_pass(
    tmp_path: Path, ending: str
) -> None:
    path = write(tmp_path / f"a.txt{ending}", "\ufeffone\r\n\n two\u2028three \n   \nfour")
    records = open_records(path)
    assert list(records) == list(records)
    assert [record["text"] for record in records] == ["one", " two\u2028three ", "four"]
    assert records.count() == 3


def test_documents_stand_between_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\none\ntwo\n \n\nthree\n\n")
    records = list(open_records(path, unit="document"))
    assert records == [{"text": "one\ntwo"}, {"text": "three"}]


def test_documents_may_begin_with_a_title(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.txt", " \n = A = \n \n text\n = no = \n \n = B = \n \n more\n\n = C = "
    )
    records = list(open_records(path, unit="document", begins=" = [^=]+ = "))
    assert [record["text"] for record in records] == [
        " = A = \n \n text\n = no = ", " = B = \n \n more", " = C = ",
    ]  # fmt: skip


def test_a_whole_file_keeps_every_character(tmp_path: Path) -> None:
    content = "\n one\r\n\ntwo \n\n"
    path = write(tmp_path / "a.txt", content)
    assert list(open_records(path, unit="file")) == [{"text": content}]


def test_json_lines_and_arrays_and_renamed_columns(tmp_path: Path) -> None:
    objects = [{"body": "é", "n": 1, "more": [1]}, {"body": "b", "n": 2}]
    lines = write(tmp_path / "a.jsonl", "\n\n".join(map(json.dumps, objects)))
    array = write(tmp_path / "b.json", json.dumps(objects, indent=1))
    same = write(tmp_path / "c.json", "\n".join(map(json.dumps, objects)))  # as some are called
    for path in (lines, array, same):
        assert list(open_records(path)) == objects
        records = open_records(path, columns={"text": "body"})
        assert list(records) == [{"text": "é"}, {"text": "b"}]


def test_csv_has_quotes_and_tsv_has_none(tmp_path: Path) -> None:
    commas = write(tmp_path / "a.csv", 'text,label\n"a, ""b""\nc",1\n\nd,0\n')
    assert list(open_records(commas)) == [
        {"text": 'a, "b"\nc', "label": "1"}, {"text": "d", "label": "0"},
    ]  # fmt: skip
    tabs = write(tmp_path / "a.tsv", '"a\t1\nb" \t\n')
    records = open_records(tabs, columns={"text": 0, "label": 1})
    assert list(records) == [{"text": '"a', "label": "1"}, {"text": 'b" ', "label": ""}]
    assert next(iter(open_records(tabs, header=False))) == {"0": '"a', "1": "1"}
    assert [*open_records(tabs, header=True)] == [{'"a': 'b" ', "1": ""}]
    records = open_records(commas, header=True, columns={"y": 1})
    assert list(records) == [{"y": "1"}, {"y": "0"}]


def test_conll_sentences_with_columns_by_number(tmp_path: Path) -> None:
    text = "-DOCSTART- -X- O\n\nU.N. NNP B-ORG\nofficial NN O\n\t\n# NN O"
    path = write(tmp_path / "a.conll", text)
    first, second = open_records(path, columns={"words": "tokens", "ner": "tags", "pos": 1})
    assert first == {"words": ["U.N.", "official"], "ner": ["B-ORG", "O"], "pos": ["NNP", "NN"]}
    assert second["words"] == ["#"]


def squad(start: int = 4, **extra: object) -> str:
    question = {"id": 7, "question": "Who?", "answers": [{"text": "cat", "answer_start": start}]}
    paragraph = {"context": "the cat sat", "qas": [question | extra]}
    return json.dumps({"data": [{"title": "Cats", "paragraphs": [paragraph]}]})


def test_squad_questions_have_their_answers_as_lists(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", squad())
    answers = {"text": ["cat"], "answer_start": [4]}
    common = {"id": "7", "title": "Cats", "context": "the cat sat", "question": "Who?"}
    assert list(open_records(path)) == [common | {"answers": answers}]
    path = write(tmp_path / "b.json", squad(answers=[], is_impossible=True))
    assert next(iter(open_records(path)))["answers"] == {"text": [], "answer_start": []}


def test_parquet_reads_the_columns_asked_for(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table(
        {"body": [f"t{i}" for i in range(3000)], "label": [[i] for i in range(3000)]}
    )
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=500)
    records = open_records(tmp_path / "a.parquet", columns={"text": "body", "label": "label"})
    assert list(records)[2999] == {"text": "t2999", "label": [2999]}
    reading = Pass(records)
    assert next(iter(reading)) == {"text": "t0", "label": [0]}
    assert reading.place.endswith("a.parquet, row 1")
    with pytest.raises(DataError, match="row 1: no column 'text'; there is body, label"):
        list(open_records(tmp_path / "a.parquet", columns={"text": "text"}))
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-100])
    with pytest.raises(DataError, match=r"b\.parquet cannot be read as Parquet"):
        list(open_records(tmp_path / "b.parquet"))


def test_without_pyarrow_the_way_to_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'allformer\[parquet\]'"):
        list(open_records(write(tmp_path / "a.parquet", "PAR1")))


BAD = {
    "a.txt": (b"one\ntw\xff\n", 2, "not UTF-8; convert it: iconv"),
    "nul.txt": (b"one\n\n\x00\x00\n", 3, "a NUL byte"),
    "a.jsonl": (b'{"text": "a"}\n\n{"text": \n', 3, "not JSON .*Expecting value"),
    "list.jsonl": (b'{"text": "a"}\n["b"]\n', 2, "an array where an object"),
    "half.jsonl": (b'{"text": "\\ud83d"}\n', 1, "half a character"),
    "deep.jsonl": (b'{"text": ' + b"[" * 100_000 + b"\n", 1, "nested too deep"),
    "null.jsonl": (b'{"text": "a"}\n{"text": null}\n', 2, "column 'text' has no value"),
    "none.jsonl": (b'{"text": "a"}\n{"txt": "b"}\n', 2, "no column 'text'; there is txt"),
    "a.csv": (b"text,n\na,1\nb\nc,3\n", 3, r"1 field\(s\) where 2 are needed \(text, n\)"),
    "quote.csv": (b'text,n\n"a\nb",1\n"c"d,2\ne,3\n', 4, "a quote inside a quoted cell"),
    "open.csv": (b'text,n\na,1\n"b,2\nc,3\n', 3, "each that is opened is closed"),
    "long.csv": (b'text,n\na,1\n"b' + b"x" * 200_000 + b"\n", 3, "never closed.*use JSONL"),
    "bytes.csv": (b"text,n\na,1\nb\xff,2\n", 3, "not UTF-8"),
    "a.tsv": (b"text\tn\na\t1\tx\n", 2, r"3 field\(s\) where 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_named_or_counted_but_never_just_dropped(tmp_path: Path, name: str) -> None:
    content, line, said = BAD[name]
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=rf"{name}, line {line}\b.*{said}"):
        list(open_records(path, columns={"text": "text"}))
    # The same behind a good file: the bad record is counted, and nothing else is lost.
    good = write(tmp_path / f"good{path.suffix}", _GOOD[path.suffix])
    told: list[str] = []
    records = open_records([good, path], columns={"text": "text"}, skip_bad=True, warn=told.append)
    assert next(iter(list(records))) == {"text": "good"}
    assert records.skipped.count == 1
    assert f"line {line}" in records.skipped.first
    assert "1 bad records skipped; the first: " in told[0]


_GOOD = {
    ".txt": "good\n", ".jsonl": '{"text": "good"}', ".csv": "text\ngood\n",
    ".tsv": "text\ngood\n",
}  # fmt: skip


def test_what_follows_a_bad_line_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b'text,n\na,1\nb\n"c"d,2\n\xff,3\ne,4\n')
    records = open_records(path, columns={"text": "text"}, skip_bad=True, warn=lambda _: None)
    assert list(records) == [{"text": "a"}, {"text": "e"}]
    assert records.skipped.count == 3


def test_a_bad_line_spoils_its_sentence_or_document_only(tmp_path: Path) -> None:
    sentences = write(tmp_path / "a.conll", "a O\nb\n\nc O\n")
    with pytest.raises(DataError, match=r"a\.conll, line 2: 1 column\(s\) where .* have 2"):
        list(open_records(sentences))
    documents = write(tmp_path / "a.txt", b"a\n\xff\nb\n\nc\n")
    for path, left in ((sentences, ["c"]), (documents, "c")):
        records = open_records(path, unit="document", skip_bad=True, warn=lambda _: None)
        (record,) = records
        assert record.get("tokens", record.get("text")) == left
    with pytest.raises(DataError, match="line 1: one column where a token and its tag"):
        list(open_records(write(tmp_path / "b.conll", "a\nb\n")))


def test_an_answer_that_stands_elsewhere_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", squad(5))
    with pytest.raises(DataError, match=r"question 1 \(id 7\): .*'cat'.*=5.*reads 'at sat'"):
        list(open_records(path))
    with pytest.raises(DataError, match="no list of objects 'qas'"):
        list(open_records(write(tmp_path / "b.json", '{"data": [{"paragraphs": [{}]}]}')))


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2"])
def test_a_packed_file_that_was_cut_is_refused(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a.txt{ending}", "".join(f"line {i}\n" for i in range(5000)))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="not a whole packed file"):
        list(open_records(path, skip_bad=True))


def test_empty_files_and_files_of_blank_lines_are_refused(tmp_path: Path) -> None:
    for name in FORMATS:
        if name not in ("hf", "parquet"):
            with pytest.raises(DataError, match=r"a\.x .*(empty|not JSON)"):
                list(open_records(write(tmp_path / "a.x", ""), name))
    with pytest.raises(DataError, match="no record in it"):
        list(open_records(write(tmp_path / "a.txt", "\n \n")))


def test_paths_are_files_lists_patterns_and_directories(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.jsonl", "notes.md"):
        write(tmp_path / name, f'{{"text": "{name}"}}' if name[0] == "c" else name)

    def texts(*args: object, **options: object) -> list[str]:
        return [record["text"] for record in open_records(*args, **options)]  # type: ignore

    assert texts(tmp_path) == texts(str(tmp_path)) == ["a.txt", "b.txt", "c.jsonl"]
    assert texts(str(tmp_path / "*.txt")) == ["a.txt", "b.txt"]
    assert texts([tmp_path / "c.jsonl", tmp_path / "a.txt"]) == ["c.jsonl", "a.txt"]
    assert texts(tmp_path / "notes.md", "text") == ["notes.md"]
    with pytest.raises(DataError, match=r"notes\.md: its suffix does not say .* say format="):
        open_records(tmp_path / "notes.md")
    with pytest.raises(DataError, match=r"no such file: .*d\.txt; there is a\.txt, b\.txt"):
        open_records(tmp_path / "d.txt")
    with pytest.raises(DataError, match="no file matches"):
        open_records(str(tmp_path / "*.csv"))
    with pytest.raises(DataError, match="did you mean jsonl"):
        open_records(tmp_path / "a.txt", "jsonnl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no file with a suffix that is known"):
        open_records(tmp_path / "empty")


def test_splits_of_a_directory_by_name(tmp_path: Path) -> None:
    for name in ("train-00000.txt", "train-00001.txt.gz", "dev.txt", "testing.txt"):
        write(tmp_path / name, name)
    (tmp_path / "test").mkdir()
    write(tmp_path / "test" / "a.txt", "inside")
    splits = open_splits(tmp_path)
    assert splits.train is not None
    assert splits.validation is not None
    assert splits.test is not None
    assert [r["text"] for r in splits.train] == ["train-00000.txt", "train-00001.txt.gz"]
    assert [r["text"] for r in splits.validation] == ["dev.txt"]
    assert [r["text"] for r in splits.test] == ["inside"]
    assert open_records(tmp_path).count() == 2
    assert open_splits(tmp_path / "dev.txt").validation is None


def test_a_fingerprint_changes_with_content_and_reading_and_not_with_the_place(
    tmp_path: Path,
) -> None:
    first, moved = tmp_path / "a.txt", tmp_path / "in" / "a.txt"
    moved.parent.mkdir()
    write(first, "one\ntwo\n"), write(moved, "one\ntwo\n")
    same = open_records(first).fingerprint()
    assert same == open_records(moved).fingerprint()
    others = [
        open_records(first, unit="document"), open_records(first, columns={"t": "text"}),
        open_records(first, skip_bad=True), open_records([first, moved]),
        *hold_out(open_records(first), 1), open_records(write(moved, "one\ntwO\n")),
    ]  # fmt: skip
    assert len({same} | {each.fingerprint() for each in others}) == len(others) + 1


def test_held_out_texts_never_stay_in_train(tmp_path: Path) -> None:
    lines = [f'{{"text": "text  {i % 40}", "label": {i}}}' for i in range(100)]
    forward = open_records(write(tmp_path / "a.jsonl", "\n".join(lines)))
    backward = open_records(write(tmp_path / "b.jsonl", "\n".join(reversed(lines))))
    train, validation = hold_out(forward, 10, seed=3)
    held = {record["text"] for record in validation}
    assert len(held) == 10
    assert not held & {record["text"] for record in train}
    assert train.count() + validation.count() == 100
    assert {record["text"] for record in hold_out(backward, 10, seed=3)[1]} == held
    assert {record["text"] for record in hold_out(forward, 10, seed=4)[1]} != held
    assert hold_out(forward, 10, column="label")[1].count() == 10
    assert hold_out(forward, 90, column=("text", "label"))[1].count() == 90
    assert hold_out(forward, 90, column=())[1].count() == 90
    with pytest.raises(DataError, match="of text there are 40 different ones; hold out fewer, or"):
        hold_out(forward, 40)
    with pytest.raises(DataError, match="of text and other there are 40 different ones; hold out"):
        hold_out(forward, 40, column=("text", "other"))


def test_records_of_several_forms_are_held_out_side_by_side(tmp_path: Path) -> None:
    lines = [f'{{"{"ab"[i % 2]}": "text {i}"}}' for i in range(20)]
    records = open_records(write(tmp_path / "a.jsonl", "\n".join(lines)))
    train, validation = (list(half) for half in hold_out(records, 8, column="a"))
    assert {key for record in validation for key in record} == {"a", "b"}
    assert sorted(map(str, train + validation)) == sorted(map(str, records))
    with pytest.raises(DataError, match="column='c' is not there; there is a"):
        hold_out(records, 8, column="c")


def test_reading_knows_its_place_its_bytes_and_goes_on_from_anywhere(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.txt", f"{name}1\n\n{name}2\n") for name in "ab"]
    records = open_records(paths)
    reading = Pass(records)
    seen = [(record["text"], reading.place[-13:], reading.done) for record in reading]
    assert [text for text, _, _ in seen] == ["a1", "a2", "b1", "b2"]
    places = [f"{name}.txt, line {line}" for name in "ab" for line in (1, 3)]
    assert [place for _, place, _ in seen] == places
    assert reading.done == records.size == 14
    reading = Pass(records)
    stream = iter(reading)
    for left in (["a2", "b1", "b2"], ["b1", "b2"], ["b2"], []):
        next(stream)
        again = Pass(pickle.loads(pickle.dumps(records)), reading.source, reading.record)
        assert [record["text"] for record in again] == left


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.tsv.gz"])
def test_a_large_file_is_never_whole_in_memory(tmp_path: Path, name: str) -> None:
    body = "x" * 1000
    line = {"a.jsonl": f'{{"text": "{body}"}}\n'}.get(name, f"{body}\n")
    path = write(tmp_path / name, line * 10_000)
    tracemalloc.start()
    count = open_records(path, header=False).count()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 10_000
    assert peak < 1_000_000  # the text has ten


def fake_datasets(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A module with as much of Hugging Face's as is called."""

    class Dataset(list[dict[str, object]]):
        column_names = ("sentence", "label")
        _fingerprint = "f00"

        def select_columns(self, names: list[str]) -> "Dataset":
            return Dataset({name: row[name] for name in names} for row in self)

    rows = Dataset([{"sentence": "a", "label": 1}, {"sentence": "b", "label": 0}])
    asked: list[object] = []

    def load_dataset(*args: object, split: str) -> Dataset:
        asked.append((*args, split))
        if args[0] == "none":
            raise FileNotFoundError("Dataset 'none' doesn't exist on the Hub")
        return rows

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    module.load_from_disk = lambda name: rows  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return asked


def test_hugging_face_data_sets_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_datasets(monkeypatch)
    records = open_records("hf:glue:sst2:validation", columns={"text": "sentence"})
    assert list(records) == [{"text": "a"}, {"text": "b"}]
    list(open_records("hf:org/name:test")), list(open_records("hf:glue:cola"))
    assert asked == [
        ("glue", "sst2", "validation"), ("org/name", None, "test"), ("glue", "cola", "train"),
    ]  # fmt: skip
    assert records.fingerprint() != open_records("hf:glue:sst2").fingerprint()
    with pytest.raises(DataError, match="hf:none cannot be loaded by datasets: Dataset 'none'"):
        list(open_records("hf:none"))
    with pytest.raises(DataError, match="write hf:NAME"):
        list(open_records("hf:a:b:c:d"))
    for split in ("train", "validation"):
        (tmp_path / "saved" / split).mkdir(parents=True)
        for name in ("state.json", "dataset_info.json"):
            (tmp_path / "saved" / split / name).write_text("{}")
    assert open_records(tmp_path / "saved" / "validation").count() == 2
    splits = open_splits(tmp_path / "saved")
    assert [source.path.name for source in splits.train.sources] == ["train"]  # type: ignore
    assert splits.validation is not None
    assert splits.test is None
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="pip install datasets"):
        list(open_records("hf:glue"))


def test_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\n")
    for options, said in (
        ({"unit": "page"}, "unit='page' is not known; there are line, document, file"),
        ({"begins": "x"}, "say unit=document"),
        ({"begins": "(", "unit": "document"}, "is not a regular expression"),
    ):
        with pytest.raises(DataError, match=said):
            list(open_records(path, **options))
    with pytest.raises(DataError, match="names 'a' twice; if this line is no header"):
        list(open_records(write(tmp_path / "a.csv", "a,a\n1,2\n")))
