"""Processes that train together: every plan is the single process, only shared out.

Two processes are started once for what is cheap; four, and torchrun itself, are slow.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from allformer.config import Attention, Block, Feed
from allformer.core.model import build
from allformer.errors import ConfigError
from allformer.train.loop import train
from allformer.train.metrics import read_metrics
from allformer.train.parallel.launch import resolve
from allformer.train.parallel.mesh import Mesh
from allformer.train.parallel.pieces import held
from allformer.train.parallel.pipeline import check_pipeline, spans
from allformer.train.parallel.ranks import stream_seed
from allformer.train.parallel.tensor import Cut, check_tensor
from allformer.train.recipe import make_recipe
from allformer.train.sections.common import ParallelRecipe, TrainRecipe
from allformer.train.stream import Place, micro_batches
from tests import ranks
from tests.models import KINDS, SPREAD, decoder_only, seq2seq

THREE = {name: KINDS[name] for name in ("seq2seq paper", "decoder modern", "encoder modern")}
ODD = {
    name: SPREAD[name]
    for name in (
        "seq2seq buckets", "decoder window", "shared but untied", "apart but tied", "counts ids",
        "unequal depths", "rotary squeezed",
    )
}  # fmt: skip
PLANS = [{name: 2} for name in ("data", "shard", "tensor", "context", "pipeline")]
PRODUCTS = [
    {"data": 2, "shard": 2}, {"data": 2, "tensor": 2}, {"shard": 2, "tensor": 2},
    {"data": 2, "pipeline": 2}, {"shard": 2, "context": 2}, {"data": 2, "context": 2},
    {"pipeline": 2, "tensor": 2}, {"tensor": 2, "context": 2}, {"tensor": 4}, {"shard": 4},
]  # fmt: skip


# --- every plan is one process --------------------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: next(iter(plan)))
def test_two_ranks_take_the_steps_of_one(plan, tmp_path):
    ranks.start(2, tmp_path, ranks.check_plans, [plan], THREE)


@pytest.mark.slow
def test_a_run_goes_on_under_any_other_plan(tmp_path):
    ways = [{"data": 2}, {}, {"tensor": 2}, {"shard": 2}, {"pipeline": 2}, {"shard": 2}, {}]
    ranks.start(2, tmp_path, ranks.check_ways, tmp_path / "run", ways, KINDS["seq2seq modern"])


def test_ranks_agree_on_what_they_do(tmp_path):
    ranks.start(2, tmp_path, ranks.check_words)


def recipe_of(objective: object, length: int = 24) -> dict[str, object]:
    """A small recipe for training on TEXTS."""
    return {
        "objective": objective,
        "data": {"max_length": length, "hold_out": 4},
        "tokenizer": {"kind": "characters", "vocab": 150},
        "model": {"dim": 16, "heads": 2, "feed": 24, "layers": 2, "dropout": 0.0},
        "optim": {"rate": 1e-2, "eps": 1e-4},
        "schedule": {"kind": "constant", "warmup": 3},
        "train": {"steps": 4, "batch_tokens": 96, "save_every": 2, "validate_every": 2,
                  "average": 2},
        "log": {"every": 1, "tensorboard": False},
    }  # fmt: skip


TEXTS = [f"line {i} of {i * i} has {'many ' * (i % 5)}words" for i in range(40)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "plans"),
    [
        ({"is": "causal-lm", "rows": "stream"}, PLANS),
        ({"is": "causal-lm", "rows": "documents"}, PLANS[:4]),
        ({"is": "masked-lm", "rows": "stream"}, PLANS[:4]),
        ("span-corruption", PLANS[:4]),
    ],
    ids=["causal stream", "causal documents", "masked", "spans"],
)
def test_every_plan_trains_a_recipe_as_one_process_does(objective, plans, tmp_path):
    ranks.start(2, tmp_path, ranks.check_training, tmp_path, plans, recipe_of(objective), TEXTS)


METHODS = [
    {"is": "lora", "rank": 2}, [{"is": "lora", "rank": 2, "targets": ["q"]}, "bitfit"],
    "bottleneck", {"is": "prefix", "tokens": 3},
]  # fmt: skip


def body(folder: Path) -> Path:
    """A small decoder that has learnt a little, to be tuned."""
    asked = recipe_of({"is": "causal-lm", "rows": "stream"}, length=32)
    train(make_recipe({**asked, "train": {"steps": 1, "batch_tokens": 96, "average": 1}}), folder,
          device="cpu", corpus=TEXTS)  # fmt: skip
    return folder


@pytest.mark.every(4)
@pytest.mark.parametrize("which", range(len(METHODS)), ids=["lora", "two", "bottleneck", "prefix"])
def test_copies_train_an_adapter_as_one_process_does(which, tmp_path):
    asked = recipe_of({"is": "causal-lm", "rows": "documents"})
    asked = {key: asked[key] for key in ("objective", "data", "optim", "schedule", "train", "log")}
    asked |= {"train": {**asked["train"], "best": "nll" if which == 1 else None}}
    asked |= {"train": {**asked["train"], "ema": 0.8 if which == 2 else None}}
    ranks.start(2, tmp_path, ranks.check_tuned, tmp_path, body(tmp_path / "base"), asked,
                [METHODS[which]], TEXTS)  # fmt: skip


def test_an_adapter_is_refused_where_a_rank_has_a_part_of_the_model():
    plan = Mesh.__new__(Mesh)
    plan.sizes = {"pipeline": 1, "data": 1, "shard": 2, "context": 1, "tensor": 1}
    with pytest.raises(
        ConfigError, match=r"tune\.is=lora is trained by copies .*parallel\.shard=2"
    ):
        plan.check(make_recipe({"tune": "lora", "model": {"checkpoint": "x"}}))
    plan.sizes |= {"shard": 1, "data": 2}
    plan.check(make_recipe({"tune": "lora", "model": {"checkpoint": "x"}}))


@pytest.mark.slow
def test_a_resume_on_the_same_plan_is_exact_with_dropout_and_a_moving_average(tmp_path):
    asked = recipe_of({"is": "causal-lm", "rows": "stream"})
    asked |= {"model": {**asked["model"], "dropout": 0.2}}
    asked |= {"train": {**asked["train"], "ema": 0.8, "accumulate": 2}}
    ranks.start(2, tmp_path, ranks.check_resumed, tmp_path, PLANS, asked, TEXTS)


@pytest.mark.slow
def test_every_slot_of_the_config_can_be_shared_out(tmp_path):
    ranks.start(2, tmp_path, ranks.check_plans, PLANS, ODD)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "carried"), [("layers", False), ("selective", False), ("layers", True), (None, True)]
)
def test_activations_can_be_made_again_on_every_plan(mode, carried, tmp_path):
    ranks.start(2, tmp_path, ranks.check_recomputed, PLANS, THREE, mode, carried)


@pytest.mark.slow
def test_layers_that_share_weights_and_narrow_tables_can_be_cut_too(tmp_path):
    plans = [plan for plan in PLANS if "pipeline" not in plan]
    odd = {"encoder narrow": KINDS["encoder narrow"]}
    ranks.start(2, tmp_path, ranks.check_plans, plans, odd)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PRODUCTS, ids=lambda plan: "×".join(plan))
def test_four_ranks_take_the_steps_of_one(plan, tmp_path):
    models = {"seq2seq paper": KINDS["seq2seq paper"], "decoder paper": KINDS["decoder paper"]}
    ranks.start(4, tmp_path, ranks.check_plans, [plan], models)


@pytest.mark.slow
def test_eight_ranks_are_copies_shards_and_parts_of_rows_at_once(tmp_path):
    plan = {"data": 2, "shard": 2, "context": 2}
    ranks.start(8, tmp_path, ranks.check_plans, [plan], {"seq2seq paper": KINDS["seq2seq paper"]})


@pytest.mark.slow
def test_a_run_goes_on_under_a_product_of_plans(tmp_path):
    ways = [
        {"shard": 2, "tensor": 2}, {}, {"data": 2, "pipeline": 2}, {"data": 2, "shard": 2},
        {"pipeline": 2, "tensor": 2}, {"shard": 2, "context": 2}, {},
    ]  # fmt: skip
    ranks.start(4, tmp_path, ranks.check_ways, tmp_path / "run", ways, KINDS["seq2seq buckets"])


# --- what each has --------------------------------------------------------------------------------


def test_micro_batches_are_dealt_out_in_order():
    class Numbers:
        def __init__(self):
            self.expected = []

        def chunks(self, epoch, first=0):
            yield from [epoch][first:]

        def order(self, examples):
            return None

        def lengths(self, examples):
            return np.full(7, 3), np.full(7, 3)

        def expect(self, examples, index):  # the one that this rank will collate next
            self.expected.append((examples, tuple(index)))

        def collate(self, examples, index, frame):
            if len(self.expected) > 1 or (examples, tuple(index)) in self.expected:
                assert self.expected.pop(0) == (examples, tuple(index))
            return examples, tuple(index)

    recipe = TrainRecipe(batch_tokens=3, pool=0)

    def take(turn, count):
        found = micro_batches(Numbers(), recipe, None, Place(), turn)
        return [next(found) for _ in range(count)]

    alone = take((0, 1), 12)
    two = [take((rank, 2), 6) for rank in range(2)]
    three = [take((rank, 3), 4) for rank in range(3)]
    for shared in (two, three):  # over the end of an epoch too
        together = [item for step in zip(*shared, strict=True) for item in step]
        assert [batch for batch, _ in together] == [batch for batch, _ in alone]
        for step in zip(*shared, strict=True):
            assert len({place for _, place in step}) == 1
    assert two[0][-1][1] == three[0][-1][1] == alone[-1][1]


def test_pieces_of_a_fused_product_are_rows_of_each_part():
    whole = torch.arange(24.0).view(12, 2)
    cut = Cut((12, 2), 0, ((2, 4), (6, 7), (11, 12)))
    mine = held(cut.of(whole), cut)
    assert [piece.offsets for piece in mine.pieces] == [(2, 0), (6, 0), (11, 0)]
    again = torch.zeros_like(whole)
    mine.into(again)
    assert (again != 0).any(1).nonzero().flatten().tolist() == [2, 3, 6, 11]
    assert again[[2, 3, 6, 11]].equal(whole[[2, 3, 6, 11]])
    mine.put(-whole)
    mine.into(again)
    assert again[6].equal(-whole[6])


def test_stages_have_as_equal_a_number_of_layers_as_can_be():
    layers = {"encoder": 3, "decoder": 4}
    found = [spans(layers, stage, 3) for stage in range(3)]
    assert [(s["encoder"][:2], s["decoder"][:2]) for s in found] == [
        ((0, 2), (0, 0)), ((2, 3), (0, 1)), ((3, 3), (1, 4)),
    ]  # fmt: skip
    assert found[1]["encoder"].ends
    assert found[1]["decoder"].begins


def test_streams_of_random_numbers_differ():
    seeds = {stream_seed(a, b, c) for a in range(3) for b in range(3) for c in range(3)}
    assert len(seeds) == 27


# --- what is refused ------------------------------------------------------------------------------


def test_what_is_left_over_are_copies():
    assert resolve(ParallelRecipe(tensor=2), 8)["data"] == 4
    assert resolve(ParallelRecipe(), 1)["data"] == 1


@pytest.mark.parametrize(
    ("asked", "world", "said"),
    [
        (
            {"shard": 2},
            1,
            r"parallel is shard 2 = 2 processes, but there is 1; start it with torchr",
        ),
        ({"data": 2, "tensor": 3}, 4, r"data 2 × tensor 3 = 6 processes, but there are 4"),
        (
            {"pipeline": 2, "shard": 2},
            4,
            r"parallel\.pipeline=2 goes with data and tensor, not wit",
        ),
        ({"pipeline": 2, "context": 2}, 4, r"set context to 1, or pipeline"),
    ],
)
def test_a_plan_that_does_not_fit_the_processes_says_what_to_do(asked, world, said):
    with pytest.raises(ConfigError, match=said):
        resolve(ParallelRecipe(**asked), world)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (Block(Attention(6, kv_heads=3), Feed(16)), r"tensor=2 must divide .*heads=6, kv_heads=3"),
        (Block(Attention(4), Feed(15)), r"parallel\.tensor=2 does not divide Feed\.width=15"),
    ],
)
def test_a_model_that_cannot_be_cut_by_heads_says_why(block, said):
    with pytest.raises(ConfigError, match=said):
        check_tensor(build(decoder_only(block), device="meta"), 2)


def test_a_model_that_cannot_be_cut_by_layers_says_why():
    with pytest.raises(
        ConfigError, match=r"parallel\.pipeline=9 is more than the model's 5 layers"
    ):
        check_pipeline(build(seq2seq(), device="meta"), 9)
    with pytest.raises(ConfigError, match="the layers of encoder share weights"):
        check_pipeline(build(KINDS["encoder narrow"], device="meta"), 2)


@pytest.mark.parametrize(
    ("sizes", "sections", "said"),
    [
        ({"shard": 2}, {"train": {"precision": "fp16"}}, "needs a scale that all ranks agree on"),
        ({"shard": 2}, {"optim": {"name": "muon"}}, r"optim\.name=muon needs whole matrices"),
        ({"tensor": 2}, {"optim": {"name": "adafactor"}}, r"parallel\.tensor leaves a part"),
        ({"pipeline": 2}, {"log": {"statistics": 5}}, r"log\.statistics=5 looks at a whole model"),
    ],
)
def test_what_needs_a_whole_model_is_refused(sizes, sections, said):
    plan = Mesh.__new__(Mesh)
    plan.sizes = {name: sizes.get(name, 1) for name in ranks.DIMS}
    with pytest.raises(ConfigError, match=said):
        plan.check(make_recipe(sections))


# --- torchrun -------------------------------------------------------------------------------------

DYING = """
import os, signal
from allformer.cli.main import main
from allformer.train.step import Stepper

plain, seen = Stepper.__call__, []

def call(self, *args):
    seen.append(1)
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if os.environ["RANK"] == "1" and first and len(seen) == 18:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, *args)

if os.environ.get("DIES"):
    Stepper.__call__ = call
main()
"""


def toy(folder: Path, **parallel: int) -> Path:
    """A recipe for a small translator and its data, without dropout."""
    words = {"one": "ek", "two": "do", "red": "lal", "man": "nar", "dog": "kut", "sees": "pas"}
    draw = np.random.default_rng(0)
    lines = [draw.choice(list(words), draw.integers(2, 6)) for _ in range(300)]
    text = "".join(f"{' '.join(x)}\t{' '.join(words[w] for w in x)}\n" for x in lines)
    (folder / "toy.tsv").write_text(text, encoding="utf-8")
    recipe = folder / "toy.yaml"
    recipe.write_text(
        f"data: {{source: en, target: xx, path: {folder}/toy.tsv, hold_out: 20}}\n"
        "tokenizer: {kind: bpe, vocab: 50}\n"
        "model: {dim: 32, heads: 2, feed: 48, layers: 2, dropout: 0.0}\n"
        "optim: {rate: 5.0e-3, eps: 1.0e-4}\nschedule: {warmup: 10}\n"
        "train: {steps: 20, batch_tokens: 100, accumulate: 2, pool: 3, validate_every: 10,\n"
        "  save_every: 4, average: 2}\nlog: {every: 4, tensorboard: false}\n"
        f"parallel: {parallel or '{}'}\n",
        encoding="utf-8",
    )
    (folder / "dying.py").write_text(DYING, encoding="utf-8")
    return recipe


def torchrun(count: int, folder: Path, *arguments: object, dies: bool = False, restarts: int = 0):
    """The train command in `count` processes; what it said."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", count]
    command += ["--master-port", 29500 + os.getpid() % 1000, "--max-restarts", restarts]
    command += [folder / "dying.py", "train", *arguments, "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DIES": "1" if dies else ""}
    done = subprocess.run(
        [str(word) for word in command], env=environment, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def figures(run: Path) -> list[tuple[int, float]]:
    return [(row["step"], row.get("nll", row.get("validation_nll"))) for row in read_metrics(run)]


@pytest.mark.slow
@pytest.mark.parametrize("plan", [{"shard": 2}, {"pipeline": 2}], ids=["shard", "pipeline"])
def test_torchrun_trains_what_one_process_trains(plan, tmp_path):
    from allformer.train.loop import train
    from allformer.train.recipe import read_recipe

    recipe = toy(tmp_path, **plan)
    status, said = torchrun(2, tmp_path, recipe, "--out", tmp_path / "two")
    assert status == 0, said
    assert said.count("done in") == 1
    assert f"2 processes ({next(iter(plan))} 2)" in said
    if "pipeline" in plan:  # its batches have a frame: others than without
        assert read_metrics(tmp_path / "two")[-1]["validation_nll"] < 2.2
        return
    asked = replace(read_recipe(recipe, ["train.accumulate=4"]), parallel=ParallelRecipe())
    train(asked, tmp_path / "one", device="cpu")
    got, want = figures(tmp_path / "two"), figures(tmp_path / "one")
    assert [step for step, _ in got] == [step for step, _ in want]
    np.testing.assert_allclose([x for _, x in got], [x for _, x in want], rtol=1e-4)


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_job_with_a_word_and_torchrun_goes_on(tmp_path):
    recipe = toy(tmp_path)
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert torchrun(2, tmp_path, recipe, "--out", straight)[0] == 0
    status, said = torchrun(2, tmp_path, recipe, "--out", killed, dies=True)
    assert status != 0
    assert "another process of this run has ended" in said
    assert f"go on with --resume {killed}" in said
    status, said = torchrun(2, tmp_path, "--resume", killed)
    assert status == 0, said
    assert figures(killed) == figures(straight)
    elastic = tmp_path / "elastic"
    status, said = torchrun(2, tmp_path, recipe, "--out", elastic, dies=True, restarts=1)
    assert status == 0, said
    assert "holds a run of this recipe: going on with it" in said
    assert figures(elastic) == figures(straight)
