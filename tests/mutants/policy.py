"""Planted bugs of learning from rewards: what is drawn, compared, clipped and paid for."""

from __future__ import annotations

from collections.abc import Callable

from tests.mutants.mutants import Mutant, bug
from tests.unit import test_policy as tests

KILLERS: dict[str, Callable[[], None]] = {
    "prompts as ids": tests.check_prompt_ids,
    "draws of answers": tests.check_draws,
    "weights of now": tests.check_fresh_weights,
    "likelihoods of drawn tokens": tests.check_logps,
    "advantages": tests.check_advantages,
    "losses of groups": tests.check_grpo,
    "parts of rollouts": tests.check_parts,
    "clipped ratios": tests.check_clipped,
}
POLICY = "allformer.train.policy"

MUTANTS: list[Mutant] = [
    bug("a group's mean is the batch's", "easy prompts look good",
        f"{POLICY}.advantages:group_advantages", "each.mean(1, keepdim=True)", "each.mean()",
        "advantages"),
    bug("advantages are not scaled by the group", "noisy prompts dominate",
        f"{POLICY}.advantages:group_advantages", "(each.std(1, keepdim=True) + _SMALL)",
        "(scores.std() + _SMALL)", "advantages"),
    bug("the larger of both losses' negatives", "the clip lets everything through",
        f"{POLICY}.ratio:clipped_loss", "torch.minimum", "torch.maximum", "clipped ratios",
        "losses of groups"),
    bug("the lower bound for the upper one", "clip-higher does nothing",
        f"{POLICY}.ratio:clipped_loss", "clamp(1 - low, 1 + high)",
        "clamp(1 - low, 1 + low)", "losses of groups"),
    bug("the ratio upside down", "what became likelier is pushed on", f"{POLICY}.ratio:ratios",
        "logps - old", "old - logps", "losses of groups", "clipped ratios"),
    bug("padding counts in a sequence's ratio", "short answers move less", f"{POLICY}.ratio:ratios",
        "(apart * mask).sum", "apart.sum", "clipped ratios"),
    bug("the divergence the wrong way round in k3", "another penalty", f"{POLICY}.ratio:k3",
        "reference - logps", "logps - reference", "losses of groups"),
    bug("the divergence is not weighted", "a biased gradient", f"{POLICY}.grpo:GrpoLoss.each",
        "(ratio if self.unbiased else 1.0)", "1.0", "losses of groups"),
    bug("padding counts in the loss", "answers are as long as the longest",
        f"{POLICY}.grpo:GrpoLoss.each", "loss.expand_as(x.mask) * x.mask", "loss.expand_as(x.mask)",
        "losses of groups"),
    bug("a group's answers by tokens", "long answers count for more", f"{POLICY}.grpo:Grpo.summed",
        "tokens.sum(1) / mask.sum(1).clamp_min(1)", "tokens.sum(1)", "losses of groups"),
    bug("likelihoods without the temperature", "not what was drawn from",
        f"{POLICY}.logps:state_logps", "/ temperature", "", "likelihoods of drawn tokens"),
    bug("the token that ends an answer is cut off", "to stop is never learnt",
        f"{POLICY}.rollout:_cut", "row[: at + 1]", "row[:at]", "draws of answers"),
    bug("draws of the global generator", "a resumed run draws others",
        f"{POLICY}.rollout:draw_answers", "generator=torch.Generator(device).manual_seed(seed)",
        "generator=None", "draws of answers"),
    bug("prompts are filled on the right", "the answer begins behind padding",
        f"{POLICY}.rollout:draw_answers", "keep[row, width - len(prompt) :] = 1",
        "keep[row, :] = 1", "draws of answers"),
    bug("a step does not say that it has written", "answers of old weights",
        "allformer.train.step:Stepper.__call__", "increment_version(self._trained)", "pass",
        "weights of now"),
    bug("a part keeps the grid of the whole", "tokens of nobody", f"{POLICY}.rollout:Rollout.take",
        "x[at, :width]", "x[at]", "parts of rollouts"),
    bug("a prompt does not ask for an answer", "the model writes the user's turn",
        "allformer.text.answers:Answers.ask", "add_generation_prompt=True",
        "add_generation_prompt=False", "prompts as ids"),
]  # fmt: skip
