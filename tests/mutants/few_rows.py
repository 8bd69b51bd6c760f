"""Planted bugs of steps for a few rows: what their plain forms, the kernels' oracles, compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.mutants.mutants import Mutant, bug
from tests.property import test_few_rows

KILLERS: dict[str, Callable[[], None]] = {
    "few rows": partial(test_few_rows.check_steps, "llama", 3, True),
    "few rows, learned places": partial(test_few_rows.check_steps, "gpt2", 1, False),
    "many rows": partial(test_few_rows.check_steps, "llama", 17, True),
    "packed weights": test_few_rows.check_packed,
    "few bits, mixed": test_few_rows.check_mixed,
}
QUERY, FEW = "fused.one_query:plain_one_query", "few_rows:FewRows"

MUTANTS: list[Mutant] = [
    bug("the new token is not looked at", "each token sees those before it alone", QUERY,
        "<= past", "< past", "few rows", "many rows"),
    bug("padding is looked at by few rows", "shorter prompts say other things", QUERY,
        "there & keep)", "there & (keep | True))", "few rows"),
    bug("keys are remembered one place late", "the cache has a hole", QUERY,
        "keys.index_copy_(2, past[None],", "keys.index_copy_(2, past[None] + 1,", "few rows"),
    bug("halves turned apart", "distances are lost", "fused.turns:Turns.turned",
        "first * cos - second * sin", "first * cos + second * sin", "few rows"),
    bug("all rows stand at the counter", "padding on the left turns", "fused.turns:Turns.turned",
        "past.view(1) if self.where is None else self.where", "past.view(1)", "few rows"),
    bug("no residual around attention", "layers forget their input", f"{FEW}._few",
        "times(context, layer.out, more=x)", "times(context, layer.out)", "few rows"),
    bug("feed-forward without its norm", "large states saturate", f"{FEW}._few",
        "times(x, layer.up, norm=feed,", "times(x, layer.up,", "few rows"),
    bug("the counter stands still", "each token overwrites the one before", f"{FEW}.step",
        "cache.advance(1)", "pass", "few rows"),
    bug("the last norm is left out", "logits of another scale", f"{FEW}.step",
        "norm=None if many else self.final", "norm=None", "few rows, learned places"),
    bug("what the layer before gave is dropped", "feed-forward layers do nothing",
        "few_rows:_after", "add_norm(x, h, norm)", "(x, norm_of_sum(x, None, norm))", "many rows"),
    bug("rms norm where there is a bias", "means are not taken off", "fused.times:normed",
        "norm.bias is None", "True", "few rows, learned places"),
    bug("projections in another order", "values are taken for queries", f"{FEW}._few",
        "torch.cat(parts, -1)", "torch.cat(parts[::-1], -1)", "few bits, mixed"),
    bug("a gate of another form is not applied", "inner states are too large",
        "fused.times:times", "times(x, gate, norm=norm, act=act) * ", "", "few bits, mixed"),
    bug("four bits always signed", "weights with a least value are shifted",
        "fused.matrix:Matrix.dense", "signed=self.least is None", "signed=True", "packed weights"),
]  # fmt: skip
