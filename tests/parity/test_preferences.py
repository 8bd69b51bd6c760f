"""Losses over preferences are TRL's, and so are their gradients: fp64, loud weights, one batch."""

from __future__ import annotations

import copy
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch

from allformer.checkpoint.load import load
from allformer.data.table import Table
from allformer.data.table.column import piece
from allformer.train.objectives import find_objective
from allformer.train.preferences.said import row_logps
from allformer.train.recipe import make_recipe
from tests.loud import make_loud
from tests.parity.zoo import their_gradients, unrounded

hf = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")

PROMPTS = [[5, 6, 7], [5, 7], [30, 31, 32, 33]]
CHOSEN = [[8, 9, 2], [18, 9, 3, 40, 2], [44, 2]]
REJECTED = [[10, 11, 12, 13, 2], [10, 2], [45, 46, 2]]
MARGINS = [0.5, 0.0, 1.25]
GOOD = [True, False, True]
CONFIG = {
    "vocab_size": 60, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


class Exact(torch.nn.Module):
    """A model as TRL calls it, without its fused head, which computes in fp32."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input_ids, attention_mask, labels=None, **more):
        logits = self.inner(input_ids=input_ids, attention_mask=attention_mask).logits
        if labels is None:
            return SimpleNamespace(logits=logits)
        logp, follows = logits[:, :-1].log_softmax(-1), labels[:, 1:]
        seen = logp.gather(-1, follows.clamp_min(0)[..., None]).squeeze(-1) * (follows != -100)
        none = torch.zeros_like(seen)
        return SimpleNamespace(log_probs=seen, entropy=none, mean_logits=none, is_top1=none > 1)


@pytest.fixture(autouse=True)
def _unrounded():
    """transformers' norms and angles in fp64 too."""
    with unrounded():
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model, its reference and a reward model, as directories of transformers."""
    path = tmp_path_factory.mktemp("preferences")
    for seed, name in enumerate(("policy", "reference", "reward")):
        torch.manual_seed(seed)
        kind = hf.LlamaForSequenceClassification if name == "reward" else hf.LlamaForCausalLM
        labels = {"num_labels": 1} if name == "reward" else {}
        model = kind(hf.LlamaConfig(**CONFIG, **labels)).double()
        make_loud(model, seed)
        model.save_pretrained(path / name)
    return path


def theirs(home, name, kind=None):
    kind = kind or hf.LlamaForCausalLM
    return kind.from_pretrained(home / name, dtype=torch.float64)


def tokenizer():
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{i}": i for i in range(60)}, unk_token="w1")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return hf.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="w0", eos_token="w2")


def trainer(kind, settings, tmp_path, model, record, **asked):
    """One of TRL's, which is only asked for a loss."""
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    logging.disable(logging.WARNING)
    try:
        args = settings(output_dir=str(tmp_path), use_cpu=True, report_to=[], bf16=False, **asked)
        rows = Dataset.from_list([record, record])
        more = {} if kind is trl.RewardTrainer else {"ref_model": copy.deepcopy(model)}
        return kind(model, args=args, train_dataset=rows, processing_class=tokenizer(), **more)
    finally:
        logging.disable(logging.NOTSET)


def table(answers, values):
    """Rows of prompt and answer."""
    rows = [(p + a, [0] * len(p) + [1] * len(a)) for p, a in answers]
    columns = {
        "ids": [ids for ids, _ in rows], "learnt": [marks for _, marks in rows],
        "value": np.array(values, float), "number": np.arange(len(rows)),
    }  # fmt: skip
    return Table({name: piece(name, column).column() for name, column in columns.items()})


def pairs():
    """Each pair is two rows."""
    both = zip(PROMPTS, CHOSEN, REJECTED, strict=True)
    answers = [(prompt, answer) for prompt, *two in both for answer in two]
    return table(answers, np.repeat(MARGINS, 2))


def objective(name, options=None, **train):
    asked = {"is": name, **(options or {})}
    return find_objective(name)(make_recipe({"objective": asked, "train": train}))


def same_gradients(ours, its):
    mine = their_gradients(ours)
    wanted = {name: p.grad for name, p in its.named_parameters() if p.grad is not None}
    assert mine.keys() == wanted.keys()
    for name, grad in wanted.items():
        assert torch.allclose(mine[name], grad, rtol=1e-8, atol=1e-10), name


@pytest.mark.parametrize("kind", ["sigmoid", "sigmoid_norm", "ipo", "hinge", "robust"])
def test_dpo(kind, home, tmp_path):
    policy, reference = theirs(home, "policy"), theirs(home, "reference")
    record = {"prompt": "w5 ", "chosen": "w6", "rejected": "w7"}
    smoothing = 0.1 if kind == "robust" else 0.0
    its = trainer(
        trl.DPOTrainer, trl.DPOConfig, tmp_path, theirs(home, "policy"), record,
        loss_type=[kind], beta=0.3, label_smoothing=smoothing,
    )  # fmt: skip
    its.ref_model = Exact(reference)
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    batch = its.data_collator(
        [dict(zip(names, row, strict=True)) for row in zip(PROMPTS, CHOSEN, REJECTED, strict=True)]
    )
    wanted = its._compute_loss(Exact(policy), batch, False)
    wanted.backward()

    dpo = objective("dpo", {"loss": {"kind": kind, "beta": 0.3}}, smoothing=smoothing)
    ours = load(home / "policy", dtype=torch.float64)
    before = load(home / "reference", dtype=torch.float64)
    mine = dpo.collate(pairs(), np.arange(3))
    mine = mine._replace(reference=row_logps(before, mine.said).detach())
    loss, _ = dpo.loss(ours, mine, smoothing=smoothing)
    (loss / 3).backward()
    assert loss.item() / 3 == pytest.approx(wanted.item(), abs=1e-10)
    same_gradients(ours, policy)
    rewards = its._metrics["eval"]
    _, found = dpo.appraise(ours, mine)
    for name, key in (("margin", "margins"), ("accuracy", "accuracies"), ("chosen", "chosen")):
        assert found[name].item() / 3 == pytest.approx(rewards[f"rewards/{key}"][-1], abs=1e-6)


def test_smoothed_dpo_is_conservative_as_trls_is_of_a_sorted_pair(home, tmp_path):
    """TRL's sigmoid takes no smoothing any more; AOT does, and of one pair there is one order."""
    policy, reference = theirs(home, "policy"), theirs(home, "reference")
    record = {"prompt": "w5 ", "chosen": "w6", "rejected": "w7"}
    its = trainer(
        trl.DPOTrainer, trl.DPOConfig, tmp_path, theirs(home, "policy"), record,
        loss_type=["aot"], beta=0.3, label_smoothing=0.2,
    )  # fmt: skip
    its.ref_model = Exact(reference)
    row = {"prompt_ids": PROMPTS[0], "chosen_ids": CHOSEN[0], "rejected_ids": REJECTED[0]}
    wanted = its._compute_loss(Exact(policy), its.data_collator([row]), False)
    dpo = objective("dpo", {"loss": {"beta": 0.3}})
    mine = dpo.collate(pairs(), np.arange(1))
    before = load(home / "reference", dtype=torch.float64)
    mine = mine._replace(reference=row_logps(before, mine.said).detach())
    loss, plain = dpo.loss(load(home / "policy", dtype=torch.float64), mine, smoothing=0.2)
    assert loss.item() == pytest.approx(wanted.item(), abs=1e-10)
    assert plain.item() != pytest.approx(loss.item())


def test_simpo(home):
    from trl.experimental.cpo import CPOTrainer

    asked = SimpleNamespace(
        alpha=0.0, loss_type="simpo", simpo_gamma=0.7, beta=2.5, label_smoothing=0.0,
        accelerator=SimpleNamespace(device="cpu"),
    )  # fmt: skip
    policy = theirs(home, "policy")
    means = []
    for answers in (CHOSEN, REJECTED):
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            ids = torch.tensor([prompt + answer])
            labels = torch.tensor([[-100] * len(prompt) + answer])
            means.append(CPOTrainer.get_batch_logps(policy(ids).logits, labels, True))
    chosen, rejected = torch.cat(means).chunk(2)
    wanted = CPOTrainer.cpo_loss(asked, chosen, rejected)[0].mean()
    wanted.backward()
    dpo = objective("dpo", {"loss": {"kind": "simpo", "beta": 2.5, "gamma": 0.7}})
    ours = load(home / "policy", dtype=torch.float64)
    loss, _ = dpo.loss(ours, dpo.ready(dpo.collate(pairs(), np.arange(3))))
    (loss / 3).backward()
    assert loss.item() / 3 == pytest.approx(wanted.item(), abs=1e-10)
    same_gradients(ours, policy)


@pytest.mark.parametrize("names", [("policy", "reference"), ("reference", "policy")])
def test_kto(names, home, tmp_path):
    """One way round the divergence is above zero, the other way it is cut there."""
    policy, reference = (theirs(home, name) for name in names)
    record = {"prompt": "w5 ", "completion": "w6", "label": True}
    its = trainer(
        trl.KTOTrainer, trl.KTOConfig, tmp_path, theirs(home, "policy"), record,
        beta=0.3, desirable_weight=1.3, undesirable_weight=0.7, per_device_train_batch_size=2,
    )  # fmt: skip
    its.ref_model = Exact(reference)
    rows = [
        {"prompt_ids": p, "completion_ids": a, "KL_completion_ids": CHOSEN[i - 1], "label": good}
        for i, (p, a, good) in enumerate(zip(PROMPTS, CHOSEN, GOOD, strict=True))
    ]
    wanted = its._compute_loss(Exact(policy), its.data_collator(rows), False)
    wanted.backward()

    kto = objective("kto", {"beta": 0.3, "good": 1.3, "bad": 0.7})
    ours, before = (load(home / name, dtype=torch.float64) for name in names)
    batch = kto.collate(table(list(zip(PROMPTS, CHOSEN, strict=True)), GOOD), np.arange(3))
    own, other = (row_logps(before, said).detach() for said in (batch.said, batch.other))
    batch = batch._replace(reference=own, other_reference=other)
    loss, _ = kto.loss(ours, batch)
    (loss / 3).backward()
    assert loss.item() / 3 == pytest.approx(wanted.item(), abs=1e-10)
    same_gradients(ours, policy)
    assert kto.figures()["kl"] == pytest.approx(its._metrics["eval"]["kl"][-1], abs=1e-10)


@pytest.mark.parametrize("center", [0.0, 0.1])
def test_reward(center, home, tmp_path):
    policy = theirs(home, "reward", hf.LlamaForSequenceClassification)
    record = {"chosen": "w5 w6", "rejected": "w5 w7"}
    its = trainer(
        trl.RewardTrainer, trl.RewardConfig, tmp_path, policy, record,
        center_rewards_coefficient=center,
    )  # fmt: skip
    rows = [
        {"chosen_ids": p + a, "rejected_ids": p + b, "margin": m}
        for p, a, b, m in zip(PROMPTS, CHOSEN, REJECTED, MARGINS, strict=True)
    ]
    wanted = its.compute_loss(policy, its.data_collator(rows))
    policy.zero_grad()
    wanted.backward()
    reward = objective("reward", {"center": center})
    ours = load(home / "reward", dtype=torch.float64)
    loss, _ = reward.loss(ours, reward.collate(pairs(), np.arange(3)))
    (loss / 3).backward()
    assert loss.item() / 3 == pytest.approx(wanted.item(), abs=1e-10)
    same_gradients(ours, policy)
