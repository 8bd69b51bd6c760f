"""The report of runs of every objective: examples, mistakes, layers, models of one stack."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import allformer as af
from allformer.audiolm.tokens import STAGES
from allformer.config import ClassHead, SpanHead
from allformer.errors import ConfigError
from allformer.explain.diagram import architecture
from allformer.explain.examples import LABELS, calibration_chart, confusion_table, example_list
from allformer.explain.headline import lead
from allformer.explain.heat import about_positions
from allformer.explain.layers import MOST_COLUMNS, layer_charts
from allformer.explain.report import write_report
from allformer.explain.tables import growth, letters, parameter_table, part_name
from allformer.explain.words import WORDS, counted
from allformer.families.original import transformer
from allformer.run_facts import USES, taught, used_as
from allformer.run_report import report_run
from allformer.train.loop import train
from allformer.train.objectives import OBJECTIVES, find_objective
from allformer.train.objectives.sound_codec import SoundCodec
from allformer.train.objectives.text_to_image import TextToImage
from allformer.train.predictions import Prediction, Predictions
from allformer.train.recipe import make_recipe
from allformer.train.tokenizing import expected
from tests.supervised import opinions, tiny
from tests.unit.test_report import HOSTILE, Letters, Outline, data_of, rows

CONFUSED = Predictions(
    rows=(
        Prediction("a good film", "good", "bad", right=False, score=0.6),
        Prediction("a bad film", "bad", "bad", right=True, score=0.9),
    ),
    labels=("bad", "good"),
    confusion=((40, 2), (7, 31)),
    calibration=((0, 0.0, 0.0), (10, 0.7, 0.6), (30, 0.95, 0.9)),
)


def small(shape: str, **changes: Any) -> Any:
    """A config of one stack."""
    sizes = {"dim": 16, "heads": 2, "feed": 32, "layers": 2}
    objective = {"encoder": "masked-lm", "decoder": "causal-lm"}[shape]
    recipe = make_recipe({"objective": objective, "model": sizes, "tokenizer": {"vocab": 960}})
    found = find_objective(objective)(recipe)
    return replace(found.config(expected(found)), **changes)


def statistics(steps: int, places: tuple[str, ...] = ("decoder.0", "decoder.1")) -> list[dict]:
    return [
        {
            "step": 10 * n,
            "weights": {
                f"{p}.feed": {"rms": 1e-3 / n, "update": 0.01, "weight": 2.0} for p in places
            },
            "activations": {
                f"{p}.{tap}": {"mean": 0.0, "std": 1.0 + n, "max": 3.0}
                for p in places
                for tap in ("attention.q", "attention_added", "feed.up", "feed_added")
            },
        }
        for n in range(1, steps + 1)
    ]


def page_of(tmp_path: Path, config: Any, **given: Any) -> str:
    model = af.build(config, seed=0)
    told = {"history": rows(), "scores": {"accuracy": 0.875}, "facts": {}, "predictions": CONFUSED}
    path = write_report(tmp_path / "r.html", model=model, tokenizer=Letters(), **{**told, **given})  # type: ignore[arg-type]
    return path.read_text(encoding="utf-8")


# --- models of one stack ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_a_model_of_one_stack_has_a_whole_page(shape, tmp_path):
    page = page_of(tmp_path, small(shape), statistics=statistics(5))
    outline = Outline(page)
    assert outline.open == []
    assert "http:" not in page
    assert "https:" not in page
    for key in (
        f"lead.{shape}",
        f"attention.self.{shape}",
        "attention.intro.one",
        "growth.intro.one",
    ):
        assert WORDS[key][0].split("{")[0] in page, key
        assert WORDS[key][1].split("{")[0] in page, key
    data = data_of(page)
    maps = data["attention"][0]["maps"]
    assert list(maps) == [shape]
    assert len(maps[shape]) == 2
    assert f'value="{shape}" checked' in page
    assert 'value="cross"' not in page
    assert "layers-rms" in data["plots"]
    assert WORDS["cost.check"][0] in page
    assert "Accuracy" in outline.text
    assert "0.875" in outline.text
    assert 'class="diagram single"' in page


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (ClassHead(("a", "b", "c"), at="first"), "16 → 3 labels"),
        (ClassHead(("a", "b", "c"), at="token"), "each token"),
        (SpanHead(), "Begin and end"),
        (None, "hidden states"),
    ],
)
def test_the_diagram_knows_the_head(head, said, tmp_path):
    assert said in page_of(tmp_path, small("encoder", head=head))


def test_two_stacks_that_do_not_write_read_their_input_again(tmp_path):
    config = replace(af.preset("original-tiny"), head=ClassHead(("a", "b"), at="last"))
    sample = data_of(page_of(tmp_path, config))["attention"][0]
    assert list(sample["maps"]) == ["cross", "encoder", "decoder"]
    assert sample["read"][1:] == sample["source"][:-1]


def test_the_loss_is_counted_in_what_the_head_gives(tmp_path):
    page = page_of(tmp_path, small("encoder", head=ClassHead(("a", "b", "c", "d"), at="first")))
    assert "ln 4 = 1.39" in page
    assert WORDS["chart.loss.labels"][1] in page
    assert "ln 960" in page_of(tmp_path, small("decoder"))
    other = page_of(tmp_path, small("encoder", head=SpanHead()))
    assert WORDS["curves.any"][0] in other


def test_what_reads_one_text_and_writes_another_is_no_translator_unless_it_was_taught_so(tmp_path):
    config = af.preset("original-tiny")
    other = page_of(tmp_path, config, facts={"commands": {"evaluate": "allformer evaluate here"}})
    assert "allformer translate" not in other
    assert "--source" not in other
    assert "allformer translate" in page_of(tmp_path, config, predictions=None)


def test_every_part_and_every_term_has_its_name_in_both_languages():
    for name in af.presets():
        for part in af.count(af.preset(name)).parts:
            english, chinese = part_name(part.name)
            assert english != chinese, f"{name}: {part.name}"
    for name in ("words", "pair", *SoundCodec.terms, *TextToImage.terms):
        assert f"chart.term.{name}" in WORDS


def test_positions_of_ones_own_are_not_called_sinusoidal():
    assert "sinusoidal" not in architecture(af.preset("dalle"))
    assert "sinusoidal" in architecture(af.preset("original-base"))


def test_a_small_model_has_figures_too(tmp_path):
    table = growth(small("encoder"))
    assert not re.search(r'<td class="n">0(\.0)?</td>', table)


def test_families_of_one_stack_are_drawn(tmp_path):
    for name in ("gpt2", "bert-base", "llama-2-7b", "albert-base-v2", "roberta-base"):
        config = af.preset(name)
        assert architecture(config).count("<svg") == 1
        assert about_positions(config)
        assert growth(config)
        assert letters(config)
        assert parameter_table(config)
    assert "rotary positions" in architecture(af.preset("llama-2-7b"))


# --- examples and mistakes ----------------------------------------------------------------------


def test_examples_begin_with_mistakes_and_say_how_sure_the_model_was():
    html = example_list(CONFUSED)
    assert html.index("a good film") < html.index("a bad film")
    assert "60% sure" in html
    assert "把握 90%" in html
    assert "1 of the 2 shown here are right" in html
    many = Predictions(
        tuple(Prediction(f"w{i}", "a", "b", right=False) for i in range(30))
        + tuple(Prediction(f"r{i}", "a", "a", right=True) for i in range(30))
    )
    shown, folded = example_list(many).split("<details>")
    assert shown.count('class="wrong"') == shown.count('class="right"') == 6
    assert folded.count("<li") == 48


def test_the_confusion_table_has_a_cell_for_every_count():
    html = confusion_table(CONFUSED)
    assert html.count("<td") == 4
    for n in (40, 2, 7, 31):
        assert f"<b>{n}</b>" in html
    assert confusion_table(Predictions()) == ""
    n = LABELS + 6
    big = Predictions(
        labels=tuple(f"L{i}" for i in range(n)),
        confusion=tuple(tuple(i if i == j else 0 for j in range(n)) for i in range(n)),
    )
    html = confusion_table(big)
    assert f"The {LABELS} most frequent of {n} labels" in html
    assert ">L0<" not in html
    assert f">L{n - 1}<" in html


def test_calibration_is_read_out_by_how_sure_it_was():
    chart = calibration_chart(CONFUSED)
    assert chart is not None
    assert chart.data["series"][0]["points"] == [[0.7, 0.6], [0.95, 0.9]]
    assert chart.data["sure"] is True
    assert calibration_chart(Predictions()) is None


def test_hostile_examples_stay_text(tmp_path):
    odd = Predictions(
        rows=(Prediction(HOSTILE, HOSTILE, HOSTILE + "x", right=False),),
        labels=(HOSTILE, "b"),
        confusion=((1, 2), (3, 4)),
    )
    history = [{"step": n, f"validation_{HOSTILE}": 0.5, "validation_nll": 1.0} for n in (1, 2)]
    rows = statistics(3, places=(HOSTILE,))
    page = page_of(
        tmp_path, small("encoder"), predictions=odd, history=history, statistics=rows,
        facts={"commands": {HOSTILE: HOSTILE}},
    )  # fmt: skip
    outline = Outline(page)
    assert outline.tags.count("script") == 2
    assert outline.open == []
    assert "<img src=x" not in page


# --- layers -------------------------------------------------------------------------------------


def test_statistics_are_heat_maps_of_parts_by_steps():
    found = layer_charts(statistics(4))
    assert set(found) == {"layers-rms", "layers-update", "layers-std", "layers-max"}
    rms = found["layers-rms"].data
    assert rms["names"] == ["decoder.0.feed", "decoder.1.feed"]
    assert rms["steps"] == [10, 20, 30, 40]
    assert rms["values"][0][1] == pytest.approx(5e-4)
    assert found["layers-std"].data["names"] == ["decoder.0", "decoder.1"]  # after each layer
    assert layer_charts([]) == {}


def test_many_steps_are_thinned_and_what_is_no_number_is_left_blank():
    rows = statistics(1000)
    rows[-1]["weights"]["decoder.0.feed"]["rms"] = math.nan
    data = layer_charts(rows)["layers-rms"].data
    assert len(data["steps"]) <= MOST_COLUMNS
    assert data["steps"][-1] == 10_000
    assert data["values"][0][-1] is None


# --- runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("report") / "run"
    log = {"every": 2, "tensorboard": False, "statistics": 2}
    corpus = (opinions(60), opinions(20, seed=1))
    sections = {"log": log, "train": {"steps": 8, "validate_every": 4}}
    train(tiny("classification", **sections), path, device="cpu", corpus=corpus)
    return path


def test_a_classifiers_run_has_its_page(run, tmp_path):
    result = report_run(run, tmp_path / "page.html", say=lambda line: None)
    page = result.page.read_text(encoding="utf-8")
    assert set(result.scores) == {"accuracy", "f1", "matthews"}
    assert WORDS["title.classification"][0] in page
    assert WORDS["title.classification"][1] in page
    assert WORDS["confusion.title"][0] in page
    assert f"allformer classify {run} " in page
    assert "allformer translate" not in page
    assert WORDS["layers.title"][1] in page
    assert "Matthews correlation" in page
    device = json.loads((run / "machine.json").read_text(encoding="utf-8"))["device"]
    assert device in page
    assert re.sub(r" threads?$", " 个线程", device) in page
    with pytest.raises(ConfigError, match=r"split='test': only a translator's page"):
        report_run(run, tmp_path / "page.html", split="test")


def test_a_run_without_its_extras_still_has_a_page(run, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(run, bare)
    for name in ("predictions.json", "statistics.jsonl", "metrics.jsonl", "machine.json"):
        (bare / name).unlink()
    (bare / "recipe.yaml").unlink()
    page = report_run(bare, say=lambda line: None).page.read_text(encoding="utf-8")
    assert WORDS["samples.none"][0] in page
    assert WORDS["curves.none"][0] in page
    assert "#statistics" not in page


def test_one_of_a_thing_is_told_as_one():
    assert counted("layer", 1) == ("1 layer", "1 层")
    assert counted("layer", 2)[0] == "2 layers"
    tree = small("decoder")
    short = replace(tree, decoder=replace(tree.decoder, blocks=tree.decoder.blocks[:1]))
    assert "It has 1 layer, vectors of 16 numbers, 2 attention heads and a" in lead(short, {})[0]
    both = transformer(16, 1, 32, 1, vocab=40)
    assert "It has 1 layer in the encoder and 1 layer in the decoder" in lead(both, {})[0]
    assert "1 attention head and a" in lead(both, {})[0]


def test_every_objective_says_how_its_runs_are_used():
    for name in OBJECTIVES:
        if OBJECTIVES[name].__module__.startswith("allformer."):
            kind = used_as(name)
            assert kind in USES, name
            assert kind == "seq2seq" or f"title.{kind}" in WORDS
    assert len({WORDS[f"title.sound-tokens.{stage}"] for stage in STAGES}) == len(STAGES)
    assert taught(make_recipe({"objective": "seq2seq-rdrop"})) == "seq2seq"
    assert taught(None) == ""
    assert all(f"next.{verb}" in WORDS for uses in USES.values() for verb in uses)
