"""Planted bugs of tuning: LoRA and its kin, slots, rows with adapters of their own, merging."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from allformer.errors import ConfigError
from tests.mutants.mutants import Mutant, bug
from tests.unit import test_tune

KILLERS: dict[str, Callable[[], None]] = {
    "lora": test_tune.check_lora,
    "dora": test_tune.check_dora,
    "lora dropout": test_tune.check_dropout,
    "ia3": test_tune.check_ia3,
    "adapters by row": test_tune.check_rows,
    "frozen": test_tune.check_frozen,
    "lora, merged": partial(test_tune.check_life, "classes", "lora"),
    "dora, merged": partial(test_tune.check_life, "classes", "dora"),
    "ia3, merged": partial(test_tune.check_life, "classes", "ia3"),
    "own head": test_tune.check_own_heads,
}
LORA, IA3 = "allformer.tune.lora", "allformer.tune.ia3"
DELTAS, TUNING = "allformer.tune.deltas:Deltas", "allformer.tune.tuning"

MUTANTS: list[Mutant] = [
    bug("LoRA not scaled", "alpha changes nothing", f"{LORA}:LoraChange._up",
        "pair.scale * pair.b", "pair.b", "lora"),
    bug("LoRA stabilised by the rank", "high ranks learn nothing", f"{LORA}:Lora.scale_of",
        "math.sqrt(rank) if", "rank if", "lora"),
    bug("A's in another order than B's", "k is changed by v's", f"{LORA}:LoraChange._down",
        "torch.cat(downs)", "torch.cat(downs[::-1])", "lora"),
    bug("LoRA in the first outputs", "what is meant for keys goes to queries",
        f"{LORA}:LoraChange._up", "torch.block_diag(*placed)", "torch.block_diag(*placed[::-1])",
        "lora"),
    bug("LoRA merged unscaled", "a merged model says something else", f"{LORA}:Pair.product",
        "self.scale * (self.b @ self.a)", "self.b @ self.a", "lora, merged"),
    bug("LoRA starts loud", "tuning begins from another model", f"{LORA}:Pair.__init__",
        "torch.zeros(outputs", "torch.ones(outputs", "lora, merged"),
    bug("DoRA's length has a gradient", "not the paper's 4.3", f"{LORA}:LoraChange._factor",
        "with torch.no_grad():", "if True:", "dora"),
    bug("DoRA multiplies the bias", "biases drift with the length", f"{LORA}:LoraChange.leave",
        "base if bias is None else base - bias", "base", "dora", "dora, merged"),
    bug("DoRA's length of columns", "features, not outputs, are rescaled",
        f"{LORA}:LoraChange.merged", "wide.norm(dim=1))[:, None]",
        "wide.norm(dim=1).flip(0))[:, None]", "dora, merged"),
    bug("dropout in evaluation", "answers are drawn", f"{LORA}:LoraChange.leave",
        "drop(x, self.dropout, self.training)", "drop(x, self.dropout, True)",
        "lora dropout"),
    bug("DoRA's base is not thinned out", "not what PEFT trains", f"{LORA}:LoraChange.leave",
        "layer.bare(seen) if", "y if", "lora dropout"),
    bug("(IA)³ after W₂", "inner activations are not changed", f"{IA3}:Ia3Change.enter",
        "x * cast(self.into, x.dtype)", "x", "ia3", "ia3, merged"),
    bug("(IA)³ merged without its bias", "a merged model says something else",
        f"{IA3}:Ia3Change.merged", "(bias * factor)", "bias", "ia3, merged"),
    bug("rows change the first rows", "one user's adapter answers another", f"{DELTAS}.around",
        "y.index_copy(0, rows, change.leave(x[rows], y[rows], layer))",
        "y.index_copy(0, rows, change.leave(x[: len(rows)], y[: len(rows)], layer))",
        "adapters by row"),
    bug("rows in turn, not side by side", "beams have their neighbour's adapter",
        "allformer.tune.slot:Selection.groups", "rows[i // (count // len(rows))]",
        "rows[-1 - i % len(rows)]", "adapters by row"),
    bug("rows packed", "what is padded is refused", "whole:Model._lay_out",
        "self.by_row or ", "", "adapters by row", raises=ConfigError),
    bug("frozen weights in the optimiser", "states of seven billion numbers", "starts:decay_groups",
        "if not parameter.requires_grad:", "if False:", "frozen"),
    bug("base not frozen", "LoRA trains everything", f"{TUNING}:freeze",
        "parameter.requires_grad_(trains)", "parameter.requires_grad_(True)", "frozen"),
    bug("an adapter's head stays", "the base answers with another's head",
        f"{TUNING}:Tuning.choose", "own.get(path, base)",
        "own.get(path, dict(model.named_parameters())[path])", "own head"),
    bug("unmerged by nothing", "the adapter acts twice", "allformer.tune.merge:unmerge",
        "_put(getattr(layer, name), old)", "old.clone()", "lora, merged"),
]  # fmt: skip
