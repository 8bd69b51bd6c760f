"""Planted bugs of linear attention, random features and low rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.mutants.mutants import Mutant, bug
from tests.property import test_features, test_low_rank

KILLERS: dict[str, Callable[[], None]] = {
    "elu pairs": partial(test_features.check_formula, "elu", True),
    "favor pairs": partial(test_features.check_formula, "favor", True),
    "favor pairs, both sides": partial(test_features.check_formula, "favor", False),
    "favor steps": partial(test_features.check_steps, "favor"),
    "favor future": partial(test_features.check_future, "favor"),
    "favor huge": test_features.check_huge,
    "favor draws": test_features.check_draws,
    "elu padding": partial(test_features.check_padding, "elu"),
    "elu turned, padding": partial(test_features.check_padding, "elu turned"),
    "elu cached": partial(test_features.check_cached, "elu"),
    "low rank pairs": partial(test_low_rank.check_formula, "none"),
    "low rank padding": partial(test_low_rank.check_padding, "layers"),
}
SUMS, FEATURES, LOW = "fused.linear_attention", "mixers.features:Features", "mixers.low_rank"

MUTANTS: list[Mutant] = [
    bug("chunk sees its own sums", "keys count twice", f"{SUMS}:causal_attention",
        "known.values[:, :, :-1]", "known.values[:, :, 1:]", "elu pairs"),
    bug("mass of a chunk alone", "weights grow with the text", f"{SUMS}:causal_attention",
        "below + scores.sum(-1, keepdim=True)", "scores.sum(-1, keepdim=True)", "elu pairs"),
    bug("chunk sees its future", "training predicts what it reads", f"{SUMS}:causal_attention",
        "scores = scores.tril()", "scores = scores", "elu pairs"),
    bug("one stabiliser for a chunk", "huge keys later wipe out what came before",
        f"{SUMS}:causal_attention", "cut.top.cummax(-1).values",
        "cut.top.amax(-1, keepdim=True).expand(cut.top.shape)", "favor huge", "favor future"),
    bug("old sums not faded", "the first chunks weigh too much", f"{SUMS}:_known",
        "(highest[..., :-1] - base[..., 1:]).exp()", "torch.ones_like(base[..., 1:])",
        "favor pairs"),
    bug("state's measure forgotten", "after a step old tokens weigh too much", f"{SUMS}:_known",
        "first = before.top[..., None]", "pass", "favor steps"),
    bug("gradient of sums is not carried back", "early keys learn from their chunk alone",
        f"{SUMS}:_Faded.backward", "reversed(range(fade.shape[2]))", "range(0)", "favor pairs"),
    bug("padding has features", "elu(0) + 1 is 1: padding is read", f"{FEATURES}.features",
        "k if keep is None else k * keep[..., None], None", "k, None", "elu padding"),
    bug("padding of other tokens", "cached text hidden", f"{FEATURES}.forward",
        "keep[:, None, -k.shape[2] :]", "keep[:, None, : k.shape[2]]", "elu cached"),
    bug("random features without |k|²/2", "long keys are loud", f"{FEATURES}.features",
        "k @ draws - norm", "k @ draws", "favor pairs, both sides"),
    bug("scale goes in whole", "softmax of another temperature", f"{FEATURES}.features",
        "self.scale**0.5", "self.scale", "favor pairs, both sides"),
    bug("draws all of one length", "a biased estimate", "mixers.features:orthogonal",
        "rows * lengths[:, None]", "rows * size**0.5 * 0.9", "favor draws"),
    bug("angles count padding", "padding on the left turns features",
        "stack:Stack._relation", '"all" if alike else "kept"', '"all"', "elu turned, padding"),
    bug("padding is projected", "shorter rows leak", f"{LOW}:LowRank.forward",
        "x.gather(1, cells) * plan.real[..., None, None]", "x.gather(1, cells)",
        "low rank padding"),
    bug("columns by place", "padding on the left meets other columns", f"{LOW}:LowRank.forward",
        "x.gather(1, cells) * plan.real[..., None, None]", "x", "low rank padding"),
    bug("values by the keys' matrix", "F is E", f"{LOW}:Along.forward",
        "self.keys if self.values is None else self.values", "self.keys", "low rank pairs"),
]  # fmt: skip
