"""`allformer report RUN`: the page of any run, with scores where its data is still there."""

from __future__ import annotations

import json

import pytest

from tests.unit.test_cli import allformer, corpus, run  # noqa: F401

# ruff: noqa: F811


def test_a_run_gets_its_page_in_both_languages(allformer, run):
    said = allformer("report", run, "--json")
    assert said.status == 0, said.err
    result = json.loads(said.out)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert result["report"] == str(run / "report.html")
    assert result["sentences"] == 5  # what was held out for validation: there is no test split
    assert "translate English into French" in page
    assert "把英文译成法文" in page
    assert f"allformer translate {run}" in page


def test_the_page_goes_where_it_is_asked_for(allformer, run, tmp_path):
    said = allformer("report", run, "--out", tmp_path / "x.html", "--sentences", "2")
    assert said.status == 0, said.err
    assert (tmp_path / "x.html").is_file()
    assert not (run / "report.html").exists()
    assert "BLEU" in said.out


def test_a_run_whose_data_is_gone_is_shown_without_scores(allformer, run, corpus, tmp_path):
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(corpus), str(tmp_path / "gone.tsv")))
    said = allformer("report", run)
    assert said.status == 0
    assert "no scores: " in said.err
    assert "gone.tsv" in said.err
    assert "BLEU" not in said.out
    refused = allformer("report", run, "--split", "test")
    assert (refused.status, refused.err.count("\n")) == (1, 1)
    recipe.unlink()
    assert "no recipe.yaml" in allformer("report", run).err
    assert (run / "report.html").is_file()


def test_odd_numbers_of_metrics_are_left_out_and_odd_rows_named(allformer, run):
    log = run / "metrics.jsonl"
    before = log.read_text(encoding="utf-8")
    log.write_text(before + '{"step": 5, "loss": NaN, "nll": Infinity, "rate": "x"}\n{"step"')
    said = allformer("report", run)
    assert said.status == 0, said.err
    assert "NaN" not in (run / "report.html").read_text(encoding="utf-8")
    log.write_text(before + "[1]\n")
    said = allformer("report", run)
    assert said.status == 1
    assert "metrics.jsonl, line" in said.err


@pytest.mark.parametrize("split", ["tset", "dev"])
def test_a_split_that_is_not_known_is_refused(allformer, run, split):
    said = allformer("report", run, "--split", split)
    assert (said.status, said.err.count("\n")) == (1, 1)
    assert "test, val, train" in said.err
