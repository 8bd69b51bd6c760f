"""Objectives: training knows nothing but their interface, and one of a user's own will do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import allformer as af
from allformer import tasks
from allformer.checkpoint.weights import read_tensors
from allformer.errors import ConfigError
from allformer.train.loop import train
from allformer.train.metrics import read_metrics
from allformer.train.objectives import find_objective
from allformer.train.recipe import Recipe, make_recipe, read_recipe

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "training.md"


def example(page: Path) -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    return code


@pytest.fixture(scope="module")
def documented() -> dict[str, object]:
    """The example of the page, run as it stands there."""
    names: dict[str, object] = {}
    exec(compile(example(PAGE), PAGE.name, "exec"), names)
    return names


def test_both_pages_have_the_same_example():
    plain = [
        [line.split("  #")[0] for line in example(page).splitlines()]
        for page in (PAGE, PAGE.with_name("training.zh-CN.md"))
    ]
    assert plain[0] == plain[1]


def lines() -> list[str]:
    words = ["one", "two", "three", "four"]
    return [f"{words[i % 4]} {words[(i + 1) % 4]} {words[(i + 2) % 4]}" for i in range(120)]


def causal(**settings: object) -> Recipe:
    change = {
        "decoder.dim": 16, "decoder.position.length": 32, "decoder.blocks.times": 1,
        "decoder.blocks.attention.heads": 2, "decoder.blocks.feed.width": 32,
    }  # fmt: skip
    plain = {"steps": 30, "batch_tokens": 200, "rate": 2e-2, "warmup": 5, "log_every": 5,
             "save_every": 10, "validate_every": 10, "average": 1}  # fmt: skip
    return make_recipe(
        {
            "objective": "my-lm",
            "tokenizer": {"kind": "bpe", "vocab": 40},
            "model": {"preset": "gpt2", "change": change},
            "train": {**plain, **settings},
        }
    )


def test_an_objective_of_ones_own_trains_stops_goes_on_and_opens(documented, tmp_path):
    result = train(causal(), tmp_path / "run", device="cpu", corpus=lines())
    figures = [row for row in result.rows if "validation_nll" in row]
    assert figures[-1]["validation_nll"] < 0.6 * result.rows[0]["nll"]
    assert 0.3 < figures[-1]["validation_right"] <= 1
    run = af.load(tmp_path / "run")
    assert type(run.config).__name__ == "DecoderOnly"
    said = tasks.generate(tmp_path / "run", "one two", max_new_tokens=8)
    assert "three" in said
    # and in two parts
    train(causal(steps=10), tmp_path / "parts", device="cpu", corpus=lines())
    torch.manual_seed(99)
    again = train(
        None, tmp_path / "parts", device="cpu", corpus=lines(), resume=True,
        overrides=["train.steps=30"],
    )  # fmt: skip
    assert again.steps == 30
    one, other = (read_tensors(tmp_path / name / "model.safetensors") for name in ("run", "parts"))
    assert all(one[name].equal(other[name]) for name in one)
    trained = [row["step"] for row in read_metrics(tmp_path / "parts") if "nll" in row]
    assert trained == list(range(5, 31, 5))


def test_an_unknown_objective_says_which_there_are(tmp_path):
    with pytest.raises(ConfigError, match=r"objective='gan' is not known; there is .*seq2seq"):
        train(make_recipe({"objective": "gan"}), tmp_path / "run")
    assert find_objective("seq2seq").name == "seq2seq"


def test_a_model_that_the_objective_cannot_train_is_refused_before_any_work(tmp_path):
    recipe = make_recipe({"model": {"preset": "gpt2"}, "data": {"path": "nowhere"}})
    with pytest.raises(ConfigError, match=r"model is a DecoderOnly .* needs an EncoderDecoder"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- the recipe's model ------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:no end was reached")
@pytest.mark.parametrize("name", ["t5-small", "bart-base", "original-base"])
def test_a_preset_with_changes_trains_and_translates(name, tmp_path):
    change = {"encoder.dim": 16, "decoder.dim": 16}
    for side in ("encoder", "decoder"):
        change |= {f"{side}.blocks.times": 1, f"{side}.blocks.feed.width": 24}
        change |= {f"{side}.blocks.attention.heads": 2}
    change["decoder.blocks.cross.heads"] = 2
    if name == "t5-small":
        heads = ("encoder.blocks.attention", "decoder.blocks.attention", "decoder.blocks.cross")
        change |= {f"{part}.head_dim": 8 for part in heads}
    pairs = [(f"{line} {i}", f"{i} {line}") for i, line in enumerate(lines())]
    recipe = make_recipe(
        {
            "model": {"preset": name, "change": change},
            "tokenizer": {"vocab": 40},
            "train": {"steps": 2, "batch_tokens": 100, "average": 1},
            "data": {"max_length": 30},
        }
    )
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml(), encoding="utf-8")
    assert read_recipe(path) == recipe
    from allformer.data.parallel import Corpus

    train(recipe, tmp_path / "run", device="cpu", corpus=Corpus(pairs))
    raw = json.loads((tmp_path / "run" / "config.json").read_text())
    assert raw["encoder"]["dim"] == 16
    assert raw["encoder"]["source"]["vocab"] <= 40
    assert isinstance(tasks.translate(tmp_path / "run", "one two", max_new_tokens=3), str)


def test_a_whole_tree_is_a_model_too(tmp_path):
    tree = json.loads(af.preset("original-tiny").to_json())
    recipe = make_recipe({"model": tree})
    assert recipe.model.tree() == af.preset("original-tiny")
    path = tmp_path / "r.yaml"
    path.write_text(recipe.to_yaml(), encoding="utf-8")
    assert read_recipe(path) == recipe
    tree["encoder"]["dim"] = -3
    with pytest.raises(ConfigError, match=r"model\.encoder: Stack\.dim=-3 must be"):
        make_recipe({"model": tree})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"encoder.dmi": 3}, r"encoder\.dmi: there is no 'dmi'; did you mean dim\? there is dim, "),
        ({"encoder.xyz": 3}, r"model\.change\.encoder\.xyz: there is no 'xyz'; there is dim, "),
        ({"encoder.blocks.tims": 3}, r"there is no 'tims'; did you mean times\? there is times, "),
        ({3: 4}, r"model\.change\.3: there is no '3'; there is encoder, "),
        ({"encoder.dim": 63}, r"model\.change\.encoder\.dim=63: .*must be even"),
        ({"encoder.dim.x": 63}, r"model\.change\.encoder\.dim\.x leads into 512"),
        ({"encoder.blocks.times": 0}, r"model\.change\.encoder\.blocks\.times=0: "),
        ({"encoder.blocks.0.feed.act": "x"}, r"model\.change\.encoder\.blocks\.0\.feed\.act='x'"),
    ],
)
def test_a_change_that_cannot_be_is_named_by_its_path(change, said):
    with pytest.raises(ConfigError, match=said):
        make_recipe({"model": {"preset": "original-base", "change": change}})


def test_changes_can_be_set_from_the_command_line():
    recipe = make_recipe(
        {"model": {"preset": "original-base", "change": {"shared": True}}},
        ["model.change.encoder.dropout=0.3", "model.change.decoder.dropout=0.2"],
    )
    tree = recipe.model.tree()
    assert (tree.encoder.dropout, tree.decoder.dropout) == (0.3, 0.2)
    assert recipe.model.change["shared"] is True
    with pytest.raises(
        ConfigError, match=r"'orginal' is not known; did you mean original-\w+\? there is .*gpt2"
    ):
        make_recipe({"model": {"preset": "orginal"}})
    with pytest.raises(ConfigError, match=r"recipe\.model\.dim is of plain sizes, and .*preset"):
        make_recipe({"model": {"preset": "original-base", "dim": 3}})
