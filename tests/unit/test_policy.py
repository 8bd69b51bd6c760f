"""Learning from rewards: prompts, rollouts, groups, what a run keeps, and what it refuses."""

from __future__ import annotations

import json
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

from allformer import tune
from allformer.checkpoint.weights import read_tensors
from allformer.core.model import build
from allformer.data.prompts import prompt_shape, read_prompt
from allformer.errors import ConfigError, DataError, TrainingError
from allformer.evaluate.objective import evaluate_objective, open_any, recipe_of
from allformer.text.load import load_tokenizer
from allformer.train.dry_run import dry_run
from allformer.train.first_batch import first_batch
from allformer.train.loop import train
from allformer.train.metrics import read_metrics
from allformer.train.objectives import find_objective
from allformer.train.optim import AdamW
from allformer.train.policy.advantages import group_advantages, group_spread
from allformer.train.policy.grpo import Bnpo, Dapo, DrGrpo, Grpo, GrpoTokens
from allformer.train.policy.logps import answer_logps, grid_mask
from allformer.train.policy.prompts import Prompts
from allformer.train.policy.ratio import clipped, clipped_loss, k1, k3, ratios
from allformer.train.policy.rollout import Rollout, Sampling, draw_answers, quick
from allformer.train.policy.running import Running
from allformer.train.predictions import Predictions
from allformer.train.recipe import make_recipe
from allformer.train.sections.vocabulary import Vocabulary
from allformer.train.step import Stepper, StepSettings
from allformer.train.tune_recipe import tune_recipe
from tests.chats import CHATML, CHATS, END, START, chat_tokenizer
from tests.loud import make_loud

ASKED = "What is a dog?"
USER = {"role": "user", "content": ASKED}
SAID = {"role": "assistant", "content": "An animal."}
SHAPES = {
    "a question": {"prompt": ASKED},
    "messages of TRL": {"prompt": [USER]},
    "a completion is left out": {"prompt": ASKED, "completion": "An animal."},
    "messages": {"messages": [USER]},
    "the last answer is left out": {"messages": [USER, SAID]},
    "ShareGPT": {"conversations": [{"from": "human", "value": ASKED}]},
    "Alpaca": {"instruction": ASKED, "input": ""},
    "a pair": {"prompt": ASKED, "chosen": "An animal.", "rejected": "A friend."},
    "a pair without a prompt": {"chosen": [USER, SAID], "rejected": [USER, {**SAID, "x": "?"}]},
}  # fmt: skip
QUESTIONS = [
    "What is a dog?", "Name three colours.", "Say hello.", "Count to ten.", "Who are you?",
    "Tell a story.", "请列出三种颜色。", "Add 1 and 2.",
]  # fmt: skip
PROMPTS = [{"prompt": text, "number": i} for i, text in enumerate(QUESTIONS)]


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """How many of the letters are vowels; and one that remembers what it was asked."""
    path = tmp_path_factory.mktemp("judge") / "judge.py"
    path.write_text(
        "def vowels(completions):\n"
        "    return [sum(x in 'aeiou' for x in c) / max(1, len(c)) for c in completions]\n"
        "seen = []\n"
        "def sees(completions, number, ended):\n"
        "    seen.append((list(completions), list(number), list(ended)))\n"
        "    return [float(n) for n in number]\n"
    )
    return path


def recipe(judge, options=None, name="vowels", model=None, **train_):
    settings = {"steps": 8, "batch_tokens": 256, "save_every": 4, "validate_every": 100,
                "average": 1, **train_}  # fmt: skip
    asked = {"is": "grpo", "rewards": [f"{judge}:{name}"], "prompts": 2, "group": 4,
             "sampling": {"length": 8}, "loss": {"beta": 0.0}, **(options or {})}  # fmt: skip
    sizes = {"dim": 32, "heads": 2, "feed": 64, "layers": 1, "dropout": 0.2}
    return make_recipe(
        {
            "objective": asked,
            "data": {"max_length": 64},
            **({"tokenizer": {"kind": "byte-bpe", "vocab": 320}} if model is None else {}),
            "model": sizes if model is None else {"checkpoint": str(model)},
            "optim": {"rate": 1e-2},
            "schedule": {"kind": "constant", "warmup": 1},
            "train": settings,
            "log": {"every": 2, "tensorboard": False},
        }
    )


def opened(asked, records=PROMPTS, template=CHATML, say=lambda line: None):
    """An objective that has read the records with the small tokeniser of ChatML, and its model."""
    objective = find_objective("grpo")(asked)
    objective.open((records, records[:3]))
    objective.encode(chat_tokenizer(template), say)
    torch.manual_seed(0)
    model = build(objective.config(Vocabulary.of(objective.pieces))).double()
    return objective, model


# --- prompts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_a_prompt_is_read_whatever_its_shape(shape):
    asked = read_prompt(SHAPES[shape])
    assert asked.messages == [USER]
    assert asked.question == ASKED
    assert asked.answer == ("An animal." if "An animal." in json.dumps(SHAPES[shape]) else "")
    assert prompt_shape(SHAPES[shape])


def test_a_text_goes_on_as_it_stands():
    asked = read_prompt({"text": "Once upon a time"})
    assert (asked.messages, asked.text, asked.question) == ([], *["Once upon a time"] * 2)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"story": "x"}, "no prompt in a record with story; there must be prompt, messages"),
        ({"text": " "}, "text is ' '; it must be a text that can go on"),
        ({"messages": [SAID]}, "nobody asks anything"),
        ({"prompt": 3}, "prompt is 3; it must be a list of messages"),
    ],
)
def test_a_record_without_a_prompt_is_refused(record, said):
    with pytest.raises(DataError, match=said):
        read_prompt(record)


def check_prompt_ids(judge="operator:neg"):
    """As the template asks for an answer; special tokens in what people said are text."""
    asked = [USER, *CHATS[1][2:4]]
    odd = {"prompt": f"Say {END}"}
    grpo, _ = opened(recipe_of_ids(), [{"messages": asked}, odd, {"text": "A dog"}] * 3)
    table, pieces = grpo.examples(0).table, grpo.pieces
    wanted = pieces.apply_chat_template(asked, tokenize=True, add_generation_prompt=True)
    assert table["ids"][0].tolist() == list(wanted)
    assert table["ids"][1].tolist().count(pieces.token_to_id(END)) == 1
    assert table["ids"][1].tolist().count(pieces.token_to_id(START)) == 2
    assert table["ids"][2].tolist() == pieces.encode("A dog", add_special_tokens=False)


def recipe_of_ids():
    return make_recipe({
        "objective": {"is": "grpo", "rewards": ["operator:neg"], "sampling": {"length": 8}},
        "data": {"max_length": 100}, "model": {"dim": 16, "heads": 2, "feed": 16, "layers": 1},
    })  # fmt: skip


def test_prompts_are_written_as_the_template_asks():
    check_prompt_ids()


def test_an_answer_ends_with_the_template_s_token_or_the_end_of_text():
    grpo, _ = opened(recipe_of_ids())
    ends = {grpo.pieces.token_to_id(END), grpo.pieces.special_ids["eos"]}
    assert set(grpo.ends) == ends


def test_prompts_that_leave_no_room_are_left_out_and_if_all_are_refused(judge):
    told = []
    long = {"prompt": "dog " * 60, "number": 9}
    grpo, _ = opened(recipe(judge), [*PROMPTS, long], say=told.append)
    assert len(grpo.examples(0).rows) == len(PROMPTS)
    line = next(line for line in told if line.startswith("training"))
    assert "1 longer than data.max_length=64" in line
    with pytest.raises(DataError, match=r"nothing is left .* beside objective.sampling.length=8"):
        opened(recipe(judge), [long] * 4)


# --- order ----------------------------------------------------------------------------------------


def test_a_rollout_s_prompts_come_again_while_it_serves():
    prompts = Prompts(None, np.arange(5), 0, uses=2)
    plain = [x.tolist() for x in prompts._replace(uses=1).batches(2)]
    assert plain == [[0, 1], [2, 3], [4]]
    assert [x.tolist() for x in prompts.batches(2)] == [
        [0, 1], [5, 6], [2, 3], [7, 8], [4], [9],
    ]  # fmt: skip
    # Two of them make a step; the third has no second.
    assert [x.tolist() for x in prompts.batches(2, together=2)] == [
        [0, 1], [2, 3], [5, 6], [7, 8],
    ]  # fmt: skip


def test_every_epoch_has_an_order_of_its_own(judge):
    grpo, _ = opened(recipe(judge))
    first, again, second = (grpo.examples(epoch).rows.tolist() for epoch in (0, 0, 1))
    assert first == again != second
    assert sorted(first) == sorted(second) == list(range(len(PROMPTS)))


# --- rollouts -------------------------------------------------------------------------------------


def check_draws():
    """The seed alone decides them; answers end with their end, and what is cut has none."""
    model = make_loud(opened(recipe_of_ids())[1], seed=1)
    prompts = [np.array([5, 6, 7]), np.array([9])]
    ends, hot = list(range(20)), Sampling(length=20, temperature=9.0)
    asked = {"ends": ends, "copies": 3}
    torch.manual_seed(1)
    one = draw_answers(model, prompts, hot, seed=5, **asked)
    torch.manual_seed(2)
    two = draw_answers(model, prompts, hot, seed=5, **asked)
    other = draw_answers(model, prompts, hot, seed=6, **asked)
    assert [x.tolist() for x in one.answers] == [x.tolist() for x in two.answers]
    assert [x.tolist() for x in one.answers] != [x.tolist() for x in other.answers]
    assert len(one.answers) == 6
    for answer, ended in zip(one.answers, one.ended, strict=True):
        marks = [token in ends for token in answer.tolist()]
        assert ended == marks[-1]
        assert not any(marks[:-1])
        assert ended or len(answer) == 20
    assert set(one.ended) == {True, False}
    cold = Sampling(length=6, temperature=1e-3)  # chance has no say: each as if it were alone
    both = draw_answers(model, prompts, cold, ends=[], seed=5).answers
    assert [len(answer) for answer in both] == [6, 6]  # nothing ends them
    for prompt, answer in zip(prompts, both, strict=True):
        alone = draw_answers(model, [prompt], cold, ends=[], seed=5).answers[0]
        assert alone.tolist() == answer.tolist()


def test_draws_are_decided_by_their_seed_and_cut_where_they_end():
    check_draws()


def test_adapters_are_in_the_weights_for_a_while_and_the_weights_as_before(judge):
    model = opened(recipe_of_ids())[1].eval()
    ids = torch.randint(50, (2, 6))
    base = {name: p.detach().clone() for name, p in model.named_parameters()}
    tune.apply(model, tune.Lora(rank=4), seed=1)
    for path, p in tune.adapter_state(model, "default").items():
        p.data.normal_(generator=torch.Generator().manual_seed(len(path)))
    learns = {name for name, p in model.named_parameters() if p.requires_grad}
    beside = model(input_ids=ids).logits
    with quick(model):
        inside = model(input_ids=ids).logits
        assert not any(getattr(m, "delta", None) is not None for m in model.modules())
    assert torch.allclose(inside, beside, atol=1e-10)
    now = dict(model.named_parameters())
    assert all(torch.equal(now[name], p) for name, p in base.items())
    assert {name for name, p in now.items() if p.requires_grad} == learns
    tune.remove(model)
    tune.apply(model, tune.Prefix(tokens=2), seed=1)  # no change of a matrix: it acts as it is
    with quick(model):
        assert model.generate(ids, max_new_tokens=2).shape == (2, 8)


class Nothing(NamedTuple):
    """A batch."""

    tokens: int


def check_fresh_weights():
    """After each step, and each merge, the answers are those of the weights as they are now."""
    ids = torch.arange(5, 11).view(2, 3)
    for method in (None, tune.Lora(rank=4)):
        model = make_loud(opened(recipe_of_ids())[1].float(), seed=1).eval()
        if method is not None:
            tune.apply(model, method, seed=1)
        stepper = Stepper(model, find_objective("causal-lm")(), StepSettings(AdamW(rate=1.0)))
        trained = [p for p in model.parameters() if p.requires_grad]
        stepper.plain_loss = lambda batch, p=trained: (
            sum((x * torch.randn_like(x)).sum() for x in p), torch.zeros(1)
        )  # fmt: skip
        for _ in range(3):
            with quick(model):
                drawn = model.generate(ids, max_new_tokens=6)
            plain = model.generate(ids, max_new_tokens=6, use_cache=False)  # nothing is kept
            assert drawn.tolist() == plain.tolist()
            stepper([Nothing(1)], 0.3)


def test_answers_are_those_of_the_weights_as_they_are_now():
    check_fresh_weights()


def test_the_judge_is_told_what_was_asked_of_each(judge):
    grpo, model = opened(recipe(judge, name="sees"))
    grpo.meet(model, False)
    seen = grpo.rewards.judges[0].args[0].__globals__["seen"]
    seen.clear()
    examples = grpo.examples(0)
    batch = grpo.onto(grpo.collate(examples, np.array([2, 3])), "cpu")
    rows = examples.rows[2:4].tolist()
    [(texts, numbers, ended)] = seen
    assert numbers == np.repeat(rows, 4).tolist()
    assert batch.rollout.score.tolist() == numbers
    assert batch.rollout.groups.tolist() == [0] * 4 + [1] * 4
    for (ids, learnt), text, row in zip(batch.rollout.rows, texts, np.repeat(rows, 4), strict=True):
        prompt, answer = ids[learnt == 0], ids[learnt == 1]
        assert prompt.tolist() == examples.table["ids"][row].tolist()
        assert grpo.pieces.decode(answer.tolist()) == text
    assert batch.rollout.ended.tolist() == ended


def check_logps():
    """Of each token of an answer, what the model says of it there, at the temperature."""
    _, model = opened(recipe_of_ids())
    rows = [(np.array([5, 6, 7, 8, 9]), np.array([0, 0, 1, 1, 1])),
            (np.array([5, 7, 3]), np.array([0, 0, 1]))]  # fmt: skip
    zero = torch.zeros(2, dtype=torch.float64)
    said = Rollout(rows, zero > 1, zero, zero[:, None], zero).said()
    found = answer_logps(model.eval(), said, 1.5)
    for row, (ids, learnt) in enumerate(rows):
        logp = (model(input_ids=torch.tensor(ids)[None]).logits[0] / 1.5).log_softmax(-1)
        first = int(np.argmax(learnt))
        for number, place in enumerate(range(first, len(ids))):
            here = logp[place - 1]
            assert found.logps[row, number].item() == pytest.approx(here[ids[place]].item())
            entropy = -(here.exp() * here).sum().item()
            assert found.entropy[row, number].item() == pytest.approx(entropy)
    assert found.logps[1, 1:].abs().sum() == 0
    assert grid_mask(said).tolist() == [[True] * 3, [True, False, False]]


def test_log_probabilities_are_those_of_the_tokens_that_were_drawn():
    check_logps()


def check_parts():
    rows = [(np.arange(4 + n), np.repeat([0, 1], [2, 2 + n])) for n in range(3)]
    score = torch.arange(3.0)
    grid = torch.arange(12.0).view(3, 4)
    whole = Rollout(rows, score > 0, score, torch.arange(12.0).view(3, 4), score, grid, None,
                    {"advantages": score, "values": grid + 1})  # fmt: skip
    part = whole.take([1, 0])
    assert part.score.tolist() == [1, 0]
    assert part.rewards.tolist() == [[4, 5, 6, 7], [0, 1, 2, 3]]  # as many as there are rewards
    assert part.logps.tolist() == [[4, 5, 6], [0, 1, 2]]  # as wide as the longest answer
    assert part.more["values"].tolist() == [[5, 6, 7], [1, 2, 3]]
    again = Rollout.restored(whole.state(), torch.device("cpu"))
    assert all(torch.equal(again.more[name], x) for name, x in whole.more.items())
    assert again.rows[2][0].tolist() == rows[2][0].tolist()
    assert again.reference is None


def test_a_part_of_a_rollout_keeps_what_belongs_to_its_answers():
    check_parts()


# --- losses ---------------------------------------------------------------------------------------


def check_advantages():
    scores = torch.tensor([1.0, 3.0, 7.0, 7.0], dtype=torch.float64)
    spread = math.sqrt(2) + 1e-4
    found = {scale: group_advantages(scores, 2, scale).tolist() for scale in ("group", "none")}
    assert found["none"] == [-1, 1, 0, 0]
    assert found["group"] == pytest.approx([-1 / spread, 1 / spread, 0, 0])
    every = scores.std().item() + 1e-4
    assert group_advantages(scores, 2, "batch").tolist() == pytest.approx(
        [-1 / every, 1 / every, 0, 0]
    )
    assert group_spread(scores, 2).item() == pytest.approx(math.sqrt(2) / 2)


def test_an_answer_is_compared_with_those_to_the_same_prompt():
    check_advantages()


def check_grpo():
    """By hand: two answers of two and one tokens, one ratio beyond either bound."""
    logps = torch.tensor([[0.5, -0.5], [-1.0, 0.0]], dtype=torch.float64).log_softmax(1)
    mask = torch.tensor([[True, True], [True, False]])
    old = logps - torch.tensor([[0.3, 0.0], [-0.4, 0.0]], dtype=torch.float64)
    above = torch.tensor([1.0, -2.0], dtype=torch.float64)
    ratio = [math.exp(0.3), 1.0, math.exp(-0.4)]
    # r A above its bound counts as the bound; below it, of a bad answer, too.
    each = [-min(ratio[0], 1.25), -1.0, 2 * max(ratio[2], 0.8)]
    asked = {"beta": 0.0, "clip_low": 0.2, "clip_high": 0.25}
    tokens = GrpoTokens(logps, old, None, above, mask)
    wanted = {
        Grpo: (each[0] + each[1]) / 2 + each[2], Dapo: sum(each), DrGrpo: sum(each) / 5,
        Bnpo: sum(each) / 3,
    }  # fmt: skip
    for kind, total in wanted.items():
        loss = kind(**asked)
        found, figures = loss.each(tokens)
        assert loss.summed(found, mask, 5).item() == pytest.approx(total)
        assert figures["clipped"].item() == pytest.approx(2 / 3)
    assert [kind(**asked).count(2, 3) for kind in wanted] == [2, 3, 2, 1]
    apart = torch.tensor([[0.1, -0.2], [0.3, 0.0]], dtype=torch.float64)
    found, figures = Dapo(**{**asked, "beta": 0.5, "unbiased": False}).each(
        tokens._replace(reference=logps + apart)
    )
    price = [math.exp(x) - x - 1 for x in (0.1, -0.2, 0.3)]
    assert found.sum().item() == pytest.approx(sum(each) + 0.5 * sum(price))
    assert figures["kl"].item() == pytest.approx(sum(price) / 3)
    found, _ = Dapo(**{**asked, "beta": 0.5}).each(tokens._replace(reference=logps + apart))
    weighted = [r * p for r, p in zip(ratio, price, strict=True)]
    assert found.sum().item() == pytest.approx(sum(each) + 0.5 * sum(weighted))


def test_losses_of_groups_by_hand():
    check_grpo()


def check_clipped():
    logps = torch.tensor([[0.5], [0.5], [-0.5], [-0.5]], requires_grad=True)
    above = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
    ratio = ratios(logps, torch.zeros(4, 1), torch.ones(4, 1))
    clipped_loss(ratio, above, 0.2, 0.2).sum().backward()
    held = clipped(ratio, above, 0.2, 0.2)
    assert held.flatten().tolist() == [True, False, False, True]
    assert (logps.grad == 0).tolist() == held.tolist()
    whole = ratios(torch.tensor([[0.2, 0.4, 9.0]]), torch.zeros(1, 3), torch.tensor([[1, 1, 0]]),
                   "sequence")  # fmt: skip
    assert whole.item() == pytest.approx(math.exp(0.3))


def test_a_clipped_ratio_teaches_nothing_and_one_of_a_sequence_is_a_mean():
    check_clipped()


def test_estimates_of_the_divergence_have_it_as_their_mean():
    p, q = torch.tensor([0.6, 0.3, 0.1]).double(), torch.tensor([0.2, 0.5, 0.3]).double()
    wanted = (p * (p / q).log()).sum()
    for estimate in (k1, k3):
        assert (p * estimate(p.log(), q.log())).sum().item() == pytest.approx(wanted.item())
    assert (k3(p.log(), q.log()) >= 0).all()


# --- runs -----------------------------------------------------------------------------------------


def test_the_reward_rises_and_all_is_logged(judge, tmp_path):
    asked = recipe(judge, {"prompts": 4, "validate": 2}, steps=24)
    result = train(asked, tmp_path / "run", device="cpu", corpus=(PROMPTS, PROMPTS[:3]))
    rows = [row for row in result.rows if "loss" in row]
    assert rows[-1]["reward"] > rows[0]["reward"] + 0.15
    assert {"reward", "reward_std", "length", "cut", "clipped", "entropy"} <= rows[0].keys()
    assert rows[-1]["nll"] == pytest.approx(-rows[-1]["reward"], abs=1e-3)
    held = [row for row in result.rows if "validation_reward" in row]
    assert held[0]["step"] == 0
    assert held[-1]["validation_reward"] > held[0]["validation_reward"]
    assert held[-1]["validation_nll"] == pytest.approx(-held[-1]["validation_reward"])
    shown = Predictions.load(tmp_path / "run").rows
    assert len(shown) == 3
    assert all(row.before is not None for row in shown)
    before, after = shown[0].rewards
    assert after > before


def test_a_resumed_run_goes_on_to_the_last_bit(judge, tmp_path):
    """Stopped after step 6: with four steps to a rollout, in the midst of the second."""
    options = {"iterations": 2, "minibatches": 2}
    asked = {"steps": 8, "save_every": 6, "accumulate": 2}
    corpus = (PROMPTS, PROMPTS[:3])
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(recipe(judge, options, **asked), whole, device="cpu", corpus=corpus)
    train(recipe(judge, options, **{**asked, "steps": 6}), parts, device="cpu", corpus=corpus)
    train(None, parts, device="cpu", resume=True, overrides=["train.steps=8"], corpus=corpus)
    one, two = (read_tensors(run / "model.safetensors") for run in (whole, parts))
    assert all(torch.equal(one[name], x) for name, x in two.items())
    last = [[row for row in read_metrics(run) if "loss" in row][-1] for run in (whole, parts)]
    assert last[0]["reward"] == last[1]["reward"]
    assert last[0]["entropy"] == last[1]["entropy"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model to tune."""
    path = tmp_path_factory.mktemp("base") / "run"
    chats = [{"prompt": text, "completion": "A dog."} for text in QUESTIONS]
    sizes = {"dim": 32, "heads": 2, "feed": 64, "layers": 1, "dropout": 0.0}
    train(
        make_recipe({
            "objective": "instruction", "model": sizes, "data": {"max_length": 96},
            "tokenizer": {"kind": "byte-bpe", "vocab": 320},
            "train": {"steps": 2, "batch_tokens": 512, "average": 1},
        }),
        path, device="cpu", corpus=(chats, chats),
    )  # fmt: skip
    return path


@pytest.mark.parametrize("method", ["lora", pytest.param("full", marks=pytest.mark.slow)])
def test_a_tuned_model_pays_for_its_divergence_from_where_it_began(method, base, judge, tmp_path):
    data = tmp_path / "prompts.jsonl"
    data.write_text("\n".join(map(json.dumps, PROMPTS)))
    asked = tune_recipe(
        str(base), str(data), task="grpo", method=method, rewards=[f"{judge}:vowels"],
        rate=3e-2 if method == "lora" else 3e-3,
        overrides=["objective.prompts=4", "objective.sampling.length=8", "train.epochs=2",
                   "data.hold_out=2", "train.validate_every=2", "log.every=1",
                   "log.tensorboard=false"],
    )  # fmt: skip
    assert asked.train.best == "reward"
    assert asked.options.sampling == Sampling(length=8)
    run = tmp_path / "run"
    rows = train(asked, run, device="cpu").rows
    held = [row for row in rows if "validation_kl" in row]
    assert held[0]["validation_kl"] == pytest.approx(0, abs=1e-6)
    assert max(row["validation_kl"] for row in held) > 1e-5
    trained = [row for row in rows if "kl" in row]
    assert trained[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert trained[-1]["kl"] > 0
    assert (run / "adapter_config.json").exists() == (method == "lora")
    scores = evaluate_objective(open_any(str(run), device="cpu"), recipe_of(run))
    assert scores["reward"] == pytest.approx(held[-1]["validation_reward"], abs=1e-5)


def test_a_plan_and_a_batch_are_shown_without_training(base, judge):
    asked = recipe(judge, {"prompts": 4}, model=base)
    rows = first_batch(asked, corpus=(PROMPTS, PROMPTS[:2]), say=lambda line: None)
    assert len(rows) == 4
    assert not any(any(row.learnt) for row in rows)
    plan = dry_run(asked, device="cpu", corpus=(PROMPTS, PROMPTS[:2]))
    assert plan.steps_per_epoch == 2
    assert plan.tokens_per_step > 0


# --- what cannot work -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group": 1}, r"objective.group=1 must be at least 2"),
        ({"rewards": []}, r"objective.rewards is empty: nothing says which answer is good"),
        ({"loss": {"kind": "gppo"}}, r"objective.loss.kind='gppo' is not a choice"),
        ({"sampling": {"length": 0}}, r"objective.sampling.length=0 must be at least 1"),
        ({"scale": "all"}, r"objective.scale='all' is not a choice; try group, batch, none"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_training(options, said, judge):
    with pytest.raises(ConfigError, match=said):
        opened(recipe(judge, options))


def test_what_the_model_has_no_room_for_is_refused(base, judge):
    own = Vocabulary.of(load_tokenizer(base))
    grpo = find_objective("grpo")(recipe(judge, {"sampling": {"length": 95}}, model=base))
    with pytest.raises(ConfigError, match=r"length=95 leaves no room .* has 96 positions; try 48"):
        grpo.config(own)
    grpo = find_objective("grpo")(recipe(judge, {"sampling": {"length": 60}}, model=base))
    grpo.config(own)
    assert grpo.recipe.data.max_length == 36  # what is left of 96


def test_a_judge_that_fails_stops_the_run_and_says_so(judge, tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("def nan(completions): return [float('nan')] * len(completions)\n")
    with pytest.raises(TrainingError, match=r"bad.py:nan' gave nan for answer 0"):
        train(recipe(bad, name="nan"), tmp_path / "run", device="cpu", corpus=(PROMPTS, PROMPTS))


def test_a_reward_for_a_task_that_has_none_is_refused(judge):
    with pytest.raises(ConfigError, match=r"--reward is for --task grpo.*: sft learns from its"):
        tune_recipe("m", "a.jsonl", task="sft", rewards=[f"{judge}:vowels"])


def test_more_minibatches_than_answers_are_refused(judge):
    grpo, model = opened(recipe(judge, {"minibatches": 9}))
    grpo.meet(model, False)
    with pytest.raises(ConfigError, match=r"objective.minibatches=9 are more than the 8 answers"):
        grpo.onto(grpo.collate(grpo.examples(0), np.array([0, 1])), "cpu")


def test_figures_are_means_since_the_last_report():
    running = Running()
    running.add(reward=torch.tensor(1.0), kl=torch.tensor(4.0))
    running.add(reward=torch.tensor(2.0))
    other = Running()
    other.restore(running.state())
    assert running.read() == other.read() == {"reward": 1.5, "kl": 4.0}
    running.add(reward=torch.tensor(5.0))
    assert running.read() == {"reward": 5.0, "kl": 4.0}  # the last that is known
