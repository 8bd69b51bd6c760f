"""Training from a recipe to a run directory: it learns, stops anywhere, and says what is wrong."""

from __future__ import annotations

import math
import random
import signal
import threading
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
import torch

from allformer.checkpoint.run import load_run
from allformer.checkpoint.weights import read_tensors
from allformer.data.encoded import EncodedPairs, Rows
from allformer.data.parallel import Corpus
from allformer.errors import CheckpointError, ConfigError, DataError, TrainingError
from allformer.tasks.texts import translate
from allformer.train import stream
from allformer.train.loop import Interrupted, train
from allformer.train.metrics import read_metrics
from allformer.train.objectives.seq2seq import Seq2Seq
from allformer.train.plain_yaml import read_yaml
from allformer.train.recipe import Recipe, TrainRecipe, make_recipe, read_recipe
from allformer.train.state import checkpoints
from allformer.train.step import Stepper
from allformer.train.stream import Place, micro_batches, prefetch

WORDS = {
    "one": "ek", "two": "do", "red": "lal", "old": "vec",
    "man": "nar", "dog": "kut", "sees": "pas", "and": "ta",
}  # fmt: skip


def toy_pairs(count: int) -> list[tuple[str, str]]:
    """A language that translates word for word."""
    draw = random.Random(0)
    lines = [draw.choices(list(WORDS), k=draw.randint(2, 5)) for _ in range(count)]
    return [(" ".join(line), " ".join(WORDS[word] for word in line)) for line in lines]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "toy.tsv"
    lines = [f"{source}\t{target}\n" for source, target in toy_pairs(400)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def toy_recipe(data: Path, **settings: object) -> Recipe:
    """Small, with dropout, over several epochs; `settings` are of the train section."""
    plain = {
        "steps": 20, "batch_tokens": 100, "accumulate": 2, "pool": 3, "rate": 5e-3, "warmup": 10,
        "validate_every": 10, "save_every": 5, "average": 3, "log_every": 4,
    }  # fmt: skip
    return make_recipe(
        {
            "name": "toy",
            "data": {"source": "en", "target": "xx", "path": str(data), "hold_out": 20},
            "tokenizer": {"kind": "bpe", "vocab": 60},
            "model": {"dim": 32, "heads": 2, "feed": 48, "layers": 1, "dropout": 0.1},
            "train": {**plain, **settings},
        }
    )


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int, act) -> None:
    """Call `act(stepper)` in the middle of the n-th step from now."""
    plain, number = Stepper.__call__, count(1)

    def call(self: Stepper, *args):
        if next(number) == step:
            act(self)
        return plain(self, *args)

    monkeypatch.setattr(Stepper, "__call__", call)


def interrupt(stepper: Stepper) -> None:
    signal.raise_signal(signal.SIGINT)


def crash(stepper: Stepper) -> None:
    raise MemoryError


@pytest.fixture(scope="module")
def straight(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    run = tmp_path_factory.mktemp("runs") / "straight"
    train(toy_recipe(data), run, device="cpu")
    return run


def steps_of(run: Path, key: str) -> list[int]:
    return [row["step"] for row in read_metrics(run) if key in row]


TIMES = ("seconds", "tokens_per_second", "peak_share", "memory_gib", "data_wait", "seconds_left")


def timeless(run: Path) -> list[dict[str, float]]:
    """The rows of metrics.jsonl without what differs from one machine or hour to the next."""
    return [{k: x for k, x in row.items() if k not in TIMES} for row in read_metrics(run)]


def same_weights(a: Path, b: Path) -> None:
    one, other = read_tensors(a), read_tensors(b)
    assert one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)


# --- a run -------------------------------------------------------------------------------------


def test_training_learns_a_language_that_translates_word_for_word(data, tmp_path):
    recipe = toy_recipe(
        data, steps=260, accumulate=1, batch_tokens=600, rate=1e-2, warmup=50, save_every=20
    )
    result = train(recipe, tmp_path / "run", device="cpu")
    losses = [row["nll"] for row in result.rows if "nll" in row]
    assert losses[0] > 2.5
    assert losses[-1] < 0.5
    assert sum(b > a for a, b in zip(losses, losses[8:], strict=False)) < len(losses) // 8
    perplexities = [row["validation_perplexity"] for row in result.rows if "averaged" in row]
    assert perplexities == [result.validation_perplexity]
    assert result.validation_perplexity < 1.5
    sources, targets = zip(*toy_pairs(40), strict=True)
    out = translate(tmp_path / "run", sources, num_beams=2)
    assert sum(a == b for a, b in zip(out, targets, strict=True)) >= 30


def test_a_run_leaves_everything_that_is_needed_later(straight):
    names = {path.name for path in straight.iterdir()}
    assert names >= {
        "config.json", "model.safetensors", "tokenizer.json", "recipe.yaml", "metrics.jsonl",
        "loss.png", "checkpoints",
    }  # fmt: skip
    assert (straight / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert [c.name for c in checkpoints(straight)] == [f"step-{n:08}" for n in (10, 15, 20)]
    assert steps_of(straight, "nll") == [4, 8, 12, 16, 20]
    assert steps_of(straight, "validation_nll") == [10, 20]
    for row in read_metrics(straight):
        assert all(math.isfinite(value) for value in row.values())
    assert load_run(straight).model.training is False


def test_the_saved_recipe_is_the_one_that_was_asked_for(straight, data):
    assert read_recipe(straight / "recipe.yaml") == toy_recipe(data)


def test_the_final_weights_are_the_mean_of_the_last_checkpoints(straight):
    final = read_tensors(straight / "model.safetensors")
    saved = [read_tensors(c / "model.safetensors") for c in checkpoints(straight)]
    assert len(saved) == 3
    for name, x in final.items():
        mean = torch.stack([one[name].double() for one in saved]).mean(0)
        torch.testing.assert_close(x.double(), mean, rtol=1e-7, atol=1e-8)
        assert not x.equal(saved[-1][name])


def test_a_directory_with_a_run_in_it_is_refused(straight, data):
    before = (straight / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match=r"already holds a run; .*--resume") as refused:
        train(toy_recipe(data), straight, device="cpu")
    assert str(straight) in str(refused.value)
    assert (straight / "model.safetensors").read_bytes() == before


def test_a_corpus_without_validation_has_some_held_out(data, tmp_path, capfd):
    corpus = Corpus(toy_pairs(100))
    train(toy_recipe(data, steps=1), tmp_path / "run", device="cpu", corpus=corpus)
    assert "training: 78 pairs\nvalidation: 22 pairs" in capfd.readouterr().err


def test_sentences_left_out_are_counted_aloud(data, tmp_path, capfd):
    corpus = Corpus([*toy_pairs(100), ("man " * 90, "nar")])
    recipe = make_recipe(
        read_yaml(toy_recipe(data, steps=1).to_yaml(), "toy"), ["data.max_length=80"]
    )
    train(recipe, tmp_path / "run", device="cpu", corpus=corpus)
    said = capfd.readouterr().err
    assert "1 left out, over 80 tokens (the longest has 90); data.max_length=80" in said


# --- stopping and going on ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "stops", [[10], [7], [3, 4, 6]], ids=["at a checkpoint", "between", "again and again"]
)
def test_interrupted_and_resumed_is_bit_for_bit_uninterrupted(
    stops, straight, data, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    for number, steps in enumerate(stops):
        with monkeypatch.context() as patch:
            stop_at(patch, steps, interrupt)
            with pytest.raises(Interrupted):
                train(toy_recipe(data), run, device="cpu", resume=number > 0)
    torch.manual_seed(12345)  # a new process has another random state
    result = train(toy_recipe(data), run, device="cpu", resume=True)
    assert result.steps == 20
    assert [c.name for c in checkpoints(run)] == [c.name for c in checkpoints(straight)]
    for mine, other in zip(checkpoints(run), checkpoints(straight), strict=True):
        same_weights(mine / "model.safetensors", other / "model.safetensors")
    same_weights(run / "model.safetensors", straight / "model.safetensors")
    assert timeless(run) == timeless(straight)


def test_a_crash_loses_only_what_came_after_the_last_checkpoint(
    straight, data, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_at(patch, 14, crash)
        with pytest.raises(MemoryError):
            train(toy_recipe(data), run, device="cpu")
    assert steps_of(run, "nll") == [4, 8, 12]  # the line of step 12 will be written again
    train(toy_recipe(data), run, device="cpu", resume=True)
    same_weights(run / "model.safetensors", straight / "model.safetensors")
    assert steps_of(run, "nll") == [4, 8, 12, 16, 20]
    assert steps_of(run, "validation_nll") == [10, 20]


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(data, tmp_path, monkeypatch):
    run, before = tmp_path / "run", signal.getsignal(signal.SIGINT)
    stop_at(monkeypatch, 7, interrupt)
    with pytest.raises(Interrupted) as stopped:
        train(toy_recipe(data), run, device="cpu")
    said = str(stopped.value)
    assert "stopped at step 7 of 20, all is saved" in said
    assert f"`allformer train --resume {run}`" in said
    assert checkpoints(run)[-1].name == "step-00000007"
    assert steps_of(run, "nll") == [4]  # what came after is in the checkpoint
    assert not (run / "model.safetensors").exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_stops_at_once(data, tmp_path, monkeypatch):
    def twice(stepper: Stepper) -> None:
        interrupt(stepper)
        interrupt(stepper)

    stop_at(monkeypatch, 3, twice)
    with pytest.raises(KeyboardInterrupt):
        train(toy_recipe(data), tmp_path / "run", device="cpu")
    assert not checkpoints(tmp_path / "run")


def test_resuming_a_finished_run_changes_nothing(data, tmp_path):
    run = tmp_path / "run"
    train(toy_recipe(data, steps=6), run, device="cpu")
    weights, rows = (run / "model.safetensors").read_bytes(), read_metrics(run)
    train(toy_recipe(data, steps=6), run, device="cpu", resume=True)
    assert (run / "model.safetensors").read_bytes() == weights
    assert read_metrics(run) == rows


def test_resuming_what_is_not_there_says_so(data, tmp_path):
    with pytest.raises(ConfigError, match=r"nothing: there is no such directory; give"):
        train(toy_recipe(data), tmp_path / "nothing", device="cpu", resume=True)
    run = tmp_path / "early"
    run.mkdir()
    (run / "recipe.yaml").write_text(toy_recipe(data).to_yaml(), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"early has no config\.json"):
        train(toy_recipe(data), run, device="cpu", resume=True)


# --- a loss that is no number ------------------------------------------------------------------


def poison(stepper: Stepper) -> None:
    with torch.no_grad():
        stepper.model.decoder.layers[0].feed.up.weight[3, 5] = float("nan")


def test_a_poisoned_weight_is_named_with_the_step_and_what_to_try(data, tmp_path, monkeypatch):
    stop_at(monkeypatch, 6, poison)
    with pytest.raises(TrainingError) as stopped:
        train(toy_recipe(data), tmp_path / "run", device="cpu")
    said = str(stopped.value)
    assert "not finite at step 6 (learning rate 0.003)" in said
    assert "weights that are not finite: decoder.layers.0.feed.up.weight\n" in said
    assert "first value that is not finite: decoder.0.feed." in said
    assert "gradients that are not finite: " in said
    assert "try: a lower optim.rate" in said
    assert "--resume" in said
    assert [c.name for c in checkpoints(tmp_path / "run")] == ["step-00000005"]


def test_a_gradient_that_is_no_number_stops_even_if_the_loss_is_fine(data, tmp_path, monkeypatch):
    def spoil(stepper: Stepper) -> None:
        stepper.model.encoder.layers[0].feed.down.bias.register_hook(lambda grad: grad * math.inf)

    stop_at(monkeypatch, 3, spoil)
    with pytest.raises(TrainingError) as stopped:
        train(toy_recipe(data), tmp_path / "run", device="cpu")
    said = str(stopped.value)
    assert "not finite at step 3 " in said
    assert "gradients that are not finite: encoder.layers.0.feed.down.bias\n" in said
    assert "first value" not in said


def test_a_huge_learning_rate_is_stopped_with_finite_weights(data, tmp_path):
    with pytest.raises(TrainingError) as stopped:
        train(toy_recipe(data, rate=1e25, warmup=1), tmp_path / "run", device="cpu")
    said = str(stopped.value)
    assert "not finite at step 2" in said
    assert "the weights were left as they were before it" in said
    assert "weights that are not finite" not in said
    assert "first value that is not finite: encoder.0.attention" in said
    assert "a lower optim.rate" in said


# --- recipes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "trian: {steps: 5}",
            r"r\.yaml: trian is not known; did you mean train\? there is .*train",
        ),
        (
            "train: {step: 5}",
            r"train\.step is not known; did you mean steps\? there is steps, epochs",
        ),
        ("model: {layer: 5}", r"model\.layer is not known; did you mean layers\? there is dim, "),
        ("train: {xyz: 5}", r"r\.yaml: train\.xyz is not known; there is steps, epochs"),
        ("model: {is: EncoderDecoder, 3: 4, x: 5}", r"model has no field 3; EncoderDecoder has "),
        ("train: {steps: five}", r"train\.steps='five' must be int; correct its type"),
        ("train: {steps: true}", r"train\.steps=True must be int"),
        ("optim: {rate: high}", r"optim\.rate='high' must be float"),
        ("data: {path: 3}", r"data\.path=3 must be nothing or str"),
        ("train: 5", r"train is 5; it must be a section"),
        ("[1, 2]", r"r\.yaml is \[1, 2\]; it must be a section"),
        ("train: {steps: 0}", r"train\.steps=0 must be at least 1"),
        ("train: {rate: -1}", r"optim\.rate=-1\.0 must be positive"),
        ("train: {smoothing: 1}", r"train\.smoothing=1\.0 must be in 0 … 1, without 1; try 0\.1"),
        ("schedule: {kind: lin}", r"schedule\.kind='lin' .* try inverse-sqrt, cosine"),
        ("train: {precision: int8}", r"train\.precision='int8' .* try auto, fp32, bf16, fp16"),
        ("tokenizer: {kind: word}", r"tokenizer\.kind='word' .* try bpe"),
        ("a: [", r"r\.yaml is not YAML"),
        ("train: {'': 5}", r"r\.yaml: train\. is not known; there is steps"),
        ("model: {checkpoint: a, head: tags}", r"model\.head is 'tags'; it must be a section"),
    ],
)
def test_a_wrong_recipe_names_the_key_and_the_way_out(text, said, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        read_recipe(path)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.steps", "'train.steps' is not section.key=value; try train.steps=500"),
        ("steps=5", r"'steps=5' is not section.key=value; did you mean train\.steps=5\?"),
        ("rate=0.1", r"'rate=0.1' is not section.key=value; did you mean optim\.rate=0\.1\?"),
        ("zzz=5", "'zzz=5' is not section.key=value; try train.steps=500"),
        ("train.stepz=5", r"train\.stepz is not known; did you mean steps\? there is steps"),
        ("tokenzer.vocab=5", r"recipe\.tokenzer is not known; did you mean tokenizer\? there is "),
        ("train.steps=many", r"train\.steps='many' must be int"),
        ("optim=adam", r"recipe\.optim is 'adam'; it must be a section"),
        ("name.first=x", r"name is 'run'; it must be a section"),
        ("train.steps=[", r"'train.steps=\[': '\[' is not YAML"),
        ("train.=5", "'train.=5' is not section.key=value"),
        ("model..dim=5", r"'model\.\.dim=5' is not section\.key=value"),
        ("data.swap.x=5", r"recipe\.data\.swap=\{'x': 5\} must be bool"),
    ],
)
def test_a_wrong_override_is_refused_with_the_way_out(override, said):
    with pytest.raises(ConfigError, match=said):
        make_recipe({"name": "run"}, [override])


def test_a_recipe_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml is not there; give"):
        read_recipe(tmp_path / "nowhere.yaml")


def test_steps_that_are_asked_for_are_not_overruled_by_a_recipes_epochs():
    given = {"train": {"epochs": 3}}
    asked = make_recipe(given, ["train.steps=50"]).train
    assert (asked.steps, asked.epochs) == (50, None)
    assert make_recipe(given, ["train.steps=50", "train.epochs=2"]).train.epochs == 2


def test_overrides_win_and_leave_the_given_data_alone():
    data = {"train": {"steps": 5, "rate": 0.1}}
    recipe = make_recipe(data, ["train.steps=7", "train.rate=1e-4", "model.dim = 64"])
    assert (recipe.train.steps, recipe.optim.rate, recipe.model.dim) == (7, 1e-4, 64)
    assert data == {"train": {"steps": 5, "rate": 0.1}}
    assert make_recipe({}, ["data.path="]).data.path is None


def test_a_section_of_one_word_is_overridden_by_its_own_name():
    asked = make_recipe({"tune": {"is": "lora", "rank": 2}, "name": "a"}, ["tune=bitfit", "name=b"])
    assert (asked.name, type(asked.tune.methods[0]).__name__) == ("b", "BitFit")
    asked = make_recipe({}, ["objective=causal-lm", "objective.rows=documents"])
    assert (asked.objective, asked.options.rows) == ("causal-lm", "documents")
    asked = make_recipe({"model": {"dim": 32}}, ["model={preset: gpt2}"], "r")
    assert asked.model.preset == "gpt2"


def test_sizes_beside_a_preset_are_refused_by_what_they_are():
    with pytest.raises(
        ConfigError,
        match=r"model\.dim is of plain sizes, and recipe\.model\.preset .*"
        r"recipe\.model\.change",
    ):
        make_recipe({"model": {"dim": 32}}, ["model.preset=gpt2"])


def test_an_override_reaches_into_sections_of_sections():
    given = {
        "data": {"path": "x", "columns": {"source": "article"}},
        "model": {"preset": "t5-small"},
    }
    asked = ["data.columns.target=summary", "model.change.encoder.blocks.times=2"]
    recipe = make_recipe(given, asked)
    assert recipe.data.columns == {"source": "article", "target": "summary"}
    assert recipe.model.change == {"encoder.blocks.times": 2}
    seen = {"objective": "image-classification", "data": {"path": "x"}, "model": {"patch": 4}}
    assert make_recipe(seen, ["data.augment.flip=0.5"]).data.augment.flip == 0.5
    paired = {"objective": "contrastive", "model": {"vision": {"patch": 4}, "text": {}}}
    assert make_recipe(paired, ["model.vision.dim=96"]).model.vision.dim == 96


def test_yaml_out_and_in_is_the_same_recipe(tmp_path):
    recipe = make_recipe(
        {"name": "中文", "train": {"rate": 7e-4, "clip": 3}, "data": {"path": "a.en,a.de"}}
    )
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml(), encoding="utf-8")
    assert read_recipe(path) == recipe
    assert "中文" in recipe.to_yaml()


def test_an_empty_recipe_is_the_default(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("", encoding="utf-8")
    assert read_recipe(path) == Recipe()


def test_a_recipe_without_data_says_what_to_set(tmp_path):
    with pytest.raises(DataError, match=r"data\.corpus and data\.path are both empty.*--data DIR"):
        train(Recipe(), tmp_path / "run", device="cpu")


# --- the parts ---------------------------------------------------------------------------------


def test_prefetch_gives_the_same_items_and_ends_with_them():
    assert list(prefetch(iter(range(100)))) == list(range(100))


def test_prefetch_raises_what_its_thread_raised_after_the_items_before_it():
    def items():
        yield from range(20)
        raise DataError("line 21 is broken")

    source = prefetch(items())
    assert [next(source) for _ in range(20)] == list(range(20))
    with pytest.raises(DataError, match="line 21 is broken"):
        next(source)


def test_prefetch_makes_a_few_ahead_and_stops_when_it_is_closed():
    made, before = [], threading.enumerate()
    source = prefetch(made.append(i) or i for i in count())
    assert list(islice(source, 3)) == [0, 1, 2]
    (thread,) = [t for t in threading.enumerate() if t not in before]
    source.close()
    thread.join(timeout=5)
    assert not thread.is_alive()
    assert len(made) <= 3 + stream._AHEAD + 1


def test_the_next_epoch_is_encoded_while_this_one_is_used_and_all_threads_end():
    rows = Rows(np.full(400, 5, np.uint16), np.full(80, 5), np.arange(0, 400, 5))
    asked, coming, before = [], threading.Event(), threading.enumerate()

    class Slow(Seq2Seq):
        def examples(self, epoch):
            asked.append(epoch)
            if epoch == 1:
                coming.set()
            return EncodedPairs(rows, rows)

    recipe = TrainRecipe(batch_tokens=12)  # two sentences with </s>: 40 batches an epoch
    source = prefetch(micro_batches(Slow(), recipe, None, Place()))
    places = [next(source)[1]]
    assert coming.wait(timeout=5), "epoch 1 must not wait for the last batches of epoch 0"
    places += [place for _, place in islice(source, 41)]
    assert places == [Place(0, n) for n in range(1, 41)] + [Place(1, 1), Place(1, 2)]
    source.close()
    for thread in set(threading.enumerate()) - set(before):
        thread.join(timeout=5)
        assert not thread.is_alive(), thread.name
    assert asked == [0, 1, 2][: len(asked)], "one epoch ahead, no more"
