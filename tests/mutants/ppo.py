"""Planted bugs of PPO: what a token earns, what it was worth, how far policy and value may go."""

from __future__ import annotations

from collections.abc import Callable

from tests.mutants.mutants import Mutant, bug
from tests.unit import test_ppo as whole
from tests.unit import test_ppo_parts as parts

KILLERS: dict[str, Callable[[], None]] = {
    "generalised advantages": parts.check_advantages,
    "whitening": parts.check_whitening,
    "estimates of divergence": parts.check_estimators,
    "the price of divergence": parts.check_control,
    "what tokens earn": parts.check_token_rewards,
    "answers without an end": parts.check_no_end,
    "appraised rollouts": parts.check_appraised,
    "clipped policy": parts.check_policy_loss,
    "clipped values": parts.check_value_loss,
    "a head on the body": parts.check_shared_body,
    "gradient of a fresh rollout": whole.check_gradient,
    "divergence is paid": whole.check_divergence_is_paid,
}
GAE, KL = "allformer.train.policy.gae", "allformer.train.policy.kl_control"
PPO, CRITIC = "allformer.train.policy.ppo", "allformer.train.policy.critic:Critic"
WHOLE = "allformer.train.objectives.ppo:Ppo"
RATIO = "allformer.train.policy.ratio"

MUTANTS: list[Mutant] = [
    bug("the value of now for the next one's", "no credit for what follows", f"{GAE}:advantages",
        "values[:, 1:], (0, 1)", "values[:, :-1], (0, 1)", "generalised advantages"),
    bug("advantages forgotten at once", "the score reaches the last token alone",
        f"{GAE}:advantages", "gamma * lam * later", "gamma * lam",
        "generalised advantages"),
    bug("advantages not discounted", "as if γ were 1", f"{GAE}:advantages",
        "+ gamma * lam * later", "+ lam * later", "generalised advantages"),
    bug("values behind the end", "padding is worth something", f"{GAE}:advantages",
        "(torch.where(keep, x, 0.0) for x in (rewards, values))", "(rewards, values)",
        "generalised advantages"),
    bug("whitened with the padding", "short answers move all others", f"{GAE}:whiten",
        "count = keep.sum()", "count = torch.tensor(keep.numel())", "whitening"),
    bug("whitened without a root", "advantages of an odd size", f"{GAE}:whiten",
        "torch.rsqrt(variance + _EPS)", "1 / (variance + _EPS)", "whitening"),
    bug("the other estimate", "what is paid varies more, or less", f"{KL}:estimate",
        "kind == K1", "kind != K1", "estimates of divergence"),
    bug("k3 for k1's mean", "what is paid is wrong in the mean", f"{RATIO}:k3",
        "apart.exp() - apart - 1", "apart.exp() - 1", "estimates of divergence"),
    bug("cheaper when too far", "the policy runs away", f"{KL}:Adaptive.next",
        "kl / self.target - 1", "1 - kl / self.target", "the price of divergence"),
    bug("an error without a bound", "one odd rollout sets the price", f"{KL}:Adaptive.next",
        "min(max(kl / self.target - 1, -_MOST), _MOST)", "(kl / self.target - 1)",
        "the price of divergence"),
    bug("divergence is earned", "the policy flees its reference", f"{PPO}:token_rewards",
        "-coef * kl, 0.0", "coef * kl, 0.0", "what tokens earn"),
    bug("the score one token late", "it is lost with the longest answer", f"{PPO}:token_rewards",
        "counts - 1, width", "counts % width, width", "what tokens earn"),
    bug("ended answers are punished", "answers grow to the limit", f"{PPO}:ended_scores",
        "(~ended)", "ended", "answers without an end"),
    bug("values forgotten in the returns", "a value learns how wrong it was", f"{PPO}:appraised",
        "gains + drawn.values", "gains", "appraised rollouts"),
    bug("advantages of their own size", "the rate depends on the reward's size", f"{PPO}:appraised",
        "Appraised(whiten(gains, keep),", "Appraised(gains,", "appraised rollouts"),
    bug("whitened rewards around zero", "a good rollout earns nothing", f"{PPO}:appraised",
        "shift=False)", "shift=True)", "appraised rollouts"),
    bug("the larger of both gains", "clipping holds nothing back", f"{RATIO}:clipped_loss",
        "torch.minimum(", "torch.maximum(", "clipped policy"),
    bug("the ratio of PPO upside down", "what was good becomes rarer", f"{RATIO}:ratios",
        "logps - old", "old - logps", "clipped policy"),
    bug("the smaller of both losses", "values run away", f"{PPO}:value_losses",
        "torch.maximum(plain", "torch.minimum(plain", "clipped values"),
    bug("values clipped around the return", "clipping moves them", f"{PPO}:value_losses",
        "near = before + (values - before)", "near = returns + (values - returns)",
        "clipped values"),
    bug("the body hears all of the value", "it forgets to speak", f"{CRITIC}.learn",
        "return self.asked.teaches * body", "return body", "a head on the body"),
    bug("the value at the policy's rate", "it knows nothing for long", f"{CRITIC}.step",
        "rate * self.faster", "rate", "a head on the body"),
    bug("openness costs", "the policy closes at once", f"{WHOLE}.loss",
        "- options.entropy * entropy", "+ options.entropy * entropy",
        "gradient of a fresh rollout"),
    bug("padding in the policy's loss", "openness of no token is learnt", f"{WHOLE}.loss",
        "(each * mask).sum()", "each.sum() + entropy.sum()", "gradient of a fresh rollout"),
    bug("returns for advantages", "what was expected is no matter", f"{WHOLE}.loss",
        'rollout.more["advantages"].to', 'rollout.more["returns"].to',
        "gradient of a fresh rollout"),
    bug("compared with itself", "divergence is never paid", f"{WHOLE}.work_out",
        "logps if reference is None else reference", "logps", "divergence is paid"),
    bug("the price follows a token's divergence", "long answers run away", f"{WHOLE}._follow",
        "(kl * mask).sum(1).mean()", "token_mean(kl, mask)", "divergence is paid"),
    bug("answers without an end are let off", "they grow to the limit", f"{WHOLE}.work_out",
        "no_end=options.no_end", "no_end=0.0", "divergence is paid"),
]  # fmt: skip
