"""GRPO's losses are TRL's, and so are their gradients: fp64, loud weights, the same rollouts."""

from __future__ import annotations

import copy
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from allformer.checkpoint.load import load
from allformer.train.objectives import find_objective
from allformer.train.policy.logps import answer_logps
from allformer.train.policy.rollout import Rollout
from allformer.train.recipe import make_recipe
from tests.loud import make_loud
from tests.parity.zoo import unrounded

hf = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")

from tests.parity.test_preferences import CONFIG, Exact, same_gradients, theirs, tokenizer  # noqa: E402

PROMPTS = [[5, 6, 7], [5, 7]]
ANSWERS = [[8, 9, 2], [18, 9, 3, 40, 2], [44, 2], [10, 11, 12, 13]]  # two each; the last is cut
SCORES = [0.3, -1.2, 2.0, 0.5]
LENGTH, HEAT = 6, 1.3
KINDS = [
    ("grpo", "token", False), ("bnpo", "token", True), ("dr_grpo", "token", True),
    ("dapo", "token", True), ("grpo", "sequence", True),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _unrounded():
    with unrounded():
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model, how it was when the answers were drawn, and its reference."""
    path = tmp_path_factory.mktemp("grpo")
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**CONFIG)).double()
    make_loud(model, 0)
    for seed, name in enumerate(("policy", "old", "reference")):
        other = copy.deepcopy(model)
        torch.manual_seed(seed)
        for p in other.parameters() if seed else ():
            p.data += 0.02 * seed * torch.randn_like(p)
        other.save_pretrained(path / name)
    return path


class Heated(Exact):
    """Its log-probabilities are those of what was drawn from. Places are counted behind padding:
    angles of rotary positions are rounded, so that a text that stands elsewhere is another."""

    def forward(self, input_ids, attention_mask, labels=None, **more):
        places = (attention_mask.cumsum(1) - 1).clamp_min(0)
        asked = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": places}
        logp = (self.inner(**asked).logits[:, :-1] / HEAT).log_softmax(-1)
        follows = labels[:, 1:]
        seen = logp.gather(-1, follows.clamp_min(0)[..., None]).squeeze(-1) * (follows != -100)
        return SimpleNamespace(log_probs=seen, entropy=-(logp.exp() * logp).sum(-1))


@pytest.fixture(scope="module")
def trainer(home, tmp_path_factory):
    """TRL's, which is only asked for a loss."""
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    logging.disable(logging.WARNING)
    try:
        args = trl.GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("out")), use_cpu=True, report_to=[], bf16=False,
            beta=0.3, epsilon=0.02, epsilon_high=0.03, max_completion_length=LENGTH,
            num_generations=2, per_device_train_batch_size=4, temperature=HEAT,
            generation_batch_size=4, gradient_accumulation_steps=1,
        )  # fmt: skip
        rows = Dataset.from_list([{"prompt": "w5"}] * 4)
        return trl.GRPOTrainer(
            theirs(home, "policy"), reward_funcs=lambda completions, **more: [0.0] * 4, args=args,
            train_dataset=rows, processing_class=tokenizer(),
        )  # fmt: skip
    finally:
        logging.disable(logging.NOTSET)


def grids():
    """Prompts filled on the left, answers on the right, as TRL has them."""
    prompts = [PROMPTS[i // 2] for i in range(4)]
    width, length = max(map(len, prompts)), max(map(len, ANSWERS))
    left = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    right = torch.tensor([a + [0] * (length - len(a)) for a in ANSWERS])
    keep = torch.tensor([[1] * len(a) + [0] * (length - len(a)) for a in ANSWERS])
    return left, (left > 0).long(), right, keep


def rollout():
    rows = [
        (np.array(PROMPTS[i // 2] + a), np.repeat([0, 1], [len(PROMPTS[i // 2]), len(a)]))
        for i, a in enumerate(ANSWERS)
    ]
    score = torch.tensor(SCORES, dtype=torch.float64)
    ended = torch.tensor([True, True, True, False])
    return Rollout(rows, ended, torch.tensor([0, 0, 1, 1]), score[:, None], score)


@pytest.mark.parametrize(("kind", "level", "unbiased"), KINDS)
def test_the_loss_and_its_gradients_are_trls(kind, level, unbiased, home, trainer):
    asked = {
        "is": "grpo", "group": 2, "rewards": ["operator:neg"], "iterations": 2,
        "sampling": {"length": LENGTH, "temperature": HEAT},
        "loss": {"kind": kind, "beta": 0.3, "clip_low": 0.02, "clip_high": 0.03, "level": level,
                 "unbiased": unbiased},
    }  # fmt: skip
    grpo = find_objective("grpo")(make_recipe({"objective": asked}))
    models = {n: load(home / n, dtype=torch.float64) for n in ("policy", "old", "reference")}
    grpo.policy = models["old"]
    drawn = worked_out(grpo, models["reference"])
    ours = models["policy"]
    batch = grpo._laid(drawn)
    loss, _ = grpo.loss(ours, batch)
    (loss / batch.counts[0]).backward()

    prompt, prompt_mask, answer, mask = grids()
    policy = theirs(home, "policy")
    trainer.loss_type, trainer.importance_sampling_level = kind, level
    trainer.args.use_bias_correction_kl = unbiased
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    inputs = {
        "prompt_ids": prompt, "prompt_mask": prompt_mask, "completion_ids": answer,
        "completion_mask": mask, "advantages": drawn.more["advantages"],
        "old_per_token_logps": drawn.logps, "ref_per_token_logps": drawn.reference,
        "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    wanted = trainer._compute_loss(Heated(policy), inputs)
    wanted.backward()
    assert loss.item() / batch.counts[0] == pytest.approx(wanted.item(), abs=1e-10)
    same_gradients(ours, policy)
    seen, figures = trainer._metrics["train"], grpo.figures()
    assert figures["kl"] == pytest.approx(seen["kl"][-1], rel=1e-5)
    assert figures["entropy"] == pytest.approx(seen["entropy"][-1], rel=1e-5)
    assert figures["clipped"] == pytest.approx(seen["clip_ratio/region_mean"][-1], abs=1e-6)
    assert figures["clipped"] > 0


def worked_out(grpo, reference):
    """As in a run, but in fp64 and with a reference that is another model."""
    grpo.copy = reference
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(grpo), "dtype", None)
        return grpo.work_out(rollout())


def test_the_reference_and_the_model_of_before_say_what_transformers_says(home):
    ours, its = load(home / "old", dtype=torch.float64), Heated(theirs(home, "old"))
    found = answer_logps(ours, rollout().said(), HEAT)
    prompt, prompt_mask, answer, mask = grids()
    ids = torch.cat([prompt, answer], 1)
    keep = torch.cat([prompt_mask, mask], 1)
    labels = ids.masked_fill(keep == 0, -100)
    said = its(ids, keep, labels=labels).log_probs[:, -answer.shape[1] :] * mask
    assert torch.allclose(found.logps, said, rtol=0, atol=1e-10)
