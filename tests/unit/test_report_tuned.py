"""The report of a tuned run: what is trained and where, reward against divergence, who wins."""

from __future__ import annotations

import json
import re

import pytest

import allformer as af
from allformer import tune
from allformer.config import ClassHead
from allformer.explain.examples import example_list
from allformer.explain.tuned.layers import darkness, layer_table, percent, trained_cells
from allformer.explain.tuned.methods import EACH, amount, compared, method_name, method_table
from allformer.explain.tuned.rewards import reward_chart
from allformer.explain.tuned.section import tuned_section
from allformer.explain.tuned.wins import wins, wins_bar
from allformer.families import preset
from allformer.families.original import transformer
from allformer.train.predictions import Prediction, Predictions
from allformer.tune.trainable import trainable
from tests.unit.test_report_runs import page_of, small

JUDGED = Predictions(
    (
        Prediction("?", "a", "good", before="bad", rewards=(0.0, 1.0)),
        Prediction("?", "a", "bad", before="good", rewards=(1.0, 0.5)),
        Prediction("?", "a", "same", before="same", rewards=(0.5, 0.5)),
        Prediction("?", "a", "better", before="<b>", rewards=(0.5, 2.0)),
        Prediction("?", "a", "nobody judged this", before=""),
    )
)


def tuned(method, tree=None):
    model = af.build(tree or transformer(16, 2, 32, 2, vocab=60), seed=0)
    tune.apply(model, method, seed=0)
    return model


@pytest.mark.parametrize(
    ("method", "row", "column"),
    [
        (tune.Lora(rank=2, targets=("up",)), "encoder.layers.1", "feed.up"),
        (tune.BitFit(), "decoder.layers.0", "norms"),
        (tune.Ia3(), "decoder.layers.1", "cross.memory"),
        (tune.Bottleneck(), "decoder.layers.0", "bottleneck"),
        (tune.Prefix(4), "decoder.prefix", ""),
        (tune.Prompt(4), "encoder.source", ""),
    ],
)
def test_what_a_method_trains_is_counted_where_it_sits(method, row, column):
    model = tuned(method)
    cells = trained_cells(model)
    inside = [n for name, n in model.named_parameters() if n.requires_grad]
    assert sum(n.trained for r in cells.values() for n in r.values()) == sum(
        p.numel() for p in inside
    )
    assert cells[row][column].trained
    assert sum(n.total for r in cells.values() for n in r.values()) == trainable(model).total


def test_the_picture_has_a_row_for_each_layer_and_tells_frozen_from_trained():
    model = tuned(tune.Lora(rank=2, targets=("up",), layers=(1,)))
    html = layer_table(model)
    rows = re.findall(r"<tr><th.*?</tr>", html)
    first, second = (next(r for r in rows if f"encoder.layers.{n}<" in r) for n in (0, 1))
    assert "<b>" not in first
    assert first.count('class="none"') == 5  # qkv, out, up, down, norms
    assert second.count("<b>") == 1
    assert f"<b>{2 * (16 + 32)}</b>" in second
    assert first.count('class="gap"') == 3  # an encoder looks at nothing else


def test_shades_are_by_powers_of_ten():
    assert darkness(1) == 1
    assert darkness(0.01) == pytest.approx(0.5)
    assert darkness(1e-9) == 0.08
    assert [percent(x) for x in (0, 1, 0.0258, 1e-6)] == ["–", "100 %", "2.58 %", "&lt; 0.01 %"]


def test_methods_are_compared_on_the_same_model_the_largest_first():
    model = tuned(tune.Lora(rank=4))
    rows = compared(model, (tune.Lora(rank=4),))
    assert [row.trained for row in rows] == sorted((row.trained for row in rows), reverse=True)
    assert sum(row.own for row in rows) == 1
    kinds = [type(row.methods[0]).name for row in rows]
    assert kinds[0] == "full"
    assert sorted(kinds) == ["bitfit", "bottleneck", "full", "ia3", "lora", "prefix", "prompt"]
    own = next(row for row in rows if row.own)
    assert own.trained == trainable(model).trained
    table = method_table(rows)
    assert table.count("this run") == 1
    assert amount(EACH * own.trained) in table


def test_parts_that_are_trained_whole_are_so_in_every_row_and_what_does_not_fit_is_left_out():
    tree = small("encoder", head=ClassHead(labels=("a", "b"), at="first"))
    model = tuned(tune.Lora(rank=2, whole=("head",)), tree)
    head = sum(p.numel() for p in model.head.parameters())
    rows = compared(model, (tune.Lora(rank=2, whole=("head",)),))
    assert min(row.trained for row in rows) > head
    assert "prompt" in {type(row.methods[0]).name for row in rows}
    shape = af.build(preset("llama-3.2-1b"), device="meta")
    none = compared(shape, (tune.Full(),))
    assert "bitfit" not in {type(row.methods[0]).name for row in none}  # it has no biases


def test_a_method_is_told_by_its_name_and_what_is_unusual():
    assert method_name(tune.Lora(rank=4, targets=("q", "v")))[0] == "lora, rank 4, targets q/v"
    assert method_name(tune.Lora(alpha=32.0, dora=True))[0] == "lora, rank 8, alpha 32, dora"
    assert method_name(tune.Full())[0] == "full"
    assert [amount(x) for x in (12, 1536, 3 << 30)] == ["12 B", "1.5 KiB", "3 GiB"]


def test_reward_is_drawn_over_divergence_in_the_order_of_training():
    history = [
        {"step": n, "validation_kl": kl, "validation_margin": gain}
        for n, kl, gain in ((0, 0.0, 0.0), (10, 0.4, 1.0), (20, 0.2, 2.0))
    ]
    chart = reward_chart(history)
    assert chart is not None
    assert chart.data["series"][0]["points"] == [[0.0, 0.0], [0.4, 1.0], [0.2, 2.0]]
    assert chart.data["series"][1]["points"] == [[0.0, 0.0], [0.4, 10.0], [0.2, 20.0]]
    assert "Margin of the better answer" in chart.html
    both = [{**row, "validation_reward": 1.0 + row["step"]} for row in history]
    assert reward_chart(both).data["series"][0]["points"][0] == [0.0, 1.0]
    assert reward_chart(history[:1]) is None
    assert reward_chart([{"step": 1, "validation_margin": 1.0}] * 2) is None


def test_wins_ties_and_losses_are_counted_and_a_tie_is_half_a_win():
    found = wins(JUDGED)
    assert (found.won, found.tied, found.lost) == (2, 1, 1)
    assert found.rate == 0.625
    assert (found.before, found.after) == (0.5, 1.0)
    bar = wins_bar(found, "<judge>")
    assert "2 won" in bar
    assert "负 1" in bar
    assert "&lt;judge&gt;" in bar
    assert wins(Predictions()) is None
    assert wins(None) is None


def test_rewards_stand_below_their_answers_and_survive_the_disk(tmp_path):
    JUDGED.save(tmp_path)
    again = Predictions.load(tmp_path)
    assert again == JUDGED
    html = example_list(again)
    assert html.count("reward ") == 8
    raw = json.loads((tmp_path / "predictions.json").read_text())
    for row in raw["rows"]:
        del row["rewards"]  # as older runs have it
    (tmp_path / "predictions.json").write_text(json.dumps(raw))
    assert wins(Predictions.load(tmp_path)) is None


def test_the_page_of_a_tuned_run_has_its_section_in_both_languages(tmp_path):
    history = [
        {"step": n, "validation_nll": 1.0, "validation_kl": 0.1 * n, "validation_reward": 0.2 * n}
        for n in range(3)
    ]
    plain = page_of(tmp_path, small("decoder"))
    assert 'id="tuned"' not in plain
    assert "#tuned" not in plain
    given = {"history": history, "methods": (tune.Full(),), "predictions": JUDGED, "judge": "me"}
    page = page_of(tmp_path, small("decoder"), **given)
    for text in ('id="tuned"', "#tuned", "What was trained", "训练了什么", 'data-plot="reward-kl"',
                 "Who wins", "由 me 评判"):  # fmt: skip
        assert text in page
    assert tuned_section(None, (), ()) == ("", {})
