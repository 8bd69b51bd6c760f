"""Every bug of the lab is caught in every style, and the lab's right models are clean."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from functools import partial

import pytest
from typer.testing import CliRunner

from allformer.auditor import CATALOGUE, audit, lab
from allformer.auditor.lab import (
    BUGS,
    SIZE,
    VOCAB,
    build,
    draw,
    measure,
    planted,
    teach,
    to_markdown,
)
from allformer.cli.audit import _Watch
from allformer.cli.main import app


def cases():
    """Every bug in every style; `make test` takes one style of each, another for the next bug."""
    for number, bug in enumerate(BUGS):
        for place, style in enumerate(bug.styles):
            marks = [] if place == number % len(bug.styles) else [pytest.mark.slow]
            yield pytest.param(bug, style, marks=marks, id=f"{bug.name}-{style}")


@pytest.mark.parametrize(("bug", "style"), cases())
def test_the_right_check_names_the_bug(bug, style):
    report = audit(planted(bug, style), bug.shape, vocab=VOCAB, pad=bug.pad, only=[bug.check])
    assert bug.check in report.checks, report.text()
    finding = next(f for f in report.findings if f.check == bug.check)
    assert any(c.isdigit() for c in finding.evidence) or len(finding.evidence) > 20


@pytest.mark.every(3)
@pytest.mark.parametrize("style", ["separate", "fused", "mha", "einsum"])
@pytest.mark.parametrize("shape", ["decoder", "encoder", "seq2seq"])
def test_the_right_models_are_clean(shape, style):
    model = build(shape, "", style, **{**SIZE, "dropout": 0.1})
    report = audit(model, shape, vocab=VOCAB)
    assert report.ok, report.text()
    assert not [r for r in report.not_applicable.values() if r.startswith("could not run")]


def test_every_bug_has_its_words_in_both_languages():
    for bug in BUGS:
        entry = CATALOGUE[bug.check]
        for pair in (entry.title, entry.why, entry.mend):
            assert len(pair) == 2
            assert all(pair)


@pytest.mark.slow
def test_a_leak_trains_well_and_answers_badly(tmp_path):
    leak = [b for b in BUGS if b.name == "no_mask"]
    (row,) = measure(60, tuple(leak))
    assert row["caught"]
    assert row["loss"][-1] < row["loss"][0]
    draw([row] * 2, tmp_path / "lab.png", "zh")
    assert (tmp_path / "lab.png").stat().st_size > 1000
    page = to_markdown([row], "zh", 60)
    assert "mask.future_leak" in page
    assert "位置看到了未来" in page


FEW = tuple(b for b in BUGS if b.name in ("no_mask", "causal", "no_scale", "reused"))
FILES = ("lab.json", "lab.md", "lab.png")


def files(out):
    assert sorted(p.name for p in out.iterdir()) == sorted(FILES), "nothing is left aside"
    return {name: (out / name).read_bytes() for name in FILES}


def stop_at(count):
    def show(rows, total):
        if len(rows) == count:
            raise KeyboardInterrupt

    return show


@pytest.fixture(scope="module")
def quick():
    """The lab's audits look for the few bugs alone."""
    with pytest.MonkeyPatch.context() as patch:
        only = [bug.check for bug in FEW]
        patch.setattr("allformer.auditor.run.audit", partial(audit, only=only))
        yield


@pytest.fixture(scope="module")
def whole(quick, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    teach(out, steps=4, bugs=FEW)
    return out


def test_a_lab_that_is_stopped_goes_on_and_ends_in_the_same_bytes(whole, tmp_path):
    counts = []
    for stop in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            teach(tmp_path, steps=4, bugs=FEW, show=stop_at(stop))
        page = files(tmp_path)["lab.md"].decode()
        assert f"{stop} of 4 bugs so far" in page
        assert [f"**{bug.name}**" in page for bug in FEW].count(True) == stop
    teach(tmp_path, steps=4, bugs=FEW, show=lambda rows, total: counts.append(len(rows)))
    assert counts == [3, 4], "what was measured is not measured again"
    assert files(tmp_path) == files(whole)


def test_a_lab_stopped_before_its_first_bug_has_a_page(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        teach(tmp_path, "zh", steps=4, bugs=FEW, show=stop_at(0))
    assert "4 个错误中的 0 个" in (tmp_path / "lab.md").read_text(encoding="utf-8")


def test_a_whole_lab_is_shown_in_another_language_without_training(whole, tmp_path):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    counts, said = [], []
    show = lambda rows, total: counts.append(len(rows))  # noqa: E731
    page = teach(tmp_path, "zh", steps=4, bugs=FEW, say=said.append, show=show)
    assert counts == [4]
    assert not said
    assert "找错实验室" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t.replace('"steps": 4', '"steps": 5'), r"of other settings \(steps\)"),
        (lambda t: t.replace('"torch": "', '"torch": "0.'), r"of other settings \(torch\)"),
        (lambda t: t.replace('"bug": "no_mask"', '"bug": "reused"'), "has other bugs"),
        (lambda t: t[:100], "or damaged"),
        (lambda t: "[]", "or damaged"),
    ],
)
def test_a_lab_of_other_settings_begins_anew_and_says_so(whole, tmp_path, change, why):
    text = (whole / "lab.json").read_text(encoding="utf-8")
    (tmp_path / "lab.json").write_text(change(text), encoding="utf-8")
    said, counts = [], []

    def show(rows, total):
        counts.append(len(rows))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        teach(tmp_path, steps=4, bugs=FEW, say=said.append, show=show)
    assert counts == [0]
    assert re.search(rf"lab\.json .*{why}.*; beginning anew", said[0])


@pytest.fixture
def command(whole, monkeypatch, tmp_path):
    """`allformer audit --teach` of a few bugs, measured before; `stop` is when Ctrl-C comes."""
    rows = json.loads((whole / "lab.json").read_text(encoding="utf-8"))["rows"]
    measured = lambda steps, bugs, have: iter(rows[len(have) :])  # noqa: E731
    monkeypatch.setattr(sys.modules["allformer.auditor.lab.teach"], "_measure", measured)

    def run(*arguments, stop=None):
        def few(out, lang, *, say, show):
            def watch(rows, total):
                if show is not None:
                    show(rows, total)
                if len(rows) == stop:
                    raise KeyboardInterrupt

            return teach(out, lang, steps=4, bugs=FEW, say=say, show=watch)

        monkeypatch.setattr(lab, "teach", few)
        return CliRunner().invoke(app, ["audit", "--teach", "--out", str(tmp_path), *arguments])

    return run


def test_the_command_says_each_bug_on_a_line_with_the_time_left(command, tmp_path):
    done = command(stop=2)
    assert done.exit_code == 2
    first, second, end = done.stderr.splitlines()
    assert re.fullmatch(r"bug 1/4  no_mask caught  loss .* \(.*\)  .* %\)  left \d+:\d\d", first)
    assert second.startswith("bug 2/4  causal caught")
    assert "lab.md has what was measured, and the same command goes on" in end
    done = command()
    assert done.exit_code == 0
    assert done.stdout == f"{tmp_path / 'lab.md'}\n"
    lines = done.stderr.splitlines()
    assert lines[0] == "2 of 4 bugs were measured before: they are kept"
    assert [line.split("  ")[0] for line in lines[1:]] == ["bug 3/4", "bug 4/4"]


def test_the_command_is_silent_with_json(command, tmp_path):
    done = command("--json")
    assert done.stderr == ""
    assert json.loads(done.stdout) == {"page": str(tmp_path / "lab.md")}


def test_a_bar_of_80_columns_has_room_for_the_time_left(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    watch = _Watch()
    row = {"bug": "frequencies_half", "caught": False}
    for count in range(3):
        watch.show([row] * count, 52)
    watch.close()
    last = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", sys.stderr.getvalue()).strip().split("\r")[-1]
    assert re.search(r" 2/52 frequencies_half NOT caught 0:\d\d:\d\d left [-\d]+:\d?\d?", last), (
        last
    )
    assert "…" not in last
