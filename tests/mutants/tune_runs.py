"""Planted bugs of runs that tune: what is trained, held and averaged."""

from __future__ import annotations

from collections.abc import Callable

from tests.mutants.mutants import Mutant, bug
from tests.unit import test_tune_reach, test_tune_runs

KILLERS: dict[str, Callable[[], None]] = {
    "fresh parts": test_tune_runs.check_fresh,
    "frozen in half": test_tune_runs.check_narrow,
    "average of an adapter": test_tune_runs.check_average,
    "shares of steps": test_tune_runs.check_share,
    "room": test_tune_reach.test_what_stands_before_a_text_takes_of_its_positions,
}
TUNED = "allformer.train.tuned"

MUTANTS: list[Mutant] = [
    bug("a new pooler stays random", "a tuned classifier reads noise", f"{TUNED}:put_methods",
        "replace(methods[0], whole=parts)", "methods[0]", "fresh parts"),
    bug("adapters in half precision", "small steps are rounded away", f"{TUNED}:narrow",
        "not parameter.requires_grad and parameter.is_floating_point()",
        "parameter.is_floating_point()", "frozen in half"),
    bug("frozen weights are averaged", "a moving average as large as the model",
        "allformer.train.ema:Ema.__init__", "if trains or p.requires_grad", "if True",
        "average of an adapter"),
    bug("a prefix takes no room", "the longest texts fail in the midst of training",
        "allformer.train.room:room_of",
        "stack.longest - sum(m.ahead(tree).get(name, 0) for m in methods)", "stack.longest",
        "room"),
    bug("a share of warm-up is no steps", "the first steps have the full rate",
        "allformer.train.schedule:Schedule.risen",
        "round(self.warmup * total) if self.warmup < 1 else int(self.warmup)",
        "int(self.warmup)", "shares of steps"),
]  # fmt: skip
