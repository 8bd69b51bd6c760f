"""Preferences: records of every shape, what of a conversation is compared, references, runs."""

from __future__ import annotations

import gzip
import json
import math

import numpy as np
import pytest
import torch

from allformer import tune
from allformer.checkpoint.load import load
from allformer.checkpoint.weights import read_tensors
from allformer.config import ClassHead
from allformer.core.model import build
from allformer.data.preferences import read_pair, read_verdicts
from allformer.errors import ConfigError, DataError
from allformer.evaluate.objective import evaluate_objective, open_any, recipe_of
from allformer.explain.curves import about_loss, loss_unit
from allformer.text.load import load_tokenizer
from allformer.train.dry_run import dry_run
from allformer.train.first_batch import first_batch
from allformer.train.loop import train
from allformer.train.objectives import find_objective
from allformer.train.predictions import Predictions
from allformer.train.preferences import said as said_room
from allformer.train.preferences.losses import Hinge, Ipo, Robust, Scores, Sigmoid, SimPo
from allformer.train.preferences.said import lay_said, row_logps
from allformer.train.preferences.score import score_chats
from allformer.train.recipe import make_recipe, read_recipe
from allformer.train.sections.vocabulary import Vocabulary
from tests.chats import CHATML, CHATS, FORGETS, GENERATION, answers_by_hand, chat_tokenizer

ASKED, YES, NO = "What is a dog?", "An animal that barks.", "A friend."
USER = {"role": "user", "content": ASKED}


def answer(text):
    return {"role": "assistant", "content": text}


PAIR = {"messages": [USER], "chosen": answer(YES), "rejected": answer(NO)}
LONG = {"messages": CHATS[1][:6], "chosen": answer("再见 🙂"), "rejected": answer("谢谢！")}
HUMAN, GPT = {"from": "human", "value": ASKED}, {"from": "gpt", "value": YES}
PAIRS = {
    "texts": {"prompt": ASKED, "chosen": YES, "rejected": NO},
    "messages of TRL": {"prompt": [USER], "chosen": [answer(YES)], "rejected": [answer(NO)]},
    "whole conversations": {"chosen": [USER, answer(YES)], "rejected": [USER, answer(NO)]},
    "ShareGPT": {
        "conversations": [HUMAN], "chosen": GPT, "rejected": {"from": "gpt", "value": NO}
    },
    "messages": PAIR,
    "Alpaca": {"instruction": ASKED, "input": "", "chosen": YES, "rejected": NO},
}  # fmt: skip
VERDICTS = {
    "messages": {"messages": [USER, answer(YES)], "label": True},
    "TRL": {"prompt": ASKED, "completion": YES, "label": True},
    "ShareGPT": {"conversations": [HUMAN, GPT], "kto_tag": 1},
    "Alpaca": {"instruction": ASKED, "output": YES, "label": "true"},
}


# --- records --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", PAIRS)
def test_a_pair_is_read_whatever_its_shape(shape):
    pair = read_pair(PAIRS[shape])
    assert pair.chosen.messages == [USER, answer(YES)]
    assert pair.rejected.messages == [USER, answer(NO)]
    assert (pair.shared, pair.margin) == (1, 0.0)


def test_system_margin_and_earlier_answers_are_read():
    pair = read_pair({**LONG, "margin": 2, "system": "not this one, there is one already"})
    assert pair.shared == 6
    assert pair.margin == 2.0
    asked = read_pair({**PAIRS["texts"], "system": "Be brief."}).chosen.messages
    assert [m["role"] for m in asked] == ["system", "user", "assistant"]


@pytest.mark.parametrize("shape", VERDICTS)
def test_a_verdict_is_read_whatever_its_shape(shape):
    [verdict] = read_verdicts(VERDICTS[shape])
    assert verdict.conversation.messages == [USER, answer(YES)]
    assert (verdict.shared, verdict.good) == (1, True)


def test_a_pair_is_two_verdicts():
    good, bad = read_verdicts(PAIR)
    assert (good.good, bad.good) == (True, False)
    assert bad.conversation.messages[-1] == answer(NO)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"prompt": ASKED, "chosen": YES}, "rejected is missing"),
        ({"chosen": YES, "rejected": NO}, "nobody can tell where the answer begins; give prompt"),
        ({**PAIR, "chosen": 3}, "chosen is 3; it must be a text, a message or a list"),
        ({**PAIR, "chosen": USER}, "chosen has no answer"),
        ({**PAIR, "margin": "much"}, "margin is 'much'; it must be a number"),
        (
            {"chosen": [USER, answer(YES)], "rejected": [answer(NO), USER]},
            "chosen and rejected begin with different messages|rejected has no answer",
        ),
    ],
)
def test_a_record_that_is_no_pair_is_refused(record, said):
    with pytest.raises(DataError, match=said):
        read_pair(record)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"messages": [USER, answer(YES)]}, "there is no label"),
        ({**VERDICTS["messages"], "label": "good"}, "label is 'good'; .* true, false"),
        ({"messages": [USER], "label": True}, "no answer .* to judge"),
    ],
)
def test_a_record_without_a_verdict_is_refused(record, said):
    with pytest.raises(DataError, match=said):
        read_verdicts(record)


# --- rows -----------------------------------------------------------------------------------------


def recipe(name="dpo", options=None, data=None, **train_):
    settings = {"steps": 20, "batch_tokens": 256, "save_every": 10, "validate_every": 20,
                "average": 1, **train_}  # fmt: skip
    return make_recipe(
        {
            "objective": {"is": name, **(options or {})},
            "data": {"max_length": 128, **(data or {})},
            "tokenizer": {"kind": "byte-bpe", "vocab": 320},
            "model": {"dim": 32, "heads": 2, "feed": 64, "layers": 1, "dropout": 0.2},
            "optim": {"rate": 3e-3},
            "schedule": {"kind": "constant", "warmup": 5},
            "train": settings,
            "log": {"every": 5, "tensorboard": False},
        }
    )


def opened(name, records, template=CHATML, say=lambda line: None, **asked):
    """An objective that has read the records with the small tokeniser of ChatML."""
    objective = find_objective(name)(recipe(name, **asked))
    objective.open((records, records))
    objective.encode(chat_tokenizer(template), say)
    return objective


def model_of(objective, seed=0):
    torch.manual_seed(seed)
    return build(objective.config(Vocabulary.of(objective.pieces))).double()


def check_rows(templates=(CHATML, GENERATION, FORGETS)):
    """Token by token: of each conversation its last answer, with the token that ends it."""
    for template in templates:
        objective = opened("dpo", [PAIR, LONG], template)
        table, tokenizer = objective.examples(0), objective.pieces
        assert len(table) == 4
        for row, record in enumerate((PAIR, PAIR, LONG, LONG)):
            ids, learnt = table["ids"][row].tolist(), table["learnt"][row].tolist()
            chat = [*record["messages"], record[("chosen", "rejected")[row % 2]]]
            assert ids == tokenizer.apply_chat_template(chat, tokenize=True)[: len(ids)]
            marked = answers_by_hand(tokenizer, ids)
            first = len(marked) - marked[::-1].index(False)  # behind the last that is no answer
            if template == FORGETS:  # thoughts that nobody wrote stand before it
                text = tokenizer.decode([i for i, is_so in zip(ids, learnt, strict=True) if is_so])
                assert text.endswith(chat[-1]["content"])
                assert sum(learnt) <= len(ids) - first
            else:
                assert learnt == [0] * first + [1] * (len(ids) - first)


def test_of_a_conversation_its_last_answer_is_compared():
    check_rows()


def test_what_cannot_be_compared_is_left_out_and_said():
    told = []
    blank = {**PAIR, "chosen": answer(" ")}
    same = {**PAIR, "chosen": answer(NO)}
    long = {**PAIR, "rejected": answer("dog " * 200)}
    objective = opened(
        "dpo", [PAIR, blank, same, long, {"prompt": 1}], say=told.append, data={"skip_bad": True}
    )
    assert len(objective.examples(0)) == 2
    line = next(line for line in told if line.startswith("training"))
    for part in (
        "1 pairs", "1 without a word in an answer", "1 whose answers are the same", "1 broken",
        "1 longer than data.max_length=128",
    ):  # fmt: skip
        assert part in line
    with pytest.raises(DataError, match="nothing is left of the training data"):
        opened("dpo", [long])
    cut = opened("dpo", [long], data={"truncate": True}).examples(0)
    assert cut["ids"].lengths.max() == 128


def test_a_broken_record_is_told_with_its_place(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(PAIR) + "\n" + json.dumps({"prompt": "?", "chosen": "!"}) + "\n")
    asked = recipe(data={"path": str(path), "validation": str(path)})
    with pytest.raises(DataError, match=r"pairs\.jsonl.* 2.*rejected is missing"):
        first_batch(asked, say=lambda line: None)


# --- likelihoods ----------------------------------------------------------------------------------


def check_logps():
    """Summed log-probabilities of answers are those of each conversation alone, said slowly."""
    objective = opened("dpo", [PAIR, LONG])
    model, table = model_of(objective).eval(), objective.examples(0)
    batch = objective.collate(table, np.array([1, 0]))
    found = row_logps(model, batch.said)
    for row, number in enumerate((2, 0, 3, 1)):  # chosen, chosen, rejected, rejected
        ids, learnt = table["ids"][number].tolist(), table["learnt"][number]
        logp = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        slow = sum(logp[i - 1, ids[i]] for i in range(1, len(ids)) if learnt[i])
        torch.testing.assert_close(found[row], slow, rtol=1e-10, atol=1e-10)
    assert batch.said.counts.tolist() == [int(table["learnt"][i].sum()) for i in (2, 0, 3, 1)]
    assert batch.counts == (2,)


def test_the_likelihood_of_an_answer_is_that_of_its_tokens():
    check_logps()


def test_logits_in_chunks_change_neither_likelihoods_nor_gradients(monkeypatch):
    objective = opened("dpo", [PAIR, LONG])
    model, table = model_of(objective), objective.examples(0)
    said, found = objective.collate(table, np.arange(2)).said, []
    for numbers in (1 << 26, 1000):
        monkeypatch.setattr(said_room, "_NUMBERS", numbers)
        model.zero_grad()
        logps = row_logps(model.eval(), said)
        logps.square().sum().backward()
        found.append([logps.detach(), *(p.grad.clone() for p in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def check_losses():
    """By hand: log-ratios of 1 and −1 nats, over 2 tokens and 4."""
    zero, sigmoid = torch.zeros(1, 2), lambda x: -math.log(1 / (1 + math.exp(-x)))
    scores = Scores(torch.tensor([[1.0, -1.0]]), zero, torch.tensor([[2, 4]]))
    for loss, wanted in (
        (Sigmoid(beta=0.5), sigmoid(0.5 * 2)),
        (Ipo(beta=0.5), (0.5 + 0.25 - 1) ** 2),
        (Hinge(beta=0.25), 0.5),
        (SimPo(beta=2.0, gamma=0.5), sigmoid(2 * (0.5 + 0.25) - 0.5)),
    ):
        assert loss.each(scores).item() == pytest.approx(wanted, abs=1e-6), loss
    right, wrong = sigmoid(0.2), sigmoid(-0.2)
    smooth = Sigmoid(beta=0.1).each(scores, 0.1).item()
    assert smooth == pytest.approx(0.9 * right + 0.1 * wrong, abs=1e-6)
    robust = Robust(beta=0.1).each(scores, 0.1).item()
    assert robust == pytest.approx((0.9 * right - 0.1 * wrong) / 0.8, abs=1e-6)


def test_losses_are_their_formulas():
    check_losses()


# --- references -----------------------------------------------------------------------------------


def test_before_the_first_step_a_model_is_its_own_reference():
    objective = opened("dpo", [PAIR, LONG])
    model = model_of(objective).train()
    objective.meet(model, False)
    assert not model.training  # dropout would tell two answers apart by chance
    batch = objective.onto(objective.collate(objective.examples(0), np.arange(2)), "cpu")
    nll, found = objective.appraise(model, batch)
    assert nll.item() == pytest.approx(2 * math.log(2), abs=1e-12)
    assert found["accuracy"].item() == 1.0  # two ties
    objective.at(1)
    known = objective.onto(batch._replace(reference=None), "cpu").reference
    torch.testing.assert_close(known, batch.reference, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        next(model.parameters()).mul_(1.5)
    assert torch.equal(objective.onto(batch._replace(reference=None), "cpu").reference, known)
    assert objective.appraise(model, batch)[0].item() != pytest.approx(2 * math.log(2))


def check_base():
    """The reference of a model with adapters is the model without them, whatever they learnt."""
    for name in ("dpo", "kto"):
        objective = opened(name, [PAIR, LONG])
        model = model_of(objective)
        batch = objective.collate(objective.examples(0), np.arange(2))
        wanted = row_logps(model.eval(), batch.said).detach()
        tune.apply(model, tune.Lora(rank=2), seed=1)
        with torch.no_grad():
            for parameter in (p for p in model.parameters() if p.requires_grad):
                parameter.add_(0.3)
        objective.meet(model, False)
        found = objective.onto(batch, "cpu").reference
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
        acting = row_logps(model, batch.said)
        assert not torch.allclose(acting, wanted)
        assert acting.requires_grad


def test_the_reference_of_an_adapter_is_the_base():
    check_base()


def check_divergence():
    """KL(π ‖ π_ref), token by token and said slowly."""
    objective = opened("dpo", [PAIR, LONG])
    model = model_of(objective)
    tune.apply(model, tune.Lora(rank=2), seed=1)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.add_(0.2)
    objective.meet(model, False)
    batch = objective.onto(objective.collate(objective.examples(0), np.arange(1)), "cpu")
    with torch.no_grad():
        found = objective.appraise(model, batch)[1]["kl"].item()
        slow, table = [], objective.examples(0)
        for row in (0, 1):
            ids, learnt = torch.tensor([table["ids"][row].tolist()]), table["learnt"][row]
            places = np.flatnonzero(learnt) - 1
            own = model(input_ids=ids).logits[0, places].log_softmax(-1)
            with tune.using(model, None):
                other = model(input_ids=ids).logits[0, places].log_softmax(-1)
            slow.append((own.exp() * (own - other)).sum(-1).mean().item())
    assert found == pytest.approx(sum(slow) / 2, abs=1e-10)
    assert found > 1e-4


def test_the_divergence_from_the_base_is_measured():
    check_divergence()


def test_a_reference_that_cannot_be_had_is_refused():
    base = opened("dpo", [PAIR], options={"reference": "base"})
    base.meet(model_of(base), False)
    with pytest.raises(ConfigError, match=r"objective\.reference=base: there is no adapter"):
        base.at(1)
    start = opened("kto", [PAIR], options={"reference": "start"})
    with pytest.raises(ConfigError, match=r"objective\.reference=start: model has no checkpoint"):
        start.meet(model_of(start), False)


@pytest.mark.parametrize(
    ("name", "options", "asked", "said"),
    [
        ("dpo", {"loss": {"kind": "ipo"}}, {"smoothing": 0.1}, "kind=ipo does not know it"),
        ("dpo", {"loss": {"kind": "robust"}}, {"smoothing": 0.5}, "below 0.5 for .*robust"),
        ("dpo", {}, {"z_loss": 0.1}, "train.z_loss=0.1"),
        ("kto", {}, {"smoothing": 0.1}, "objective='kto' does not know it"),
        ("reward", {}, {"smoothing": 0.1}, "objective='reward' does not know it"),
    ],
)
def test_settings_that_would_change_nothing_are_refused(name, options, asked, said):
    objective = opened(name, [PAIR], options=options, **asked)
    with pytest.raises(ConfigError, match=said):
        objective.config(Vocabulary.of(objective.pieces))


def test_a_loss_is_chosen_by_its_name():
    assert recipe(options={"loss": {"kind": "simpo", "gamma": 0.3}}).options.loss == SimPo(
        gamma=0.3
    )
    with pytest.raises(ConfigError, match=r"loss\.gamma belongs to simpo, not to ipo"):
        recipe(options={"loss": {"kind": "ipo", "gamma": 0.3}})


# --- verdicts -------------------------------------------------------------------------------------


def check_verdicts():
    """z is that of each question with the answer before it, or zero; losses by hand."""
    objective = opened("kto", [PAIR, LONG], options={"good": 2.0, "bad": 0.5})
    table, index = objective.examples(0), np.array([3, 0, 2])
    assert np.asarray(table["value"]).tolist() == [1, 0, 1, 0]
    rows = [(table["ids"][i], table["learnt"][i]) for i in index]
    begins = [int(np.argmax(learnt)) for _, learnt in rows]
    other = [
        tuple(
            np.concatenate([a[: begins[i]], b[begins[i - 1] :]])
            for a, b in zip(rows[i], rows[i - 1], strict=True)
        )
        for i in range(3)
    ]
    divergences = []
    for seed in (0, 1):
        model, before = (model_of(objective, seed=s).eval() for s in (seed, 1 - seed))
        objective.policy, objective.copy = model, before
        batch = objective.onto(objective.collate(table, index), "cpu")
        with torch.no_grad():
            loss, _ = objective.loss(model, batch)
            ratios, away = (
                row_logps(model, lay_said(x)) - row_logps(before, lay_said(x))
                for x in (rows, other)
            )
        z = max(0.0, away.mean().item())
        divergences.append(z)
        assert objective.figures()["kl"] == pytest.approx(z, abs=1e-10)
        bad, *good = ratios.tolist()
        wanted = 0.5 * (1 - 1 / (1 + math.exp(-0.1 * (z - bad))))
        wanted += sum(2.0 * (1 - 1 / (1 + math.exp(-0.1 * (r - z)))) for r in good)
        assert loss.item() == pytest.approx(wanted, abs=1e-10)
    assert min(divergences) == 0.0 < max(divergences)


def test_verdicts_are_weighed_against_the_divergence():
    check_verdicts()


# --- runs -----------------------------------------------------------------------------------------

WORDS = ["red", "green", "blue", "white", "black"]


def opinions(count=30):
    """The better answer is the one in capitals."""
    return [
        {
            "prompt": f"{i}: after {WORDS[i % 5]}?",
            "chosen": WORDS[(i + 1) % 5].upper(),
            "rejected": WORDS[(i + 1) % 5],
        }
        for i in range(count)
    ]


def test_dpo_learns_what_is_preferred_and_resumes_exactly(tmp_path):
    data = (opinions(), opinions(40)[30:])
    whole, half = tmp_path / "whole", tmp_path / "half"
    result = train(recipe(), whole, device="cpu", corpus=data)
    first, last = (row for row in result.rows if "validation_accuracy" in row and (
        row["step"] == 0 or "averaged" in row))  # fmt: skip
    assert first["validation_nll"] == pytest.approx(math.log(2), abs=1e-6)
    assert first["validation_accuracy"] == pytest.approx(0.5, abs=0.3)
    assert last["validation_accuracy"] == 1.0
    assert last["validation_margin"] > 0.3
    assert "validation_perplexity" not in last
    assert any("preference_accuracy" in row for row in result.rows)
    train(recipe(steps=10), half, device="cpu", corpus=data)
    train(None, half, resume=True, overrides=["train.steps=20"], corpus=data, device="cpu")
    one, other = (read_tensors(path / "model.safetensors") for path in (whole, half))
    assert all(torch.equal(one[name], other[name]) for name in one)
    shown = Predictions.load(whole)
    assert shown.rows[0].before is not None
    assert shown.rows[0].wanted.isupper()
    assert load_tokenizer(whole).settings.chat_template
    about, unit = (
        about_loss(result.rows, load(whole).config),
        loss_unit(load(whole).config, result.rows),
    )
    assert "per token" not in about[0]
    assert "dropout" not in about[0]
    assert unit == "chart.plain"


def test_simpo_learns_without_a_reference(tmp_path):
    result = train(
        recipe(options={"loss": {"kind": "simpo"}}),
        tmp_path / "run",
        device="cpu",
        corpus=(opinions(), opinions(6)),
    )
    assert result.rows[-1]["validation_accuracy"] == 1.0
    assert result.rows[-1]["validation_likelier"] == 1.0


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A checkpoint to tune, and a file of pairs."""
    home = tmp_path_factory.mktemp("base")
    train(recipe(steps=2), home / "run", device="cpu", corpus=(opinions(10), opinions(4)))
    (home / "pairs.jsonl").write_text("\n".join(map(json.dumps, opinions(36))) + "\n")
    return home


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_a_checkpoint_is_tuned_and_looked_at_afterwards(name, base, tmp_path):
    asked = recipe(name, data={"path": str(base / "pairs.jsonl"), "hold_out": 6}).plain()
    asked["model"] = {"checkpoint": str(base / "run")}
    del asked["tokenizer"]
    last = train(make_recipe(asked), tmp_path / "run", device="cpu").rows[-1]
    assert last["validation_accuracy"] > 0.7
    assert last["validation_margin"] > 0.1
    assert last["validation_margin"] == pytest.approx(
        last["validation_chosen"] - last["validation_rejected"]
    )
    found = evaluate_objective(
        open_any(str(tmp_path / "run"), "cpu"), recipe_of(tmp_path / "run"), say=lambda line: None
    )  # the reference is read from the checkpoint again
    for figure in ("nll", "accuracy", "margin"):
        assert found[figure] == pytest.approx(last[f"validation_{figure}"], abs=1e-4)


def test_a_reward_model_scores_the_better_answer_higher(tmp_path):
    data = [{**pair, "margin": 0.5} for pair in opinions()]
    run = tmp_path / "run"
    result = train(recipe("reward"), run, device="cpu", corpus=(data, opinions(40)[30:]))
    assert result.rows[-1]["validation_accuracy"] == 1.0
    model, tokenizer = load(run), load_tokenizer(run)
    assert model.config.head == ClassHead(("reward",), at="last", dropout=0.0, bias=False,
                                          problem="regression")  # fmt: skip
    chats = [[{"role": "user", "content": "3: after black?"}, answer(x)] for x in ("RED", "red")]
    scores = score_chats(model, tokenizer, chats).tolist()
    for chat, score in zip(chats, scores, strict=True):
        ids = tokenizer.apply_chat_template(chat, tokenize=True)
        end = len(ids) - ids[::-1].index(tokenizer.eos_id)
        said = model(input_ids=torch.tensor([ids[:end]])).logits.item()
        assert score == pytest.approx(said, abs=1e-5)
    assert scores[0] > scores[1]
    shown = Predictions.load(run)
    assert all(row.right for row in shown.rows)
    assert shown.rows[0].given.isupper()


@pytest.mark.parametrize("name", ["dpo", "kto", "reward"])
def test_a_first_batch_is_shown(name, tmp_path):
    path = tmp_path / "pairs.json.gz"
    path.write_bytes(gzip.compress(json.dumps(opinions(20)).encode()))
    asked = recipe(name, data={"path": str(path), "hold_out": 3})
    rows = first_batch(asked, say=lambda line: None)
    for row in rows:
        (before, no), (said, yes) = row.parts
        assert (no, yes) == (False, True)
        assert before.endswith("?\n\n### Assistant:\n")
        assert said.removesuffix("</s>").lower() in WORDS
    if name != "kto":  # the better answer, then the other one
        for chosen, rejected in zip(rows[::2], rows[1::2], strict=True):
            assert chosen.parts[0] == rejected.parts[0]
            assert chosen.parts[1][0].lower() == rejected.parts[1][0]
            assert chosen.parts[1][0] != rejected.parts[1][0]


def test_a_dry_run_asks_the_reference_of_its_batches_alone():
    objective = find_objective("dpo")
    called = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objective, "_all", lambda self: called.append(self))
        plan = dry_run(recipe(), device="cpu", corpus=(opinions(), opinions(4)))
    assert plan.seconds_per_step > 0
    assert not called


@pytest.mark.parametrize("name", ["dpo", "kto", "reward"])
def test_a_recipe_is_read_back_as_it_was(name, tmp_path):
    asked = recipe(name)
    path = tmp_path / "recipe.yaml"
    path.write_text(asked.to_yaml(), encoding="utf-8")
    assert read_recipe(path) == asked
