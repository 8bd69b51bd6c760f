"""Runs that tune: an adapter is trained by the engine, kept alone, gone on with, opened again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import allformer as af
from allformer.checkpoint.convert import convert
from allformer.checkpoint.weights import read_tensors
from allformer.core.model import build
from allformer.core.quantised import Quantised, is_quantised
from allformer.errors import CheckpointError, ConfigError
from allformer.run_facts import tuned_facts
from allformer.run_report import report_run
from allformer.train.dry_run import dry_run
from allformer.train.ema import Ema
from allformer.train.loop import Interrupted, Job, open_objective, train
from allformer.train.metrics import read_metrics
from allformer.train.recipe import make_recipe, read_recipe
from allformer.train.schedule import Linear
from allformer.train.sections.common import TrainRecipe
from allformer.train.sections.head import Classes
from allformer.train.sections.model import ModelRecipe
from allformer.train.sections.tune import TuneRecipe
from allformer.train.tuned import put_methods
from allformer.tune import Lora
from tests.drawn import write_idx
from tests.unit.test_train_loop import interrupt, same_weights, stop_at

TEXTS = ["a good film", "a bad film", "good bad good", "what a bad day", "what a good day"] * 12
ROWS = [{"text": text, "label": "pos" if "good" in text else "neg"} for text in TEXTS]
CORPUS = (ROWS[10:], ROWS[:10])
ADAPTER = "adapter_model.safetensors"
SHORT = {"steps": 6, "batch_tokens": 128, "validate_every": 3, "save_every": 2, "average": 2}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """A small BERT that says words: a body without a pooler and without labels."""
    run = tmp_path_factory.mktemp("base") / "base"
    recipe = {
        "objective": "masked-lm",
        "tokenizer": {"kind": "wordpiece", "vocab": 60},
        "model": {"dim": 16, "heads": 2, "feed": 32, "layers": 2},
        "train": {"steps": 2, "batch_tokens": 256, "average": 1},
    }
    train(make_recipe(recipe), run, device="cpu", corpus=TEXTS)
    return run


def recipe_of(base, tune, **settings):
    return make_recipe(
        {
            "objective": "classification",
            "model": {"checkpoint": str(base)},
            "tune": tune,
            "optim": {"rate": 1e-2},
            "schedule": {"kind": "linear", "warmup": 0.25},
            "train": {**SHORT, **settings},
            "log": {"tensorboard": False},
        }
    )


def tune(base, run, method, **settings):
    return train(recipe_of(base, method, **settings), run, device="cpu", corpus=CORPUS)


def says(model):
    return model(input_ids=torch.tensor([[2, 7, 8, 9, 3]])).logits


def begun(dtype: torch.dtype | None = None):
    """A small encoder with LoRA on it, whose head and pooler came with no checkpoint."""
    tree = Classes(("a", "b")).put(ModelRecipe(16, 2, 32, 1).tree("encoder"))
    model = build(tree, seed=0)
    fresh = [name for name, _ in model.named_parameters() if name.startswith(("head.", "pool."))]
    put_methods(model, TuneRecipe((Lora(rank=2),)), fresh, dtype)
    return model


def check_fresh():
    trained = {name for name, p in begun().named_parameters() if p.requires_grad}
    assert {"head.out.weight", "pool.dense.weight"} <= trained
    assert "encoder.layers.0.attention.qkv.weight" not in trained


def check_narrow():
    for parameter in begun(torch.bfloat16).parameters():
        wide = parameter.requires_grad or parameter.ndim < 2
        assert parameter.dtype == (torch.float32 if wide else torch.bfloat16)


def check_average():
    model = begun()
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert set(Ema(model, 0.9).average) == trained


def check_share():
    assert Linear(0.1).rate(5, 1.0, 100) == Linear(10).rate(5, 1.0, 100) == 0.5
    assert TrainRecipe().often(0.1, 200) == 20
    assert TrainRecipe().often(500, 200) == 500


@pytest.mark.parametrize("check", [check_fresh, check_narrow, check_average, check_share])
def test_what_a_tuned_run_holds_true(check):
    check()


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("method", "layout"),
    [({"is": "lora", "rank": 2}, "LORA"), ("ia3", "IA3"), ("bitfit", None),
     ([{"is": "lora", "rank": 2, "targets": ["q"]}, "bitfit"], "LORA")],
    ids=["lora", "ia3", "bitfit", "both"],
)  # fmt: skip
def test_a_run_leaves_its_adapter_and_is_opened_like_a_checkpoint(method, layout, base, tmp_path):
    before = read_tensors(base / "model.safetensors")
    result = tune(base, tmp_path / "run", method)
    written = json.loads((tmp_path / "run" / "adapter_config.json").read_text())
    assert written.get("peft_type") == layout
    assert written["base_model_name_or_path"] == str(base)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    again = af.load(tmp_path / "run")
    assert torch.equal(says(again), says(result.run.model.eval()))
    assert af.classify(tmp_path / "run", "a good film").label in ("pos", "neg")
    for name, tensor in again.state_dict().items():  # the body is the base's, the biases may differ
        if name in before and name.endswith("qkv.weight"):
            assert torch.equal(tensor, before[name])


def test_checkpoints_the_best_and_the_optimiser_hold_the_adapter_alone(base, tmp_path):
    job = Job(open_objective(recipe_of(base, "lora"), CORPUS), tmp_path, torch.device("cpu"),
              False, False, None)  # fmt: skip
    trained = [p for p in job.model.parameters() if p.requires_grad]
    held = [p for group in job.stepper.optimizer.param_groups for p in group["params"]]
    assert set(map(id, trained)) == set(map(id, held))
    assert job.trained < job.parameters / 2
    job.metrics.close()
    tune(base, tmp_path / "run", "lora", best="nll", ema=0.5)
    for file in ("best/model.safetensors", "checkpoints/step-00000006/model.safetensors"):
        names = read_tensors(tmp_path / "run" / file)
        assert all(".delta." in n or n.startswith(("head.", "pool.")) for n in names)
    state = torch.load(tmp_path / "run" / "checkpoints" / "step-00000006" / "state.pt")
    averaged = set(state["ema"]["average"])
    assert averaged
    assert not any(name.endswith("qkv.weight") for name in averaged)


@pytest.mark.every(2)
@pytest.mark.parametrize("more", [{}, {"ema": 0.5}, {"best": "nll"}], ids=["mean", "ema", "best"])
def test_a_run_that_was_stopped_goes_on_bit_by_bit(more, base, tmp_path, monkeypatch):
    method = {"is": "lora", "rank": 2, "dropout": 0.2}
    tune(base, tmp_path / "whole", method, **more)
    with monkeypatch.context() as patch:
        stop_at(patch, 3, interrupt)
        with pytest.raises(Interrupted):
            tune(base, tmp_path / "parts", method, **more)
    assert af.load(tmp_path / "parts").config.head.labels == ("neg", "pos")  # opened on its way
    train(None, tmp_path / "parts", device="cpu", resume=True, corpus=CORPUS)
    same_weights(tmp_path / "whole" / ADAPTER, tmp_path / "parts" / ADAPTER)


def test_the_mean_of_checkpoints_is_the_result(base, tmp_path):
    tune(base, tmp_path / "run", "ia3")
    one, two = (
        read_tensors(tmp_path / "run" / "checkpoints" / f"step-0000000{n}" / "model.safetensors")
        for n in (4, 6)
    )
    head = "head.out.weight"
    mean = ((one[head].double() + two[head].double()) / 2).float()
    assert torch.equal(af.load(tmp_path / "run").head.out.weight, mean)


def test_the_report_says_what_was_trained_and_where(base, tmp_path):
    result = tune(base, tmp_path / "run", {"is": "lora", "rank": 2}, steps=1)
    facts = tuned_facts(result.run.model, "lora")
    count = sum(p.numel() for p in result.run.model.parameters() if p.requires_grad)
    assert facts["tune"].startswith(f"lora: {count:,} of ")
    assert "encoder.layers.0–1: " in facts["tune_parts"]
    assert "head.out: 34" in facts["tune_parts"]
    report_run(result.run.path)
    page = (result.run.path / "report.html").read_text(encoding="utf-8")
    assert "Trained parameters" in page
    assert "训练的参数" in page


def test_full_trains_every_weight_and_writes_them(base, tmp_path):
    tune(base, tmp_path / "run", "full")
    assert not (tmp_path / "run" / ADAPTER).exists()
    after, before = (read_tensors(x / "model.safetensors") for x in (tmp_path / "run", base))
    name = "encoder.layers.0.attention.qkv.weight"
    assert not torch.equal(after[name], before[name])
    recipe = read_recipe(tmp_path / "run" / "recipe.yaml")
    assert recipe.tune.told == "full"


def test_a_run_stops_when_its_patience_is_spent_and_stays_stopped(base, tmp_path):
    asked = {"best": "nll", "patience": 2, "steps": 40, "validate_every": 2}
    recipe = recipe_of(base, "lora", **asked)
    recipe = make_recipe(recipe.plain(), ["optim.rate=3.0"])  # it gets worse
    result = train(recipe, tmp_path / "run", device="cpu", corpus=CORPUS)
    kept = json.loads((tmp_path / "run" / "best" / "best.json").read_text())
    assert result.steps == kept["step"] + 4 < 40
    again = train(None, tmp_path / "run", device="cpu", resume=True, corpus=CORPUS)
    assert again.steps == result.steps
    assert max(row["step"] for row in read_metrics(tmp_path / "run")) == result.steps


def test_frozen_matrices_are_held_in_the_dtype_of_the_step(base, tmp_path):
    job = Job(open_objective(recipe_of(base, "lora", precision="bf16"), CORPUS), tmp_path,
              torch.device("cpu"), False, False, None)  # fmt: skip
    job.metrics.close()
    kinds = {p.requires_grad: set() for p in job.model.parameters()}
    for p in job.model.parameters():
        if p.ndim > 1:
            kinds[p.requires_grad].add(p.dtype)
    assert kinds == {True: {torch.float32}, False: {torch.bfloat16}}


def test_a_plan_counts_what_is_trained(base):
    plan = {name: dry_run(recipe_of(base, name), device="cpu", corpus=CORPUS).memory
            for name in ("full", "lora")}  # fmt: skip
    for part in ("gradients", "optimiser"):
        assert plan["lora"][part] < plan["full"][part] / 2


def test_what_came_with_no_weights_is_trained_whole(base):
    recipe = recipe_of(base, {"is": "lora", "whole": ["head"]})
    with pytest.raises(ConfigError, match=r"whole=\['head'\] leaves pool\.dense.* add 'pool'"):
        dry_run(recipe, device="cpu", corpus=CORPUS)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"is": "lora", "targets": ["qq"]}, r"targets='qq' is no linear layer .* there is all-lin"),
        ({"is": "lora", "rank": 0}, r"recipe\.tune: Lora\.rank=0 must be"),
        ({"is": "lorra"}, r"recipe\.tune\.is='lorra' is not a method; did you mean lora\?"),
        ({"is": "lora", "rnk": 1}, r"recipe\.tune\.rnk is not known; did you mean rank\?"),
        ({"is": "bitfit", "rank": 1}, r"recipe\.tune\.rank belongs to lora, not to bitfit"),
        ([], r"recipe\.tune is an empty list"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_the_data_is_read(method, said, base, tmp_path):
    with pytest.raises(ConfigError, match=said):
        train(recipe_of(base, method), tmp_path / "run", device="cpu")  # no corpus: none is opened
    assert not (tmp_path / "run").exists()


def test_an_adapter_wants_trained_weights(tmp_path):
    recipe = make_recipe({"objective": "classification", "tune": "lora"})
    with pytest.raises(ConfigError, match=r"tune\.is=lora stands beside trained weights"):
        train(recipe, tmp_path / "run", device="cpu")


def test_patience_wants_a_figure():
    with pytest.raises(ConfigError, match=r"train\.patience=2 needs a figure"):
        make_recipe({"train": {"patience": 2}})


def test_the_section_is_written_as_it_is_read(base):
    recipe = recipe_of(base, {"is": "lora", "rank": 3, "targets": ["q", "v"], "ranks": {"q": 2}})
    again = make_recipe(recipe.plain(), ["tune.rank=5"])
    assert again.tune.methods == (Lora(rank=5, targets=("q", "v"), ranks={"q": 2}),)


def test_a_run_on_another_base_is_refused(base, tmp_path):
    tune(base, tmp_path / "run", "lora", steps=1)
    for change, said in (
        ({"dim": 32}, r"its base has none of that shape.*base="),
        ({"layers": 3}, r"is of a model with 2 layers in its encoder, and its base has 3"),
        ({"heads": 4}, r"is of a model with 2 heads in encoder\.layers\.0, and its base has 4"),
    ):
        sizes = {"dim": 16, "heads": 2, "feed": 32, "layers": 2} | change
        tree = replace(ModelRecipe(**sizes).tree("encoder"), head=af.load(base).config.head)
        af.save(build(tree, seed=0), tmp_path / "other", family="allformer")
        with pytest.raises(CheckpointError, match=said):
            af.load(tmp_path / "run", base=tmp_path / "other")
        if "dim" not in change:
            with pytest.raises(CheckpointError, match=said):
                af.load_adapter(af.load(tmp_path / "other"), tmp_path / "run")


def test_peft_opens_a_run(base, tmp_path):
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    result = tune(base, tmp_path / "run", {"is": "lora", "rank": 2})
    af.save(af.load(base), tmp_path / "hf", family="bert")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf")
    theirs = peft.PeftModel.from_pretrained(model, tmp_path / "run").eval()
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    with torch.no_grad():
        logits = theirs(input_ids=ids).logits
    assert torch.allclose(logits, says(result.run.model.eval()), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "bitfit", "ia3", "bottleneck", "prefix"])
def test_models_that_see_are_tuned_too(method, tmp_path):
    data = write_idx(tmp_path / "halves", 100, 40)
    sections = {
        "objective": "image-classification", "data": {"path": str(data), "hold_out": 20},
        "train": {"steps": 3, "batch_rows": 16, "average": 1}, "log": {"tensorboard": False},
    }  # fmt: skip
    sizes = {"patch": 4, "dim": 16, "heads": 2, "layers": 2, "feed": 32}
    train(make_recipe({**sections, "model": sizes}), tmp_path / "base", device="cpu")
    model = {"checkpoint": str(tmp_path / "base")}
    recipe = make_recipe({**sections, "model": model, "tune": method})
    result = train(recipe, tmp_path / "run", device="cpu")
    source = result.run.model.config.reader.source
    pixels = torch.rand(2, source.channels, *source.image)
    with torch.no_grad():
        ours, again = (m.eval()(pixel_values=pixels).logits
                       for m in (result.run.model, af.load(tmp_path / "run")))  # fmt: skip
    assert torch.equal(ours, again)


@pytest.mark.every(2)
@pytest.mark.parametrize("base_in", ["int4", "file"])
def test_a_base_in_few_bits_is_tuned_under_a_new_head(base_in, base, tmp_path):
    """Rounded when it is loaded, or in its file: the run goes on and opens on the same numbers."""
    where, bits = base, {"quantise": "int4"}
    if base_in == "file":
        where, bits = tmp_path / "bits", {}
        convert(base, where, quantise="int4", family="allformer", run=False)
        (where / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    plain = recipe_of(where, {"is": "lora", "rank": 2}).plain()
    recipe = make_recipe({**plain, "model": {"checkpoint": str(where), **bits}})
    result = train(recipe, tmp_path / "run", device="cpu", corpus=CORPUS)
    model = result.run.model.eval()
    layer = model.encoder.layers[0].attention.qkv
    assert isinstance(layer, Quantised)
    assert (layer.bits, layer.delta is not None) == (4, True)
    assert model.head.out.weight.requires_grad
    again = af.load(tmp_path / "run")
    assert torch.equal(says(again), says(model))
    said = json.loads((tmp_path / "run" / "adapter_config.json").read_text())
    assert said.get("quantised") == bits.get("quantise")
    convert(tmp_path / "run", tmp_path / "merged", merge=True, family="allformer", run=False)
    merged = af.load(tmp_path / "merged")
    assert not is_quantised(merged)
    assert torch.allclose(says(merged), says(model), atol=1e-5)


def test_all_weights_are_not_trained_in_few_bits(base, tmp_path):
    plain = recipe_of(base, "full").plain()
    for tune in ({"tune": plain["tune"]}, {}):
        rest = {name: x for name, x in plain.items() if name != "tune"}
        model = {"checkpoint": str(base), "quantise": "int8"}
        recipe = make_recipe({**rest, **tune, "model": model})
        with pytest.raises(ConfigError, match=r"in few bits, and nothing can be learnt in them"):
            train(recipe, tmp_path / "run", device="cpu", corpus=CORPUS)
