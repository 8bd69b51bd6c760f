"""What narrows a distribution before a token is drawn from it, in transformers' order.

Each keeps at least `keep` tokens: 1, or with beams one more than there are end tokens, so that a
beam can always go on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from allformer.generate.options import GenerationConfig

Warp = Callable[[Tensor], Tensor]
_NEVER = float("-inf")


def make_warps(g: GenerationConfig, keep: int) -> list[Warp]:
    """The ones that settled options ask for: each takes scores (rows V) and gives scores."""
    out: list[Warp] = []
    if g.temperature not in (None, 1.0):
        out.append(partial(temperature, by=g.temperature))
    if g.top_h is not None:
        out.append(partial(top_h, part=g.top_h))
    if g.top_k:
        out.append(partial(top_k, count=max(g.top_k, keep)))
    if g.top_p is not None and g.top_p < 1:
        out.append(partial(top_p, mass=g.top_p, keep=keep))
    if g.min_p is not None:
        out.append(partial(min_p, part=g.min_p, keep=keep))
    if g.typical_p is not None and g.typical_p < 1:
        out.append(partial(typical, mass=g.typical_p, keep=keep))
    if g.epsilon_cutoff:
        out.append(partial(epsilon, least=g.epsilon_cutoff, keep=keep))
    if g.eta_cutoff:
        out.append(partial(eta, least=g.eta_cutoff, keep=keep))
    return out


def temperature(scores: Tensor, by: float) -> Tensor:
    """Below 1 the likely become likelier, above 1 less so."""
    return scores / by


def top_k(scores: Tensor, count: int) -> Tensor:
    """The `count` likeliest, and what equals the last of them."""
    least = scores.topk(min(count, scores.shape[-1])).values[:, -1:]
    return scores.masked_fill(scores < least, _NEVER)


def top_p(scores: Tensor, mass: float, keep: int) -> Tensor:
    """The fewest likeliest that hold `mass` together (Holtzman et al., 2019)."""
    rising, order = scores.sort(descending=False)
    drop = rising.softmax(-1).cumsum(-1) <= 1 - mass
    drop[:, -keep:] = False
    return scores.masked_fill(drop.scatter(1, order, drop), _NEVER)


def min_p(scores: Tensor, part: float, keep: int) -> Tensor:
    """Those at least `part` as likely as the likeliest."""
    p = scores.softmax(-1)
    drop = p < part * p.amax(-1, keepdim=True)
    best = p.topk(min(keep, p.shape[-1])).indices
    return scores.masked_fill(drop.scatter(1, best, False), _NEVER)


def typical(scores: Tensor, mass: float, keep: int) -> Tensor:
    """Those whose surprise is nearest to the expected one (Meister et al., 2022)."""
    logp = scores.log_softmax(-1)
    entropy = -(logp * logp.exp()).nansum(-1, keepdim=True)
    off, order = (-logp - entropy).abs().sort(descending=False)
    held = scores.gather(-1, order).softmax(-1).cumsum(-1)
    last = (held < mass).sum(1, keepdim=True).clamp_max(scores.shape[-1] - 1)
    drop = off > off.gather(1, last)
    drop[:, :keep] = False
    return scores.masked_fill(drop.scatter(1, order, drop), _NEVER)


def epsilon(scores: Tensor, least: float | Tensor, keep: int) -> Tensor:
    """Those with a probability of at least `least` (Hewitt et al., 2022)."""
    fewest = scores.topk(min(keep, scores.shape[-1])).values[:, -1:]
    return scores.masked_fill((scores.softmax(-1) < least) & (scores < fewest), _NEVER)


def eta(scores: Tensor, least: float, keep: int) -> Tensor:
    """The same, with a bound that sinks where the entropy is high: min(ε, √ε · e^−H)."""
    entropy = _drawn(scores).entropy()[:, None]
    bound = torch.full((), least, device=scores.device)  # made there: nothing is waited for
    return epsilon(scores, torch.minimum(bound, bound.sqrt() * (-entropy).exp()), keep)


def top_h(scores: Tensor, part: float) -> Tensor:
    """The likeliest of the first 100, as long as they hold `part` of the entropy together."""
    best, where = scores.topk(min(100, scores.shape[-1]))
    drawn = _drawn(best)
    share = -drawn.probs * drawn.probs.log()
    stays = share.cumsum(-1) <= part * drawn.entropy()[:, None]
    stays[:, 0] = True
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter(1, where, stays)
    return scores.masked_fill(~kept, _NEVER)


def _drawn(scores: Tensor) -> Any:
    # Any: its methods have no types. NaN is found, and named, where the token is taken.
    return torch.distributions.Categorical(logits=scores, validate_args=False)
