"""Planted bugs of preferences: what is compared, with what, and how it is weighed."""

from __future__ import annotations

from collections.abc import Callable

from tests.mutants.mutants import Mutant, bug
from tests.unit import test_preferences as tests

KILLERS: dict[str, Callable[[], None]] = {
    "rows of preferences": lambda: tests.check_rows((tests.CHATML,)),
    "likelihoods of answers": tests.check_logps,
    "losses of pairs": tests.check_losses,
    "the base as reference": tests.check_base,
    "divergence from the base": tests.check_divergence,
    "verdicts": tests.check_verdicts,
}
LOSSES = "allformer.train.preferences.losses"
SAID = "allformer.train.preferences.said"

MUTANTS: list[Mutant] = [
    bug("the rejected answer is preferred", "the model gets worse", f"{LOSSES}:_gap",
        "sides[:, 0] - sides[:, 1]", "sides[:, 1] - sides[:, 0]", "losses of pairs"),
    bug("IPO's gap without its half", "twice the gap is aimed at", f"{LOSSES}:Ipo.each",
        "1 / (2 * self.beta)", "1 / self.beta", "losses of pairs"),
    bug("IPO of sums", "long answers dominate", f"{LOSSES}:Ipo.each",
        "scores.mean_ratios", "scores.ratios", "losses of pairs"),
    bug("SimPO's margin inside β", "a margin β times as large", f"{LOSSES}:SimPo.gap",
        "- self.gamma", "- self.beta * self.gamma", "losses of pairs"),
    bug("smoothing of the right label twice", "wrong labels change nothing",
        f"{LOSSES}:Sigmoid.each", "F.logsigmoid(-gap)", "F.logsigmoid(gap)", "losses of pairs"),
    bug("robust without its share", "biased where labels are wrong", f"{LOSSES}:Robust.each",
        "/ (1 - 2 * smoothing)", "", "losses of pairs"),
    bug("labels of preferred answers not shifted", "what is read is scored", f"{SAID}:lay_said",
        "np.asarray(ids[1:], np.int64)", "np.asarray(ids[:-1], np.int64)",
        "likelihoods of answers"),
    bug("the first token of an answer is not said", "short answers look the same",
        f"{SAID}:lay_said", "np.asarray(learnt[1:]) > 0", "np.asarray(learnt[:-1]) > 0",
        "likelihoods of answers"),
    bug("answers of one row all at one place", "all but one token are lost", f"{SAID}:lay_said",
        "row * width + number", "row * width", "likelihoods of answers"),
    bug("chosen and rejected in turn", "pairs are torn apart",
        "allformer.train.preferences.preferred:Preferred.pair_rows",
        "np.concatenate([2 * index, 2 * index + 1])",
        "np.stack([2 * index, 2 * index + 1], 1).ravel()", "likelihoods of answers"),
    bug("earlier answers count too", "the history is learnt with the answer",
        "allformer.train.preferences.encode:EncodePreferences._row",
        "spans[-len(own) :]", "spans", "rows of preferences"),
    bug("the adapter acts in the reference", "nothing is compared with anything",
        "allformer.train.preferences.reference:without_adapters",
        "with using(model, None):", "if True:", "the base as reference"),
    bug("the divergence the other way round", "another figure",
        "allformer.train.preferences.reference:divergence",
        "F.kl_div(other, logp,", "F.kl_div(logp, other,", "divergence from the base"),
    bug("KTO's own answers for others", "z is the reward itself",
        "allformer.train.objectives.kto:Kto.collate", "rows[i - 1]", "rows[i]", "verdicts"),
    bug("z below zero", "bad answers are let off",
        "allformer.train.objectives.kto:Kto.judged", ".clamp_min(0)", "", "verdicts"),
    bug("KTO without z", "all answers may become likelier",
        "allformer.train.objectives.kto:Kto.judged", "(ratios - z)", "ratios", "verdicts"),
    bug("the weights of verdicts exchanged", "the rarer kind weighs less",
        "allformer.train.objectives.kto:Kto.judged",
        "torch.full_like(ratios, options.bad).masked_fill(good, options.good)",
        "torch.full_like(ratios, options.good).masked_fill(good, options.bad)", "verdicts"),
]  # fmt: skip
